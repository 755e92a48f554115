//! TLS, by `openssl s_client` and `curl`, with certificates that each test makes for itself.

mod backends;
mod expiry;
mod handshakes;
mod mutual;
mod policy;
mod probes;
mod reload;
mod resumption;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use weir_tests::dialogue::{After, Backend, Finished, PATIENCE, Setup, Weir, run_tool, tool};

/// A folder with an authority and what it has signed; removed when dropped.
pub struct Authority {
    dir: PathBuf,
}

impl Authority {
    pub fn new() -> Authority {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-pki-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("make a directory");
        let authority = Authority { dir };
        authority.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=authority -keyout ca.key -out ca.pem",
        );
        authority
    }

    /// Signs a certificate for DNS names, in the files NAME.pem and NAME.key.
    pub fn signs(self, name: &str, names: &[&str]) -> Authority {
        self.signs_with(name, names, "ec -pkeyopt ec_paramgen_curve:P-256", 30)
    }

    pub fn signs_with(self, name: &str, names: &[&str], key: &str, days: i32) -> Authority {
        let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let extensions =
            format!("subjectAltName={}\nextendedKeyUsage=serverAuth,clientAuth\n", names.join(","));
        std::fs::write(self.dir.join("extensions"), extensions).expect("write");
        self.openssl(&format!(
            "req -newkey {key} -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        let signing = format!("-CA ca.pem -CAkey ca.key -CAcreateserial -days {days} -extfile extensions");
        self.openssl(&format!("x509 -req -in {name}.csr -out {name}.pem {signing}"));
        self
    }

    pub fn openssl(&self, words: &str) {
        let script = format!("cd '{}' && openssl {words}", self.dir.display());
        run_tool(Path::new("/bin/sh"), &["-c", &script], b"", PATIENCE).succeeded();
    }

    pub fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    pub fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.join(file)).expect("read")
    }

    /// A Weir with every PEM file of this authority in its directory.
    pub fn setup(&self, config: &str) -> Setup {
        let files = std::fs::read_dir(&self.dir).expect("list").map(|entry| entry.expect("entry").path());
        files.fold(Setup::of(config), |setup, file| {
            let name = file.file_name().expect("name").to_string_lossy().into_owned();
            if !name.ends_with(".pem") && !name.ends_with(".key") {
                return setup;
            }
            setup.with_file(&name, &std::fs::read_to_string(&file).expect("read"))
        })
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// `openssl s_client`, told to send `input`; it ends when Weir closes or its input does.
pub fn s_client(address: SocketAddr, words: &str, input: &str) -> Finished {
    let address = address.to_string();
    let mut arguments = vec!["s_client", "-connect", &address, "-ign_eof"];
    arguments.extend(words.split_whitespace());
    run_tool(&tool("openssl", "openssl"), &arguments, input.as_bytes(), PATIENCE)
}

/// A request after which Weir closes.
pub const LAST: &str = "GET / HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\r\n";

/// Asks `https://HOST/` of a listener with curl; everything it says, and the status at the end.
pub fn curl(weir: &Weir, listener: &str, host: &str, more: &[&str]) -> Finished {
    let address = weir.address(listener);
    let resolve = format!("{host}:{}:{}", address.port(), address.ip());
    let url = format!("https://{host}:{}/", address.port());
    let mut arguments =
        vec!["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--resolve", &resolve];
    arguments.extend(["--write-out", "\nstatus %{http_code}"]);
    arguments.extend(more);
    arguments.push(&url);
    run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE)
}

/// A backend that answers with the request's head.
pub fn mirror() -> Backend {
    Backend::serving(|request, wire| {
        wire.answers(200, &[], &request.head);
        After::Keep
    })
}
