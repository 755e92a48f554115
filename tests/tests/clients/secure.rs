//! A site over TLS in all versions, before a backend of other people's making.

use std::net::SocketAddr;

use weir_tests::dialogue::{Authority, Weir, free_address};
use weir_tests::versions::{Behind, VersionedBackend};

/// What programs are tried with: the most common backend, and the one most unlike it.
pub const BEHIND: [Behind; 2] = [Behind::Http1, Behind::Http2Tls];

/// Weir as `shop.example`.
pub struct Site {
    pub authority: Authority,
    pub weir: Weir,
    _backend: VersionedBackend,
}

impl Site {
    pub fn start(behind: Behind) -> Site {
        let authority = Authority::new().signs("shop", &["shop.example", "localhost"]);
        let backend = VersionedBackend::start(free_address(), behind, &authority, "shop");
        let protocol = behind.protocol();
        let tls = if behind.is_tls() {
            r#"tls = { ca = "@dir/ca.pem", server_name = "shop.example" }"#
        } else {
            ""
        };
        let config = format!(
            r#"
            [listener.web]
            bind = "@web"
            http = ["h1", "h2", "h3"]
            pool = "app"
            tls = {{ certificates = [{{ cert = "@dir/shop.pem", key = "@dir/shop.key" }}] }}
            [pool.app]
            backends = ["@app"]
            protocol = "{protocol}"
            health = "off"
            {tls}
            [log]
            access = "@dir/access.log"
            "#
        );
        let weir = authority.setup(&config).with("app", backend.address()).start();
        Site { authority, weir, _backend: backend }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.weir.address("web")
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://shop.example:{}{path}", self.address().port())
    }

    /// Fails unless there were requests and every one came in `version`, as the access log says.
    pub fn spoke(&self, version: &str) {
        let lines = self.weir.lines_of("access.log", 1);
        let wanted = format!("\"protocol\":\"{version}\"");
        let others: Vec<&String> = lines.iter().filter(|line| !line.contains(&wanted)).collect();
        assert!(others.is_empty(), "not {version}: {others:?}");
    }
}
