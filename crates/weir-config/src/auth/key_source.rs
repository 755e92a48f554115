//! The source of the keys of `auth.jwt`: a file that is read with the config, or a URL from which they are
//! fetched while the config is in force.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use super::TokenAuth;
use crate::acme::url_of;
use crate::config::Config;
use crate::error_page::PageFile;
use crate::fields::{Fields, Value};
use crate::keys::Shape;
use crate::listener::Speaks;
use crate::report::{Findings, quote};
use crate::setting::One;
use crate::units::{Refused, refuse};
use crate::values::address::FILE;

/// Longest URL (bytes): it is shown in whole lines, and handed from one process to the next.
const URL_BYTES: usize = 2000;

/// A file of keys, or the URL of one.
pub(crate) static KEY_SOURCE: Shape =
    Shape::new("a file name or a URL", "https://login.example.com/jwks.json", key_source);

/// The source of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file, read with the config.
    File(PageFile),
    /// Fetched from this URL again and again.
    Url(String),
}

impl One for KeySource {
    fn of(value: &Value) -> Option<KeySource> {
        match value {
            Value::Text(text) if is_url(text) => Some(KeySource::Url(text.clone())),
            other => PageFile::of(other).map(KeySource::File),
        }
    }

    fn value(&self) -> Value {
        match self {
            KeySource::File(file) => file.value(),
            KeySource::Url(url) => Value::Text(url.clone()),
        }
    }

    fn blank() -> KeySource {
        KeySource::File(PageFile::blank())
    }
}

/// Whether it is a URL to fetch from, not a file.
pub(crate) fn is_url(text: &str) -> bool {
    text.contains("://")
}

fn key_source(text: &str) -> Result<String, Refused> {
    if !is_url(text) {
        return (FILE.read)(text);
    }
    let message = format!("{} is not the URL of a JWK set", quote(text));
    let (rest, is_plain) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (rest, false),
        (None, Some(rest)) => (rest, true),
        (None, None) => {
            return refuse(message, "expected a URL that begins with `https://`, or the name of a file");
        }
    };
    if text.len() > URL_BYTES {
        return refuse(message, format!("expected at most {URL_BYTES} bytes"));
    }
    url_of(rest, "a JWK set", message.clone())?;
    if is_plain && !is_own(rest) {
        let hint =
            "whoever is in the way could sign tokens: expected `https://`, or an address of this machine";
        return refuse(message, hint);
    }
    Ok(text.to_owned())
}

/// Whether the text after `://` refers to this machine, whatever name servers say.
fn is_own(rest: &str) -> bool {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, _)) if !authority.ends_with(']') => host,
        _ => authority,
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback()),
        None => host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback()),
    }
}

/// A JWK set that is fetched: its source and the rules. Two tables with the same settings share one.
#[derive(Clone, PartialEq, Eq)]
pub struct FetchedKeys {
    /// The whole URL; its query may contain a secret.
    pub url: String,
    /// The authorities to trust for its certificate; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// Longest time between two fetches.
    pub refresh: Duration,
    /// Shortest time between a fetch and the next one that a token with an unknown key causes.
    pub early_refresh: Duration,
    /// How long keys stay valid without a fetch that confirms them.
    pub stale: Duration,
    /// Timeout of a whole fetch.
    pub timeout: Duration,
    /// Most requests that may wait for a fetch (count).
    pub waiting: u32,
}

impl FetchedKeys {
    /// Most requests of one client that may wait for a fetch (count).
    pub fn waiting_of_client(&self) -> u32 {
        super::waiting_of_client(self.waiting)
    }

    /// The URL for display: without its query.
    pub fn shown(&self) -> &str {
        self.url.split('?').next().unwrap_or_default()
    }

    /// Whether the keys of `other` may be reused: they come from the same URL with the same authorities.
    pub fn is_same_place(&self, other: &FetchedKeys) -> bool {
        self.url == other.url && self.ca == other.ca
    }
}

impl fmt::Debug for FetchedKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FetchedKeys").field("url", &self.shown()).finish_non_exhaustive()
    }
}

impl TokenAuth {
    /// The set to fetch; `None` if the keys come from a file.
    pub fn fetched(&self) -> Option<FetchedKeys> {
        let Some(KeySource::Url(url)) = &self.keys else { return None };
        Some(FetchedKeys {
            url: url.clone(),
            ca: self.ca.clone(),
            refresh: self.refresh,
            early_refresh: self.early_refresh,
            stale: self.stale,
            timeout: self.fetch_timeout,
            waiting: self.waiting,
        })
    }
}

impl Config {
    /// All JWK sets that are fetched, each once, in the order in which they are named.
    pub fn fetched_keys(&self) -> Vec<FetchedKeys> {
        let mut all = Vec::new();
        for listener in &self.listeners {
            let Speaks::Http(http) = &listener.speaks else { continue };
            let of_routes = listener.routes.iter().map(|route| &route.auth);
            for auth in [&http.auth].into_iter().chain(of_routes).flatten() {
                let fetched = auth.jwt.as_ref().and_then(TokenAuth::fetched);
                all.extend(fetched.filter(|fetched| !all.contains(fetched)));
            }
        }
        all
    }
}

/// Keys that only have an effect if keys are fetched.
const OF_FETCHES: [&str; 6] = ["ca", "refresh", "early_refresh", "stale", "fetch_timeout", "waiting"];

/// Reports settings for fetches if nothing is fetched, and authorities if there is no TLS.
pub(super) fn check(jwt: &Fields, findings: &mut Findings<'_>) {
    if jwt.lacks("keys") || jwt.is_bad("keys") {
        return;
    }
    let url = jwt.text("keys").filter(|text| is_url(text));
    for entry in OF_FETCHES.iter().filter_map(|name| jwt.get(name)) {
        if url.is_none() {
            let hint = "expected `keys = \"https://…\"` beside it; a file is read at each reload";
            findings.error(entry.key, format!("`{}` needs `keys` that are fetched", entry.name), hint);
        }
    }
    if let (Some(url), Some(ca)) = (url, jwt.get("ca"))
        && url.starts_with("http://")
    {
        let hint = "expected `keys = \"https://…\"` beside it, or leave it out";
        findings.error(ca.key, "`ca` needs `keys` over TLS", hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_a_file_or_over_tls_or_from_this_machine() {
        let good = |text: &str| key_source(text).is_ok();
        assert!(good("/etc/weir/jwks.json") && good("jwks.json"));
        assert!(good("https://login.example/realms/shop/certs?x=1") && good("https://[2001:db8::1]:8443/a"));
        assert!(good("http://127.0.0.1:8080/a") && good("http://[::1]/a") && good("http://127.9.9.9"));
        for bad in [
            "http://login.example/jwks",
            "http://localhost/jwks",
            "http://10.0.0.1/jwks",
            "http://127.0.0.1.evil.example/jwks",
            "http://[::2]/jwks",
            "HTTPS://login.example/jwks",
            "ftp://login.example/jwks",
            "https://user@login.example/jwks",
            "https:///jwks",
            "https://login.example/j wks",
        ] {
            assert!(!good(bad), "{bad}");
        }
        assert!(!good(&format!("https://login.example/{}", "x".repeat(URL_BYTES))));
    }

    #[test]
    fn the_query_of_a_url_is_shown_to_nobody() {
        let keys = TokenAuth {
            keys: Some(KeySource::Url("https://login.example/jwks?token=secret".to_owned())),
            ..TokenAuth::default()
        };
        let fetched = keys.fetched().unwrap();
        assert_eq!(fetched.shown(), "https://login.example/jwks");
        assert!(!format!("{fetched:?}").contains("secret"));
    }

    #[test]
    fn routes_that_say_the_same_share_what_is_fetched() {
        let keys = "jwt = { keys = \"https://login.example/jwks\", audience = \"AUDIENCE\" }";
        let of = |audience: &str| keys.replace("AUDIENCE", audience);
        let text = format!(
            "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\nauth = {{ {} }}\n[[listener.web.route]]\npath = '/a'\n\
             pool = 'app'\nauth = {{ {} }}\n[[listener.web.route]]\npath = '/b'\npool = 'app'\n[pool.app]\nbackends = \
             ['10.0.0.1:80']\n",
            of("shop"),
            of("other")
        );
        let config = crate::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(config.fetched_keys().len(), 1);
    }
}
