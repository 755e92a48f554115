//! `sticky` of a pool: the cookie that keeps a client on its backend, and its attributes.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{DAY, Key, Kind, Limit, Shape, duration, flag, seconds, text, text_or, yes_or_no};
use crate::report::{Findings, quote};
use crate::setting::{table, words};
use crate::units::{Refused, refuse};
use crate::values::address::{FILE, host_name};
use crate::values::http::{COOKIE_NAME, uri_characters};

/// The `Path` of a cookie (RFC 6265 section 4.1.2.4).
static COOKIE_PATH: Shape = Shape::new("a cookie's path", "/shop", cookie_path);
/// The `Domain` of a cookie (RFC 6265 section 4.1.2.3).
static COOKIE_DOMAIN: Shape = Shape::new("a cookie's domain", "shop.example", cookie_domain);

table! {
    /// Keeps a client on its backend as long as that is up.
    #[derive(Eq)]
    pub struct Sticky at "sticky = { … }" {
        /// Name of the cookie.
        cookie: String = text(&COOKIE_NAME).required().also(&["name"]);
        /// File whose trimmed content, 16 bytes at least, seals the cookie; nodes that share it agree.
        secret_file: Option<PathBuf> = text(&FILE)
            .default("a secret of this machine (`/etc/machine-id`)")
            .also(&["secret", "key_file"]);
        /// Paths that browsers send it for: this one and those below.
        path: String = text_or(&COOKIE_PATH, "/").brief();
        /// Hosts that browsers send it to: this one and those below.
        domain: Option<String> = text(&COOKIE_DOMAIN).default("the host that was asked, alone");
        /// How long browsers keep it from when it was set, in whole seconds; it is not set again before.
        max_age: Option<Duration> =
            duration(Limit::optional(
                seconds(1),
                DAY.saturating_mul(400),
                "browsers keep no cookie for longer than 400 days",
            ))
            .default("until the browser is closed")
            .also(&["maxage", "expires", "maxlife", "ttl"]);
        /// Which requests that other sites cause have it.
        same_site: SameSite =
            Key::new(Kind::Word(SameSite::WORDS, Some("lax"))).brief().also(&["samesite"]);
        /// Whether browsers send it over TLS alone. `true` is for a Weir behind who ends TLS.
        secure: Option<bool> = yes_or_no().default("where it was set over TLS");
        /// Whether scripts of a page are kept from it.
        http_only: bool = flag(true).brief().also(&["httponly"]);
        /// Keeps the cookie from backends: requests reach them without it.
        hidden: bool = flag(false).brief().also(&["indirect"]);
        /// Adds `cache-control: private` to each response that sets the cookie, so that no cache between Weir
        /// and browsers gives one client's cookie to others.
        private: bool = flag(false).brief().also(&["nocache", "no_cache"]);
    }
}

words! {
    /// Which requests that other sites cause have a cookie.
    pub enum SameSite {
        Lax = "lax": "those that lead the browser to this site, such as a link",
        Strict = "strict": "none",
        None = "none": "all: for pages that other sites have in a frame; needs `secure = true`",
    }
}

impl Sticky {
    /// The attributes after the cookie's value in `set-cookie`, with the leading `; ` (RFC 6265 section
    /// 4.1.1). `is_over_tls` says whether the request came over TLS. Allocates; called only when a cookie is
    /// set.
    pub fn attributes(&self, is_over_tls: bool) -> String {
        let mut text = format!("; Path={}", self.path);
        if let Some(domain) = &self.domain {
            text += "; Domain=";
            text += domain;
        }
        if let Some(age) = self.max_age {
            // Writing to a `String` can't fail.
            let _ = write!(text, "; Max-Age={}", age.as_secs());
        }
        if self.http_only {
            text += "; HttpOnly";
        }
        text += match self.same_site {
            SameSite::Lax => "; SameSite=Lax",
            SameSite::Strict => "; SameSite=Strict",
            SameSite::None => "; SameSite=None",
        };
        if self.secure.unwrap_or(is_over_tls) {
            text += "; Secure";
        }
        text
    }
}

fn cookie_path(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a cookie's path", quote(text));
    if !text.starts_with('/') {
        return refuse(message, "expected one that begins with `/`, such as \"/shop\"");
    }
    // A semicolon would end the attribute.
    if text.contains(';') {
        return refuse(message, "write \";\" as `%3B`");
    }
    match uri_characters(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(hint) => refuse(message, hint),
    }
}

fn cookie_domain(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a cookie's domain", quote(text));
    // Browsers ignore a leading dot (RFC 6265 section 5.2.3).
    let domain = text.strip_prefix('.').unwrap_or(text);
    if let Err(hint) = host_name(domain) {
        return refuse(message, hint);
    }
    if domain.parse::<IpAddr>().is_ok() || !domain.contains('.') || domain.ends_with('.') {
        return refuse(
            message,
            "expected one with hosts below it, such as \"shop.example\"; for one host alone leave it out",
        );
    }
    Ok(domain.to_ascii_lowercase())
}

/// Reports cookies that browsers would reject: each request would be balanced anew, without any error.
pub(super) fn check(pool: &Fields, findings: &mut Findings<'_>) {
    let Some(sticky) = pool.table("sticky") else { return };
    let is_secure = sticky.get("secure").is_some_and(|entry| matches!(entry.value, Value::Bool(true)));
    if let Some(entry) = sticky.get("same_site").filter(|entry| matches!(entry.value, Value::Word("none")))
        && !is_secure
    {
        let hint = "browsers keep no such cookie otherwise: add `secure = true`";
        findings.error(entry.key, "`same_site = \"none\"` needs `secure = true`", hint);
    }
    let Some(name) = sticky.text("cookie") else { return };
    // Browsers ignore the case of these prefixes (RFC 6265bis section 5.7).
    let begins = |prefix: &str| name.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
    let (host, prefix) = match () {
        () if begins("__Host-") => (true, "__Host-"),
        () if begins("__Secure-") => (false, "__Secure-"),
        () => return,
    };
    let at = sticky.at("cookie");
    if !is_secure {
        let hint = format!("browsers keep a cookie `{prefix}…` only so: add `secure = true`");
        findings.error(at, format!("cookie `{name}` needs `secure = true`"), hint);
    }
    let other_path = |entry: &&KeyValue| !matches!(&entry.value, Value::Text(path) if path == "/");
    let refused =
        [(sticky.get("domain"), "`domain`"), (sticky.get("path").filter(other_path), "a `path` but \"/\"")];
    for (entry, what) in refused {
        if let Some(entry) = entry.filter(|_| host) {
            let hint = format!(
                "browsers keep a cookie `__Host-…` only for one whole host ({}): leave it out, or take another name",
                findings.place(at)
            );
            findings.error(entry.key, format!("cookie `{name}` cannot have {what}"), hint);
        }
    }
}
