//! Pebble, Let's Encrypt's certificate authority for tests, with a name server that says of every name that
//! it is here.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use weir_tests::dialogue::{PATIENCE, Weir, free_address, run_tool, tool, until_within};

use crate::tls::Authority;

/// Longest wait for an order: several round trips, polls and signatures, on a machine that has other work.
pub const ORDER: Duration = Duration::from_secs(60);

/// A certificate authority. Ended when dropped.
pub struct Pebble {
    pub address: SocketAddr,
    management: SocketAddr,
    /// Keeps its files.
    authority: Authority,
    config: String,
    names: SocketAddr,
    /// Where its own name server is told what to say.
    pub names_management: SocketAddr,
    /// The name server that it asks in place of its own.
    asks: Option<SocketAddr>,
    processes: Vec<Child>,
}

/// Where authorities look whether a domain is ours.
#[derive(Clone, Copy)]
pub struct Ports {
    pub http: SocketAddr,
    pub tls: SocketAddr,
}

impl Ports {
    pub fn free() -> Ports {
        Ports { http: free_address(), tls: free_address() }
    }
}

impl Pebble {
    /// An authority that could be started; it is away.
    pub fn away(ports: Ports, wants_external_accounts: bool) -> Pebble {
        // Its certificate outlives the years that tests let pass.
        let authority = Authority::new().signs_with(
            "localhost",
            &["localhost"],
            "ec -pkeyopt ec_paramgen_curve:P-256",
            7300,
        );
        let (address, management, names) = (free_address(), free_address(), free_address());
        let config = format!(
            r#"{{"pebble": {{"listenAddress": "{address}", "managementListenAddress": "{management}", "certificate": "{}", "privateKey": "{}",
            "httpPort": {}, "tlsPort": {}, "ocspResponderURL": "", "externalAccountBindingRequired": {wants_external_accounts},
            "externalAccountMACKeys": {{}}}}}}"#,
            authority.path("localhost.pem"),
            authority.path("localhost.key"),
            ports.http.port(),
            ports.tls.port(),
        );
        let names_management = free_address();
        let processes = Vec::new();
        Pebble { address, management, authority, config, names, names_management, asks: None, processes }
    }

    /// With a customer that has this key, base64url.
    pub fn knowing(mut self, key_id: &str, key: &str) -> Pebble {
        let keys = format!("\"externalAccountMACKeys\": {{\"{key_id}\": \"{key}\"");
        self.config = self.config.replace("\"externalAccountMACKeys\": {", &keys);
        self
    }

    /// The same, started anew, asking this name server.
    pub fn asking(mut self, server: SocketAddr) -> Pebble {
        self.asks = Some(server);
        self.stops();
        self.starts();
        self
    }

    pub fn running(ports: Ports) -> Pebble {
        let mut pebble = Pebble::away(ports, false);
        pebble.starts();
        pebble
    }

    /// Starts it, with no memory of an earlier life.
    pub fn starts(&mut self) {
        let file = self.authority.path("pebble.json");
        std::fs::write(&file, &self.config).expect("write");
        let names = self.names.to_string();
        let management = self.names_management.to_string();
        let asks = self.asks.unwrap_or(self.names).to_string();
        let mut server = Command::new(tool("pebble-challtestsrv", "pebble"));
        server.args([
            "-dns01",
            &names,
            "-management",
            &management,
            "-defaultIPv6",
            "",
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
        ]);
        let mut pebble = Command::new(tool("pebble", "pebble"));
        pebble.args(["-config", &file, "-dnsserver", &asks]);
        // Without waits and refusals by chance, and with a look at every domain in every order.
        pebble.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0").env("PEBBLE_AUTHZREUSE", "0");
        for command in [&mut server, &mut pebble] {
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
            self.processes.push(child);
        }
        for address in [self.address, self.management, self.names] {
            // It makes several RSA keys first, which takes a busy machine long.
            until_within(ORDER, "pebble to listen", || TcpStream::connect(address).ok());
        }
    }

    pub fn stops(&mut self) {
        for mut process in self.processes.drain(..) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.address.port())
    }

    /// The certificate of the authority that Pebble's own one comes from, PEM.
    pub fn front_ca(&self) -> String {
        self.authority.text("ca.pem")
    }

    pub fn front_file(&self, name: &str) -> String {
        self.authority.text(name)
    }

    /// A file with the certificate that all that it issues comes from.
    pub fn root(&self) -> PathBuf {
        let url = format!("https://localhost:{}/roots/0", self.management.port());
        let arguments = ["--silent", "--show-error", "--insecure", "--noproxy", "*", &url];
        let root = run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE);
        let file = PathBuf::from(self.authority.path("root.pem"));
        std::fs::write(&file, root.succeeded()).expect("write");
        file
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.stops();
    }
}

/// How the order of a listener's certificate stands, from the status.
pub fn certificate(weir: &Weir, listener: &str) -> serde_json::Value {
    let status = weir.admin().reads("/v1/status").json();
    let listeners = status["listeners"].as_array().expect("a list").clone();
    let found = listeners.into_iter().find(|each| each["name"] == listener).expect("the listener");
    found["certificates"].as_array().and_then(|all| all.last().cloned()).expect("a certificate")
}

/// Waits until the certificate of a listener is got.
pub fn is_issued(weir: &Weir, listener: &str) {
    let mut last = serde_json::Value::Null;
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until_within(ORDER, "the certificate to be issued", || {
            last = certificate(weir, listener);
            (last["acme"]["state"] == "issued" && last["not_after"].is_string()).then_some(())
        });
    }));
    assert!(waited.is_ok(), "{last:#}\n{}", weir.story());
}
