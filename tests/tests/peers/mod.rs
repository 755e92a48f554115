//! Limits of rate that several Weirs count together (`[peers]`).

mod certified;
mod count;
mod line;
mod lives;
mod told;
mod trouble;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_tests::dialogue::{Setup, Weir, free_address, until};

/// A file with a secret, for its owner alone. Removed when dropped.
pub struct Secret(PathBuf);

impl Secret {
    pub fn of(text: &str) -> Secret {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("weir-e2e-peers-{}-{number}", std::process::id()));
        fs::write(&file, text).expect("write a secret");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
        Secret(file)
    }

    pub fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A Weir that has its peers at these addresses, and whose listener has these keys.
pub fn config(addresses: &[SocketAddr], keys: &str) -> String {
    let addresses: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        r#"
        [peers]
        bind = "@peers"
        addresses = [{}]
        secret_file = "@secret"
        [listener.web]
        bind = "@web"
        {keys}
        [[listener.web.route]]
        path = "/*"
        respond = {{ status = 200, body = "ok" }}
        "#,
        addresses.join(", ")
    )
}

/// Starts one of the Weirs with this secret, which listens at `at`.
pub fn start(at: SocketAddr, others: &[SocketAddr], secret: &Secret, keys: &str) -> Weir {
    Setup::of(&config(others, keys)).with("peers", at).with("secret", secret.0.display()).start()
}

/// Weirs that have found each other. All have the same list, their own address among it.
pub fn group(count: usize, secret: &Secret, keys: &str) -> Vec<Weir> {
    let addresses: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
    let weirs: Vec<Weir> = addresses.iter().map(|at| start(*at, &addresses, secret, keys)).collect();
    weirs.iter().for_each(|weir| finds(weir, count - 1));
    weirs
}

/// Waits until this Weir tells so many others all it counts, and listens to as many.
pub fn finds(weir: &Weir, others: usize) {
    until(&format!("{others} peers\n{}", weir.stderr()), || {
        let told = weir.metric("weir_peers_told", &[]);
        let heard = weir.metric("weir_peers_heard", &[]);
        (told == others as f64 && heard >= others as f64).then_some(())
    });
}

/// A request of this user, on a connection of its own.
pub fn ask(weir: &Weir, user: &str) -> u16 {
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\nconnection: close\r\n\r\n"));
    client.receives_response_to("GET").status
}

/// Tokens that this user has left, by the word of `weir explain`.
pub fn left(weir: &Weir, user: &str) -> u64 {
    let url = format!("http://{}/", weir.address("web"));
    let header = format!("x-user:{user}");
    let said = weir.command(&["explain", "http", "GET", &url, "--header", &header]).succeeded().to_owned();
    // `5 of 6 tokens left for …`
    let number = said.split(" tokens left").next().and_then(|before| before.split_whitespace().rev().nth(2));
    let number = number.and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("no tokens in {said}"))
}

/// Waits until this user has so many tokens left there.
pub fn has_left(weir: &Weir, user: &str, tokens: u64) {
    until(&format!("{tokens} tokens of {user}, not {}\n{}", left(weir, user), weir.stderr()), || {
        (left(weir, user) == tokens).then_some(())
    });
}
