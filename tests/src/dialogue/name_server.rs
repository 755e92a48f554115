//! A real name server (unbound) whose answers a test can change.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{free_address, run_tool, tool, until};

/// A name server for `weir.test`. Ends when dropped.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    dir: PathBuf,
    child: Child,
}

impl NameServer {
    /// Starts one without records, which says of every name of `weir.test` that it does not exist.
    pub fn start() -> NameServer {
        let address = free_address();
        let dir =
            std::env::temp_dir().join(format!("weir-unbound-{}-{}", std::process::id(), address.port()));
        fs::create_dir_all(&dir).expect("a directory");
        let shown = dir.display();
        let config = format!(
            r#"
            server:
                interface: {ip}@{port}
                port: {port}
                do-daemonize: no
                username: ""
                chroot: ""
                directory: "{shown}"
                pidfile: "{shown}/pid"
                use-syslog: no
                logfile: ""
                verbosity: 0
                num-threads: 1
                access-control: 127.0.0.0/8 allow
                max-udp-size: 1232
                minimal-responses: yes
                rrset-roundrobin: yes
                local-zone: "weir.test." static
            remote-control:
                control-enable: yes
                control-interface: "{shown}/control"
                control-use-cert: no
            "#,
            ip = address.ip(),
            port = address.port()
        );
        fs::write(dir.join("unbound.conf"), config).expect("a config");
        let child = spawn(&dir);
        let server = NameServer { address, dir, child };
        server.is_ready();
        server
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn is_ready(&self) {
        until("unbound to be asked", || self.tries(&["status"]).then_some(()));
    }

    /// Gives a name these records and no others; each is `TTL TYPE DATA`.
    pub fn says(&self, name: &str, records: &[&str]) {
        self.forgets(name);
        for record in records {
            let (ttl, rest) = record.split_once(' ').expect("TTL TYPE DATA");
            self.adds(&format!("{name} {ttl} IN {rest}"));
        }
    }

    /// Adds a record, `NAME TTL IN TYPE DATA`.
    pub fn adds(&self, record: &str) {
        assert!(self.tries(&["local_data", record]), "unbound does not take {record}");
    }

    /// Removes a name.
    pub fn forgets(&self, name: &str) {
        assert!(self.tries(&["local_data_remove", name]), "unbound does not forget {name}");
    }

    /// Stops it; queries get no answer any more.
    pub fn stops(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again without records.
    pub fn starts_again(&mut self) {
        self.stops();
        self.child = spawn(&self.dir);
        self.is_ready();
    }

    fn tries(&self, words: &[&str]) -> bool {
        let config = self.dir.join("unbound.conf").display().to_string();
        let control = tool("unbound-control", "unbound");
        let all: Vec<&str> = ["-q", "-c", config.as_str()].into_iter().chain(words.iter().copied()).collect();
        run_tool(&control, &all, b"", super::PATIENCE).code == 0
    }
}

fn spawn(dir: &std::path::Path) -> Child {
    let unbound = tool("unbound", "unbound");
    Command::new(&unbound)
        .arg("-d")
        .arg("-c")
        .arg(dir.join("unbound.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|problem| panic!("{} does not start: {problem}", unbound.display()))
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stops();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
