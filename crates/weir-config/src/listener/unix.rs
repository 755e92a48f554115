//! The Unix sockets of a listener: their settings, and keys that contradict them.

use crate::fields::{Fields, Value};
use crate::keys::{Shape, text, text_or};
use crate::listener::{Listener, Speaks};
use crate::protocol::{Protocol, spoken};
use crate::report::{Findings, Span, quote};
use crate::setting::{One as _, one, table};
use crate::units::{Refused, refuse};
use crate::values::address::UNIX_PEERS;
use crate::values::bind::Bind;
use crate::values::http::HttpVersion;

table! {
    /// Who may connect to Unix sockets that are files: whoever may write to the file.
    #[derive(Eq)]
    pub struct UnixSocket at "unix_socket = { … }" {
        /// Permissions of the file, in octal digits.
        mode: FileMode = text_or(&MODE, "0660").also(&["permissions", "perm"]);
        /// User whom the file belongs to: a name, or a number.
        owner: Option<String> = text(&ACCOUNT).default("whom Weir runs as").also(&["user", "uid"]);
        /// Group that the file belongs to: a name, or a number.
        group: Option<String> = text(&ACCOUNT).default("whom Weir runs as").also(&["gid"]);
    }
}

/// Permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

static MODE: Shape = Shape::new("permissions in octal digits", "0660", |text| {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if is_octal && mode <= 0o777 => Ok(FileMode(mode).to_string()),
        _ => refuse(
            format!("{} are no permissions", quote(text)),
            "expected three octal digits, such as \"0660\": owner and group may connect, others may not",
        ),
    }
});

one!(
    FileMode,
    Value::Text(text) => u32::from_str_radix(text, 8).ok().map(FileMode),
    |it| Value::Text(it.to_string()),
    FileMode(0o660)
);

impl std::fmt::Display for FileMode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:04o}", self.0)
    }
}

static ACCOUNT: Shape = Shape::new("a name or a number", "www-data", account);

fn account(text: &str) -> Result<String, Refused> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '$' | '@');
    if text.is_empty() || text.len() > 256 || !text.chars().all(is_good) {
        return refuse(
            format!("{} is no user or group", quote(text)),
            "expected a name as in /etc/passwd or /etc/group, or a number",
        );
    }
    Ok(text.to_owned())
}

/// Reports keys that a listener on Unix sockets cannot have. The kernel plane has its own check.
pub(crate) fn check(root: &Fields, listener: &Listener, fields: &Fields, findings: &mut Findings<'_>) {
    let binds = fields.list("bind").iter().filter_map(|(at, value)| Some((*at, Bind::of(value)?)));
    let (at_unix, inet): (Vec<_>, Vec<_>) = binds.partition(|(_, bind)| bind.unix().is_some());
    let is_file = |(_, bind): &(Span, Bind)| bind.unix().is_some_and(|name| name.starts_with('/'));
    if let Some(entry) = fields.get("unix_socket").filter(|_| !at_unix.iter().any(is_file)) {
        let hint = "no `bind` is a Unix socket that is a file";
        findings.warning(entry.key, "`unix_socket` has no effect", hint);
    }
    let Some((at, bind)) = at_unix.first() else { return };
    if let Some(protocol @ (Protocol::Udp | Protocol::Mysql)) = spoken(fields) {
        let hint = format!(
            "it is for http and tcp, and `{}` speaks {} ({})",
            listener.name,
            protocol.word(),
            findings.place(fields.at("protocol"))
        );
        findings.error(*at, format!("`{bind}` is a Unix socket"), hint);
        return;
    }
    if !inet.is_empty() || fields.is_bad("bind") || fields.list("bind").len() > at_unix.len() {
        return;
    }
    if let Speaks::Http(http) = &listener.speaks
        && http.versions.contains(&HttpVersion::H3)
    {
        let hint =
            format!("QUIC comes to an address and a port, and `bind` has none ({})", findings.place(*at));
        findings.error(fields.at("http"), "`h3` needs an address", hint);
    }
    if names_clients(listener) {
        return;
    }
    let hint = format!(
        "all clients come by a Unix socket ({}), which shows no address: expected `accept_proxy = \"unix:\"`{}",
        findings.place(*at),
        match listener.speaks {
            Speaks::Http(_) => ", or `trusted_proxies = \"unix:\"`, where a proxy in front says who they are",
            _ => ", where a proxy in front says who they are",
        }
    );
    if let Some(entry) = fields.get("max_connections_per_client") {
        findings.warning(entry.key, "`max_connections_per_client` has no effect", hint.clone());
    }
    pools_by_address(root, fields, &hint, findings);
}

/// Whether a proxy in front names the clients.
fn names_clients(listener: &Listener) -> bool {
    let is_told = |networks: &[ipnet::IpNet]| networks.iter().any(|network| network.contains(&UNIX_PEERS));
    is_told(&listener.accept_proxy) || is_told(&listener.http().trusted_proxies)
}

/// Reports pools that choose by an address that no client has.
fn pools_by_address(root: &Fields, listener: &Fields, hint: &str, findings: &mut Findings<'_>) {
    let routes = listener.tables("route").map(|(_, route)| route);
    let mut names: Vec<&str> =
        std::iter::once(listener).chain(routes).filter_map(|fields| fields.text("pool")).collect();
    names.sort_unstable();
    names.dedup();
    for pool in root.named("pool").filter(|pool| names.contains(&pool.name.as_str())) {
        let by = match pool.value("balance") {
            Some(Value::Word("source")) => pool.at("balance"),
            Some(Value::Word("hash" | "maglev")) => {
                let Some(hash) = pool.table("hash") else { continue };
                let key = hash.holds("key").and_then(|key| String::of(&key));
                if !matches!(key.as_deref(), Some("client_ip" | "flow")) {
                    continue;
                }
                pool.at("balance")
            }
            _ => continue,
        };
        let message = format!("pool `{}` chooses by the client's address, and there is none", pool.name);
        findings.error(by, message, hint.to_owned());
    }
}
