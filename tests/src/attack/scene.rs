//! Weir on one core, everything else on the other.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::dialogue::{Backend, PATIENCE, Setup, Weir, run_tool, tool};

/// The name of the authority's file in the directory of the test.
pub const AUTHORITY: &str = "ca.pem";

const CONFIG: &str = r#"
[runtime]
workers = 1
[listener.plain]
bind = "@plain"
http = ["h1", "h2"]
pool = "app"
[listener.quic]
bind = "@quic"
http = ["h3"]
pool = "app"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
"#;

/// A running Weir and its backend.
pub struct Scene {
    weir: Weir,
    _backend: Backend,
}

impl Scene {
    /// Starts Weir on the first core; this process, and what it starts, stays on the second.
    ///
    /// This process has priority over everything else there. The kernel handles the attackers' packets in a
    /// thread of ordinary priority, which would make honest clients wait for some milliseconds, and that
    /// would be measured instead of Weir.
    pub fn start() -> Scene {
        let own = std::process::id().to_string();
        run_tool(&tool("taskset", "util-linux"), &["--cpu-list", "--pid", "1", &own], b"", PATIENCE)
            .succeeded();
        run_tool(&tool("chrt", "util-linux"), &["--fifo", "--all-tasks", "--pid", "5", &own], b"", PATIENCE)
            .succeeded();
        let folder = std::env::temp_dir().join(format!("weir-attack-{own}"));
        std::fs::create_dir_all(&folder).expect("make a directory");
        sign(&folder);
        let backend = Backend::saying("hello");
        let setup = ["ca.pem", "shop.pem", "shop.key"].into_iter().fold(Setup::of(CONFIG), |setup, file| {
            setup.with_file(file, &std::fs::read_to_string(folder.join(file)).expect("read"))
        });
        let _ = std::fs::remove_dir_all(&folder);
        let setup = setup.under(&["chrt", "--other", "0", "taskset", "--cpu-list", "0"]);
        Scene { weir: setup.with("app", backend.address()).start(), _backend: backend }
    }

    /// The address of a listener for this version.
    pub fn address(&self, is_http3: bool) -> SocketAddr {
        self.weir.address(if is_http3 { "quic" } else { "plain" })
    }

    /// The authority of the certificate.
    pub fn authority(&self) -> PathBuf {
        self.weir.dir().join(AUTHORITY)
    }

    /// The program.
    pub fn weir(&self) -> &Weir {
        &self.weir
    }
}

fn sign(folder: &Path) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=a -keyout ca.key -out ca.pem && \
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=s -keyout shop.key -out shop.csr && \
        echo subjectAltName=DNS:shop.example > names && \
        openssl x509 -req -in shop.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out shop.pem";
    let script = format!("cd '{}' && {script}", folder.display());
    run_tool(Path::new("/bin/sh"), &["-c", &script], b"", PATIENCE).succeeded();
}
