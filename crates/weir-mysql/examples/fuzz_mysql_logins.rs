//! Fuzzes greetings, logins, changes of user, commands and their attributes: no panic, and what was read is
//! the same when it is written and read again.
//!
//! `cargo run --release -p weir-mysql --example fuzz_mysql_logins -- --seconds 60`; `WEIR_SEED` repeats
//! a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::fmt::Debug;
use std::process::ExitCode;

use weir_mysql::authentication::LoginAnswer;
use weir_mysql::capability::Capabilities;
use weir_mysql::greeting::{FirstWord, ServerGreeting};
use weir_mysql::login::{ChangeUser, ClientFirst, ClientLogin, ConnectAttributes};
use weir_mysql::parameters::{ExecuteParts, QueryParts, write_query};

const SEEDS: &[&[u8]] = &[
    b"\x0a8.4.3\0\x01\0\0\0abcdefgh\0\xff\xff\xff\x02\0\xff\xdf\x15\0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0caching_sha2_password\0",
    b"\x0a5.5.5-10.11.6-MariaDB\0\x01\0\0\0abcdefgh\0\xfe\xf7\x2d\x02\0\xff\x81\x15\0\0\0\0\0\0\x1d\0\0\0ijklmnopqrst\0mysql_native_password\0",
    b"\x8d\xa2\xbf\x09\0\0\0\x01\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0app\0\x04abcdshop\0caching_sha2_password\0\x0a\x03_os\x05Linux",
    b"\x05\xae\x03\0\0\0\0\x01\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\x11app\0\x02xyshop\0\xff\0caching_sha2_password\0\x04\x01a\x01b",
    b"\x03\x01\x01\0\x01\xfe\0\x04role\x07primarySELECT 1",
    b"\x17\x02\0\0\0\x08\x01\0\0\0\x02\0\x01\x08\0\0\xfe\0\x04role\x05\0\0\0\0\0\0\0\x01x",
    b"\xfecaching_sha2_password\0abcdefghijklmnopqrst\0",
];

const PIECES: &[&[u8]] = &[
    b"\0",
    b"\xfc\xff\xff",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff",
    b"mysql_native_password\0",
    b"\xff\xff\xff\xff",
    b"\xfb",
];

fn main() -> ExitCode {
    fuzzing::run("logins", SEEDS, PIECES, |bytes, draws| {
        let mut capabilities = Capabilities::SPOKEN;
        for flag in [Capabilities::QUERY_ATTRIBUTES, Capabilities::CONNECT_ATTRS, Capabilities::PLUGIN_AUTH] {
            if draws.below(4) == 0 {
                capabilities = capabilities.without(flag);
            }
        }
        let mut outcome = 0;
        if let Ok(FirstWord::Greeting(greeting)) = FirstWord::parse(bytes) {
            outcome |= 1;
            let fits = (20..=246).contains(&greeting.auth_data.len())
                && greeting.capabilities.has(Capabilities::SECURE_CONNECTION | Capabilities::PLUGIN_AUTH)
                && !greeting.auth_data.ends_with(b"\0");
            if fits {
                let mut out = Vec::new();
                greeting.write(&mut out);
                same("greeting", &greeting, ServerGreeting::parse(&out))?;
            }
        }
        match ClientFirst::parse(bytes) {
            Ok(ClientFirst::Login(login)) => {
                outcome |= 2;
                outcome |= u64::from(ConnectAttributes::new(login.attributes).count() > 0) << 8;
                let mut out = Vec::new();
                login.write(&mut out);
                // A packet that ends early is written with what it left out.
                let zstd = login.capabilities.has(Capabilities::ZSTD_COMPRESSION_ALGORITHM);
                let level = login.zstd_level.or(zstd.then_some(3));
                same("login", &ClientLogin { zstd_level: level, ..login }, ClientLogin::parse(&out))?;
            }
            Ok(ClientFirst::Ssl(request)) => {
                outcome |= 4;
                let mut out = Vec::new();
                request.write(&mut out);
                same("request for TLS", &ClientFirst::Ssl(request), ClientFirst::parse(&out))?;
            }
            Err(_) => {}
        }
        if let Ok(change) = ChangeUser::parse(bytes, capabilities) {
            outcome |= 8;
            let mut out = Vec::new();
            change.write(&mut out, capabilities);
            same("change of user", &change, ChangeUser::parse(&out, capabilities))?;
        }
        if let Ok(query) = QueryParts::parse(bytes, capabilities) {
            outcome |= 16;
            let mut out = Vec::new();
            write_query(&mut out, capabilities, &query.attributes, &bytes[query.text_start..]);
            let again = QueryParts::parse(&out, capabilities).map(|again| again.attributes);
            same("attributes", &query.attributes, again)?;
        }
        if let Ok(execute) = ExecuteParts::parse(bytes, draws.below(9) as u16, capabilities) {
            outcome |= 32;
            let mut out = Vec::new();
            execute
                .write_with_types(&mut out, bytes, b"")
                .map_err(|error| format!("{execute:?}: {error}"))?;
            if out.len() != bytes.len() {
                return Err(format!("{execute:?}: {} bytes became {}", bytes.len(), out.len()));
            }
        }
        if LoginAnswer::parse(bytes, capabilities).is_ok() {
            outcome |= 64;
        }
        Ok(outcome)
    })
}

fn same<T: PartialEq + Debug, E: Debug>(what: &str, read: &T, again: Result<T, E>) -> Result<(), String> {
    match again {
        Ok(again) if again == *read => Ok(()),
        other => Err(format!("{what}: {read:?} is written and read as {other:?}")),
    }
}
