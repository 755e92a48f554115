//! Certificates that a test makes for itself.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{PATIENCE, Setup, run_tool};

/// A folder with a certificate authority and what it has signed; removed when dropped.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
}

impl Authority {
    /// A new one, with its certificate in `ca.pem`.
    #[expect(clippy::new_without_default, reason = "it makes files")]
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

    /// [`Self::signs`] with a key of this kind, as `openssl req -newkey` names it, and for this many days.
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

    /// Runs `openssl` with these words in its folder.
    pub fn openssl(&self, words: &str) {
        let script = format!("cd '{}' && openssl {words}", self.dir.display());
        run_tool(Path::new("/bin/sh"), &["-c", &script], b"", PATIENCE).succeeded();
    }

    /// Where a file of its is.
    pub fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    /// What a file of its holds.
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
