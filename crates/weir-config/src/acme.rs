//! `acme` of a listener's `tls`: certificates ordered from a certificate authority (RFC 8555).

mod dns;
mod on_demand;

use std::path::PathBuf;

pub use self::dns::{DnsProgram, DnsUpdate};
pub use self::on_demand::OnDemand;
use crate::auth::{Alphabet, decode_base64};
use crate::fields::{Fields, Value};
use crate::keys::{Each, Shape, list, list_or, table as below, text, text_or};
use crate::report::{Findings, quote};
use crate::setting::{Section as _, table, words};
use crate::units::{Refused, refuse};
use crate::values::address::{FOLDER, PEM_FILE, host_name};
use crate::values::http::uri_characters;
use crate::values::said_once;

table! {
    /// One certificate for all of `domains`, ordered when there is none yet and renewed when its authority
    /// suggests it (RFC 9773), or else when a third of its life is left. Until the first has come, handshakes
    /// that no other certificate is for are refused. Listeners with the same `directory` and `domains` share
    /// it. In double brackets there may be several, each with an order of its own.
    #[derive(Eq)]
    pub struct Acme at "acme = { … }" {
        /// The certificate authority: the URL of its directory. To name one is to agree to its terms of
        /// service.
        directory: String =
            text(&DIRECTORY_URL).required().also(&["server", "url", "ca_url", "endpoint"]);
        /// Names that the certificate is to be for. The authority connects to each of them: on port 80 for
        /// `http-01`, on port 443 for `tls-alpn-01`. For `dns-01` it asks name servers, and only by that a
        /// wildcard (`"*.shop.example"`) is proved. Beside `on_demand` they are what may be ordered at all,
        /// each name for itself: `"*.shop.example"` stands for all names with one part before the first dot.
        domains: Vec<String> =
            list(Each::Text(&DOMAIN))
                .default("none: expected unless there is `on_demand`, which is then for any name")
                .also(&["domain", "names", "hosts"]);
        /// Orders certificates when clients ask for them, in place of one that is kept for all `domains`.
        on_demand: Option<OnDemand> =
            below(OnDemand::TABLE).default("off").also(&["on_demand_tls", "ondemand"]);
        /// Whom the authority may write to.
        contact: Vec<String> =
            list(Each::Text(&CONTACT)).default("nobody").also(&["email", "contacts"]);
        /// Ways to prove that the domains are ours, in the order in which they are tried.
        challenges: Vec<AcmeChallenge> =
            list_or(Each::Word(AcmeChallenge::WORDS), &["http-01", "tls-alpn-01"])
                .default("`[\"http-01\", \"tls-alpn-01\"]`, the first only with a listener for it")
                // If given, each challenge must have a listener that can answer it; if not, those count that
                // have one.
                .brief()
                .also(&["challenge"]);
        /// The account with the authority that this one belongs to (RFC 8555 section 7.3.4), for authorities
        /// that know their customers by other means.
        external_account: Option<ExternalAccount> =
            below(ExternalAccount::TABLE).default("none").also(&["eab", "external_account_binding"]);
        /// How the record for `dns-01` is put into its zone: by a signed update.
        dns_update: Option<DnsUpdate> =
            below(DnsUpdate::TABLE).default("none").also(&["rfc2136", "nsupdate"]);
        /// How the record for `dns-01` is put into its zone: by a program.
        dns_program: Option<DnsProgram> =
            below(DnsProgram::TABLE).default("none").also(&["dns_hook", "manual_auth_hook", "exec"]);
        /// PEM file of the authorities that the directory's own certificate must come from.
        ca: Option<PathBuf> = text(&PEM_FILE).default("those of the system").also(&["ca_file"]);
        /// Folder for the account's key, certificates and their keys. It is made when it is not there; nobody
        /// else may read what is in it.
        store: PathBuf = text_or(&FOLDER, "/var/lib/weir/acme").also(&["storage", "state", "dir"]);
    }
}

table! {
    /// What an authority gives its customers so that they may make an account for ACME.
    #[derive(Eq)]
    pub struct ExternalAccount at "external_account = { … }" {
        /// By what the authority knows the key.
        key_id: String = text(&KEY_ID).required().also(&["kid", "id", "eab_kid"]);
        /// The key in base64url, from a file or the environment: `"${env:EAB_KEY}"`. It is shown to nobody,
        /// and needed only until the account is made.
        key: String = text(&EXTERNAL_KEY).required().secret().also(&["hmac_key", "hmac", "eab_hmac_key"]);
    }
}

words! {
    /// A way to prove to a certificate authority that a domain is ours.
    pub enum AcmeChallenge {
        Http01 = "http-01": "answered by every listener that speaks HTTP without TLS, before its routes are looked at",
        TlsAlpn01 = "tls-alpn-01": "answered by every listener with TLS, while a challenge is open",
        Dns01 = "dns-01": "answered by the domain's name servers, with a record that `dns_update` or `dns_program` puts there",
    }
}

static DIRECTORY_URL: Shape =
    Shape::new("a URL", "https://acme-v02.api.letsencrypt.org/directory", directory);
static DOMAIN: Shape = Shape::new("a domain", "shop.example", domain);
static CONTACT: Shape = Shape::new("a mail address", "mailto:ops@shop.example", contact);

static KEY_ID: Shape = Shape::new("the name of a key", "kid-1", key_id);
static EXTERNAL_KEY: Shape = Shape::new("a key in base64url", "c2l4dGVlbiBvY3RldHMuLi4", external_key);

/// Checks one `acme` of `listener`. `answers_plainly` says whether some listener can answer `http-01`;
/// `before` holds the orders before it, each with its listener.
pub(crate) fn check(
    listener: &str,
    own: &Acme,
    fields: &Fields,
    answers_plainly: bool,
    before: &[(&str, &Acme)],
    findings: &mut Findings<'_>,
) {
    said_once(fields, "domains", findings);
    said_once(fields, "challenges", findings);
    for (at, value) in fields.list("challenges") {
        let is_http = matches!(value, Value::Word(word) if *word == AcmeChallenge::Http01.word());
        if is_http && !answers_plainly {
            let hint = "expected one that port 80 of the domains leads to, such as `[listener.web]` with `bind = \"0.0.0.0:80\"`";
            findings.error(*at, "`http-01` needs a listener that speaks HTTP without TLS", hint);
        }
    }
    let of_listener: Vec<&Acme> =
        before.iter().filter(|(other, _)| *other == listener).map(|(_, acme)| *acme).collect();
    on_demand::check(own, fields, &of_listener, findings);
    proved_by_dns(own, fields, findings);
    for (other, theirs) in before {
        if !is_same_certificate(own, theirs) {
            continue;
        }
        if *other == listener {
            let hint = "expected other `domains`, or only one of the two";
            findings.error(fields.at, "one certificate is ordered twice for this listener", hint);
        } else if !is_ordered_alike(own, theirs) {
            let hint =
                format!("listener `{other}` says other things of the same certificate; expected the same");
            findings.error(fields.at, "one certificate can't be ordered in two ways", hint);
        }
    }
}

/// Checks the settings that `dns-01` needs, and those that need `dns-01`.
fn proved_by_dns(own: &Acme, fields: &Fields, findings: &mut Findings<'_>) {
    let is_used = own.challenges.contains(&AcmeChallenge::Dns01);
    let ways = ["dns_update", "dns_program"].map(|name| fields.get(name));
    let at = fields.list("challenges").iter();
    let mut at = at
        .filter(|(_, value)| matches!(value, Value::Word(word) if *word == AcmeChallenge::Dns01.word()))
        .map(|(at, _)| *at);
    match (at.next_back(), ways) {
        (_, [Some(update), Some(program)]) => {
            let hint = format!("expected one of them; the other is at {}", findings.place(update.key));
            findings.error(program.key, "`dns_program` cannot stand beside `dns_update`", hint);
        }
        (Some(at), [None, None]) => {
            let hint = "expected `dns_update = { server = \"10.0.0.53\", key_name = \"weir\", key = \"${file:/etc/weir/tsig.key}\" }` \
                        beside it, or `dns_program = { program = \"/etc/weir/dns\" }`";
            findings.error(at, "`dns-01` needs somebody who puts the record there", hint);
        }
        _ => {}
    }
    for entry in ways.into_iter().flatten().filter(|_| !is_used) {
        let hint = "expected `challenges = [\"dns-01\"]` beside it, or leave it out";
        findings.error(entry.key, format!("`{}` needs `dns-01`", entry.name), hint);
    }
    for name in ["dns_update", "dns_program"] {
        if let Some(below) = fields.table(name) {
            dns::check(below, findings);
        }
    }
    for (at, value) in fields.list("domains") {
        if !is_used
            && own.on_demand.is_none()
            && let Value::Text(domain) = value
            && domain.starts_with("*.")
        {
            let hint = "a wildcard is proved by DNS alone: expected `challenges = [\"dns-01\"]`, with `dns_update` or `dns_program`";
            findings.error(*at, format!("`{domain}` needs `dns-01`"), hint);
        }
    }
}

fn sorted(domains: &[String]) -> Vec<&String> {
    let mut domains: Vec<_> = domains.iter().collect();
    domains.sort();
    domains
}

fn is_same_certificate(one: &Acme, other: &Acme) -> bool {
    one.directory == other.directory
        && one.store == other.store
        && one.external_key_id() == other.external_key_id()
        && one.on_demand.is_some() == other.on_demand.is_some()
        && sorted(&one.domains) == sorted(&other.domains)
}

/// Whether all other settings are equal, too.
fn is_ordered_alike(one: &Acme, other: &Acme) -> bool {
    *one == Acme { domains: one.domains.clone(), ..other.clone() }
}

impl Acme {
    /// The same settings for one requested name: one certificate, stored like any other.
    pub fn of_name(&self, name: &str) -> Acme {
        Acme { domains: vec![name.to_owned()], on_demand: None, ..self.clone() }
    }

    /// The authority's identifier for the key of the external account; `None` without such an account.
    pub fn external_key_id(&self) -> Option<&str> {
        self.external_account.as_ref().map(|account| account.key_id.as_str())
    }
}

impl ExternalAccount {
    /// The key's bytes. Empty if it is not base64, which reading refuses.
    pub fn key_bytes(&self) -> Vec<u8> {
        decode_base64(self.key.as_bytes(), Alphabet::Url).unwrap_or_default()
    }
}

fn key_id(text: &str) -> Result<String, Refused> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refuse(
            format!("{} is not the name of a key", quote(text)),
            "expected what the authority calls key id (`kid`)",
        );
    }
    Ok(text.to_owned())
}

/// The messages never contain the text: it may be most of the key.
fn external_key(text: &str) -> Result<String, Refused> {
    // Some authorities show the key in the standard alphabet, but RFC 8555 uses the URL one.
    let url = text.trim().replace('+', "-").replace('/', "_");
    match decode_base64(url.as_bytes(), Alphabet::Url) {
        Some(bytes) if !bytes.is_empty() => Ok(url),
        _ => refuse(
            "the key is no base64url (RFC 4648 section 5)".to_owned(),
            "expected what the authority calls HMAC key, as it shows it",
        ),
    }
}

fn directory(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not the URL of a directory", quote(text));
    let Some(rest) = text.strip_prefix("https://") else {
        let hint = match text.split_once("://") {
            Some(("http", rest)) => {
                format!("keys are agreed on with it, so only over TLS: \"https://{rest}\"")
            }
            Some(_) => "expected a URL that begins with `https://`".to_owned(),
            None => format!("did you mean \"https://{text}\"?"),
        };
        return refuse(message, hint);
    };
    url_of(rest, "a directory", message)?;
    Ok(text.to_owned())
}

/// Checks the part after the scheme of a URL; `what` says what the URL is for.
pub(crate) fn url_of(rest: &str, what: &str, message: String) -> Result<(), Refused> {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if authority.contains('@') || rest.contains('#') {
        return refuse(message, format!("{what} has neither a user (`@`) nor a fragment (`#`)"));
    }
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return refuse(message, "expected a port from 1 to 65535 behind the `:`");
    }
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_address = inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    if host.is_empty() {
        return refuse(message, "expected a host behind `://`");
    }
    if !is_address {
        host_name(host).map_err(|hint| Refused { message: message.clone(), hint })?;
    }
    uri_characters(rest).map_err(|hint| Refused { message, hint })
}

fn domain(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a domain that a certificate can be got for", quote(text));
    let lower = text.to_ascii_lowercase();
    if lower.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() {
        return refuse(message, "expected a name, not an address");
    }
    if let Some(name) = lower.strip_suffix('.') {
        return refuse(message, format!("leave out the last dot: \"{name}\""));
    }
    if let Some((_, rest)) = lower.split_once("://") {
        let host = rest.split(['/', ':']).next().unwrap_or(rest);
        return refuse(message, format!("leave out the scheme: \"{host}\""));
    }
    if lower.is_empty() || lower.contains('_') {
        return refuse(message, "expected a host name such as \"shop.example\"");
    }
    let host = lower.strip_prefix("*.").unwrap_or(&lower);
    if host != lower && !host.contains('.') {
        return refuse(message, "expected a wildcard of a domain such as \"*.shop.example\"");
    }
    host_name(host).map_err(|hint| Refused { message, hint })?;
    Ok(lower)
}

fn contact(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a contact", quote(text));
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let is_address = address.split_once('@').is_some_and(|(user, host)| {
        let plain =
            |c: char| c.is_ascii_graphic() && !matches!(c, ',' | ';' | '<' | '>' | '"' | '?' | '&' | '%');
        !user.is_empty() && user.chars().all(plain) && host_name(host).is_ok() && !host.is_empty()
    });
    match (text.starts_with("mailto:"), is_address) {
        (true, true) => Ok(text.to_owned()),
        (false, true) => refuse(message, format!("a contact is a URL: \"mailto:{text}\"")),
        _ => refuse(message, "expected a mail address such as \"mailto:ops@shop.example\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(read: Result<String, Refused>) -> String {
        read.unwrap_err().hint
    }

    #[test]
    fn a_directory_is_a_url_with_tls() {
        for good in ["https://ca.example/directory", "https://127.0.0.1:14000/dir", "https://[::1]:1/d?x=1"] {
            assert!(directory(good).is_ok(), "{good}");
        }
        assert!(hint(directory("http://ca.example/d")).ends_with("\"https://ca.example/d\""));
        assert_eq!(hint(directory("ca.example/d")), "did you mean \"https://ca.example/d\"?");
        for bad in [
            "",
            "https://",
            "https://a@b/",
            "https://b/#x",
            "https://b:0/",
            "https://b:x/",
            "https://b /",
            "ftp://b/",
        ] {
            assert!(directory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_domain_is_one_name_in_lower_case() {
        assert!(matches!(domain("Shop.Example"), Ok(name) if name == "shop.example"));
        assert!(matches!(domain("*.Shop.example"), Ok(name) if name == "*.shop.example"));
        assert!(hint(domain("*.example")).contains("wildcard"));
        assert!(hint(domain("10.0.0.1")).contains("not an address"));
        assert_eq!(hint(domain("https://shop.example/x")), "leave out the scheme: \"shop.example\"");
        for bad in
            ["", "shop.example.", "a_b.example", "[::1]", "a b", "sh\u{f6}p.example", "a.*.example", "*"]
        {
            assert!(domain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_external_key_is_taken_in_both_alphabets_and_no_message_says_what_it_is() {
        assert!(matches!(external_key(" ab+/\n"), Ok(key) if key == "ab-_"));
        for bad in ["", "secret!", "abcde"] {
            let refused = external_key(bad).unwrap_err();
            assert!(bad.is_empty() || !format!("{}{}", refused.message, refused.hint).contains(bad), "{bad}");
        }
        assert!(key_id("kid 1").is_err() && key_id("").is_err());
    }

    #[test]
    fn a_contact_is_a_mail_url() {
        assert!(contact("mailto:ops@shop.example").is_ok());
        assert_eq!(hint(contact("ops@shop.example")), "a contact is a URL: \"mailto:ops@shop.example\"");
        for bad in
            ["", "mailto:", "mailto:ops", "mailto:a,b@shop.example", "mailto:a@shop.example?cc=b", "tel:1"]
        {
            assert!(contact(bad).is_err(), "{bad}");
        }
    }
}
