//! `acme` of a listener's `tls`: one certificate, ordered from a certificate authority (RFC 8555).

use std::path::PathBuf;

use crate::fields::{Fields, Value};
use crate::keys::{Each, Shape, list, list_or, text, text_or};
use crate::report::{Findings, quote};
use crate::setting::{table, words};
use crate::units::{Refused, refuse};
use crate::values::address::{FOLDER, PEM_FILE, host_name};
use crate::values::http::uri_characters;
use crate::values::said_once;

table! {
    /// One certificate for all of `domains`, ordered when there is none yet and renewed when its authority
    /// suggests it (RFC 9773), or else when a third of its life is left. Until the first has come, handshakes
    /// that no other certificate is for are refused. Listeners with the same `directory` and `domains` share
    /// it.
    #[derive(Eq)]
    pub struct Acme at "acme = { … }" {
        /// The certificate authority: the URL of its directory. To name one is to agree to its terms of
        /// service.
        directory: String =
            text(&DIRECTORY_URL).required().also(&["server", "url", "ca_url", "endpoint"]);
        /// Names that the certificate is to be for. The authority connects to each of them: on port 80 for
        /// `http-01`, on port 443 for `tls-alpn-01`.
        domains: Vec<String> =
            list(Each::Text(&DOMAIN)).required().also(&["domain", "names", "hosts"]);
        /// Whom the authority may write to.
        contact: Vec<String> =
            list(Each::Text(&CONTACT)).default("nobody").also(&["email", "contacts"]);
        /// Ways to prove that the domains are ours, in the order in which they are tried.
        challenges: Vec<AcmeChallenge> =
            list_or(Each::Word(AcmeChallenge::WORDS), &["http-01", "tls-alpn-01"])
                .default("`[\"http-01\", \"tls-alpn-01\"]`, the first only with a listener for it")
                // Said, each must have a listener that meets it; unsaid, those count that have one.
                .brief()
                .also(&["challenge"]);
        /// PEM file of the authorities that the directory's own certificate must come from.
        ca: Option<PathBuf> = text(&PEM_FILE).default("those of the system").also(&["ca_file"]);
        /// Folder for the account's key, certificates and their keys. It is made when it is not there; nobody
        /// else may read what is in it.
        store: PathBuf = text_or(&FOLDER, "/var/lib/weir/acme").also(&["storage", "state", "dir"]);
    }
}

words! {
    /// A way to prove to a certificate authority that a domain is ours.
    pub enum AcmeChallenge {
        Http01 = "http-01": "answered by every listener that speaks HTTP without TLS, before its routes are looked at",
        TlsAlpn01 = "tls-alpn-01": "answered by every listener with TLS, while a challenge is open",
    }
}

static DIRECTORY_URL: Shape =
    Shape::new("a URL", "https://acme-v02.api.letsencrypt.org/directory", directory);
static DOMAIN: Shape = Shape::new("a domain", "shop.example", domain);
static CONTACT: Shape = Shape::new("a mail address", "mailto:ops@shop.example", contact);

/// A listener's `tls.acme`. `answers_plainly` says whether some listener can answer `http-01`, `before` holds
/// what earlier listeners order.
pub(crate) fn check(
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
    for (other, theirs) in before {
        if is_same_certificate(own, theirs) && !is_ordered_alike(own, theirs) {
            let hint =
                format!("listener `{other}` says other things of the same certificate; expected the same");
            findings.error(fields.at, "one certificate can't be ordered in two ways", hint);
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
        && sorted(&one.domains) == sorted(&other.domains)
}

fn is_ordered_alike(one: &Acme, other: &Acme) -> bool {
    one.contact == other.contact && one.challenges == other.challenges && one.ca == other.ca
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
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if authority.contains('@') || text.contains('#') {
        return refuse(message, "a directory has neither a user (`@`) nor a fragment (`#`)");
    }
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return refuse(message, "expected a port from 1 to 65535 behind the `:`");
    }
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_address = inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    if host.is_empty() {
        return refuse(message, "expected a host behind `https://`");
    }
    if !is_address {
        host_name(host).map_err(|hint| Refused { message: message.clone(), hint })?;
    }
    uri_characters(rest).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

fn domain(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a domain that a certificate can be got for", quote(text));
    if text.starts_with("*.") {
        return refuse(
            message,
            "a wildcard is proved by DNS, which Weir does not do: list the names, or get that certificate by other means",
        );
    }
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
    host_name(&lower).map_err(|hint| Refused { message, hint })?;
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
        assert!(hint(domain("*.shop.example")).contains("wildcard"));
        assert!(hint(domain("10.0.0.1")).contains("not an address"));
        assert_eq!(hint(domain("https://shop.example/x")), "leave out the scheme: \"shop.example\"");
        for bad in ["", "shop.example.", "a_b.example", "[::1]", "a b", "sh\u{f6}p.example"] {
            assert!(domain(bad).is_err(), "{bad}");
        }
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
