//! How the record for `dns-01` is put into a zone (RFC 8555 section 8.4): by a signed update, or by a program
//! of the operator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::auth::{Alphabet, decode_base64};
use crate::dns::NAME_SERVER;
use crate::fields::Fields;
use crate::keys::{Each, Limit, Shape, duration, list, seconds, text};
use crate::report::{Findings, quote};
use crate::setting::table;
use crate::units::{Refused, refuse};
use crate::values::address::host_name;
use crate::values::said_once;

table! {
    /// Puts the record for `dns-01` into its zone by a dynamic update over TCP (RFC 2136), signed with
    /// HMAC-SHA256 (TSIG, RFC 8945), and takes it out when the authority has looked.
    #[derive(Eq)]
    pub struct DnsUpdate at "dns_update = { … }" {
        /// Name server that takes updates of the zone.
        server: SocketAddr = text(&NAME_SERVER).required().also(&["nameserver", "primary"]);
        /// Name of the key, as the name server has it.
        key_name: String = text(&KEY_NAME).required().also(&["tsig_key", "keyname"]);
        /// The key in base64, from a file or the environment: `"${file:/etc/weir/tsig.key}"`. It is shown to
        /// nobody.
        key: String = text(&TSIG_KEY).required().secret().also(&["secret", "tsig_secret"]);
        /// Zone that is updated.
        zone: Option<String> =
            text(&ZONE).default("the one that `server` says each record lies in (SOA)").also(&["origin"]);
        /// Name servers that must all answer with the record before the authority is told to look.
        wait_for: Vec<SocketAddr> =
            list(Each::Text(&NAME_SERVER))
                .default("those that `server` names for the zone (NS)")
                .also(&["servers", "nameservers"]);
        /// How long they may take, for each record.
        wait: Duration = duration(WAIT).also(&["propagation_timeout"]);
    }
}

table! {
    /// Puts the record for `dns-01` into its zone by a program, which is run as `PROGRAM present NAME VALUE`
    /// before the authority looks and as `PROGRAM cleanup NAME VALUE` afterwards. NAME ends in a dot.
    #[derive(Eq)]
    pub struct DnsProgram at "dns_program = { … }" {
        /// Program to run, as the user that Weir runs as. No shell is asked.
        program: PathBuf = text(&PROGRAM).required().also(&["path", "exec", "command", "hook"]);
        /// How long it may run, each time; then it is killed with all that it has started.
        timeout: Duration =
            duration(Limit::new(seconds(60), seconds(1), seconds(600), "an order waits for it"))
                .also(&["time_limit"]);
        /// Name servers that must all answer with the record before the authority is told to look.
        wait_for: Vec<SocketAddr> =
            list(Each::Text(&NAME_SERVER))
                .default("none: the program waits itself")
                .also(&["servers", "nameservers"]);
        /// How long they may take, for each record.
        wait: Duration = duration(WAIT).also(&["propagation_timeout"]);
    }
}

const WAIT: Limit<Duration> = Limit::new(seconds(60), seconds(1), seconds(600), "an order waits for it");

static KEY_NAME: Shape = Shape::new("the name of a key", "weir", |text| name(text, "the name of a key"));
static ZONE: Shape = Shape::new("a zone", "shop.example", |text| name(text, "a zone"));
static PROGRAM: Shape = Shape::new("a program", "/etc/weir/dns", program);
static TSIG_KEY: Shape = Shape::new("a key in base64", "c2l4dGVlbiBvY3RldHMuLi4=", tsig_key);

/// Fewest bytes of a key: RFC 8945 section 8 wants as many as the digest has; some name servers generate half
/// of that.
const KEY_BYTES: usize = 16;

/// Reports contradictions in one of the two tables.
pub(super) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    said_once(fields, "wait_for", findings);
}

/// The path must be absolute: neither the working directory nor `PATH` may determine what is run.
fn program(text: &str) -> Result<String, Refused> {
    if text.starts_with('/') && !text.ends_with('/') {
        return Ok(text.to_owned());
    }
    let hint = "expected its whole path, such as \"/etc/weir/dns\"; arguments are given by Weir";
    refuse(format!("{} is not the path of a program", quote(text)), hint)
}

/// A name in lower case, without the dot at its end.
fn name(text: &str, what: &str) -> Result<String, Refused> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix('.').unwrap_or(&lower);
    let message = format!("{} is not {what}", quote(text));
    if lower.is_empty() {
        return refuse(message, "expected a name such as \"shop.example\"");
    }
    host_name(lower).map_err(|hint| Refused { message, hint })?;
    Ok(lower.to_owned())
}

/// The messages never contain the text: it may be most of the key.
fn tsig_key(text: &str) -> Result<String, Refused> {
    let text = text.trim();
    match decode_base64(text.as_bytes(), Alphabet::Usual) {
        Some(bytes) if bytes.len() >= KEY_BYTES => Ok(text.to_owned()),
        Some(bytes) => refuse(
            format!("the key has {} bytes", bytes.len()),
            format!("expected at least {KEY_BYTES}, such as `tsig-keygen` or `keymgr -t` makes"),
        ),
        None => refuse(
            "the key is no base64 (RFC 4648 section 4)".to_owned(),
            "expected what stands behind `secret` in the file of `tsig-keygen` or `keymgr -t`, without quotes",
        ),
    }
}

impl DnsUpdate {
    /// The key's bytes. Empty if it is not base64, which reading refuses.
    pub fn key_bytes(&self) -> Vec<u8> {
        decode_base64(self.key.as_bytes(), Alphabet::Usual).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_base64_and_no_message_says_what_it_is() {
        assert!(tsig_key("c2l4dGVlbiBvY3RldHMuLi4=\n").is_ok());
        for bad in ["", "c2hvcnQ=", "c2l4dGVlbiBvY3RldHMuLi4=;", "c2l4dGVlbiBvY3RldHMu-i4="] {
            let refused = tsig_key(bad).unwrap_err();
            assert!(bad.is_empty() || !format!("{}{}", refused.message, refused.hint).contains(bad), "{bad}");
        }
    }

    #[test]
    fn a_program_is_named_by_its_whole_path() {
        assert!(program("/etc/weir/dns").is_ok());
        for bad in ["", "dns", "./dns", "/etc/weir/"] {
            assert!(program(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_zone_is_a_name_in_lower_case_without_its_last_dot() {
        assert!(matches!((ZONE.read)("Shop.Example."), Ok(name) if name == "shop.example"));
        assert!((ZONE.read)(".").is_err() && (ZONE.read)("a b").is_err());
    }
}
