//! How a pool's backends are chosen and spoken to.

use std::time::Duration;

use weir_config::quoted;

use super::conversion::Conversion;
use super::scope::NginxScope;
use super::units::{duration_between, is_plain_host, nginx_time};
use super::variables::NginxPlace;
use crate::DirectiveVerdict;
use crate::write::line;

/// Writes how a backend is chosen.
pub fn balance(
    conversion: &mut Conversion<'_>,
    upstream: &NginxScope<'_>,
    place: &NginxPlace,
    body: &mut String,
) {
    let way = |name: &str| upstream.own(name).last().copied();
    if let Some(directive) = way("least_conn") {
        line(body, "balance", quoted("least-connections"));
        conversion.ledger.exact(directive, "`balance = \"least-connections\"`");
    } else if let Some(directive) = way("ip_hash") {
        line(body, "balance", quoted("source"));
        conversion.ledger.approximate(
            directive,
            "`balance = \"source\"`: by the whole address, where nginx takes three quarters of an IPv4 one",
        );
    } else if let Some(directive) = way("hash") {
        let (key, note) = match conversion.template(directive.word(0), place) {
            Ok(key) => (hash_key(&key), None),
            Err(bad) => ("client_ip".to_owned(), Some(bad)),
        };
        line(body, "balance", quoted("hash"));
        line(body, "hash", format!("{{ key = {} }}", quoted(&key)));
        match (note, directive.word(1)) {
            (Some(bad), _) => conversion
                .ledger
                .unsupported(directive, format!("by the client's address: Weir has no `${bad}` there")),
            (None, "consistent") => conversion.ledger.approximate(
                directive,
                "`balance = \"hash\"`, consistent; keys go to other backends than with nginx",
            ),
            (None, _) => conversion.ledger.approximate(
                directive,
                "`balance = \"hash\"`: always consistent; keys go to other backends than with nginx",
            ),
        }
    } else if let Some(directive) = way("random") {
        line(body, "balance", quoted("random-two"));
        match directive.word(0) {
            "two" => conversion.ledger.exact(directive, "`balance = \"random-two\"`"),
            _ => conversion
                .ledger
                .approximate(directive, "`balance = \"random-two\"`: the less loaded of two at random"),
        }
    } else if let Some(directive) = way("least_time") {
        line(body, "balance", quoted("least-time"));
        conversion
            .ledger
            .approximate(directive, "`balance = \"least-time\"`: of two the one that answers sooner");
    }
    for directive in upstream.own("queue") {
        let most: u64 = directive.word(0).parse().unwrap_or(1000);
        let time = directive.words.iter().find_map(|word| nginx_time(word.strip_prefix("timeout=")?));
        let time = duration_between(
            time.unwrap_or(Duration::from_secs(60)),
            Duration::from_millis(1),
            Duration::from_secs(3600),
        );
        line(body, "queue", format!("{{ max = {}, timeout = {time} }}", most.min(1_000_000)));
        conversion.ledger.exact(directive, "`queue` of the pool");
    }
}

/// The short name of a key, where it has one.
pub fn hash_key(template: &str) -> String {
    match template {
        "$path$query" => "uri".to_owned(),
        "$path" => "path".to_owned(),
        "$client_ip" => "client_ip".to_owned(),
        other => {
            for (family, short) in [("$header.", "header:"), ("$cookie.", "cookie:")] {
                if let Some(name) =
                    other.strip_prefix(family).filter(|name| !name.contains(['$', '/', ' ', '.']))
                {
                    return format!("{short}{name}");
                }
            }
            other.to_owned()
        }
    }
}

/// Writes what connections are kept.
pub fn keep_alive(conversion: &mut Conversion<'_>, upstream: &NginxScope<'_>, body: &mut String) {
    let idle = upstream.own("keepalive_timeout").last().copied();
    let most = upstream.own("keepalive").last().copied();
    let mut keys = Vec::new();
    if let Some(directive) = most {
        let number: u64 = directive.word(0).parse().unwrap_or(32);
        keys.push(format!("max = {}", number.min(65_536)));
        conversion.ledger.approximate(directive, "`keep_alive`: so many for each backend, of each worker");
    } else {
        conversion.ledger.unsaid(
            "keepalive",
            DirectiveVerdict::Approximate,
            "connections to backends are kept and used again, over HTTP/1.1 (`keep_alive = { max = 0 }` does not); before 1.29.7 nginx opens one for each request, by HTTP/1.0",
        );
    }
    if let Some(directive) = idle {
        let time = nginx_time(directive.word(0)).unwrap_or(Duration::from_secs(60));
        keys.push(format!(
            "idle = {}",
            duration_between(time, Duration::from_millis(100), Duration::from_secs(86_400))
        ));
        conversion.ledger.exact(directive, "`idle` of `keep_alive`");
    } else if most.is_some() {
        keys.push("idle = \"60s\"".to_owned());
    }
    for name in ["keepalive_requests", "keepalive_time"] {
        for directive in upstream.own(name) {
            conversion
                .ledger
                .approximate(directive, "left out: connections are kept until they are idle for too long");
        }
    }
    if !keys.is_empty() {
        line(body, "keep_alive", format!("{{ {} }}", keys.join(", ")));
    }
}

/// Writes the cookie that keeps a client on its backend.
pub fn sticky(conversion: &mut Conversion<'_>, upstream: &NginxScope<'_>, body: &mut String) {
    let Some(directive) = upstream.own("sticky").last().copied() else { return };
    if directive.word(0) != "cookie" || directive.word(1).is_empty() {
        let note = "only `sticky cookie` has a counterpart: clients are not kept on their backends";
        conversion.ledger.unsupported(directive, note);
        return;
    }
    let mut keys = vec![format!("cookie = {}", quoted(directive.word(1)))];
    let mut doubts = Vec::new();
    for word in directive.words.iter().skip(2) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match (name, value) {
            ("expires", "max") => keys.push("max_age = \"400d\"".to_owned()),
            ("expires", time) => {
                let time = nginx_time(time).unwrap_or(Duration::from_secs(3600));
                let text = duration_between(time, Duration::from_secs(1), Duration::from_secs(400 * 86_400));
                keys.push(format!("max_age = {text}"));
            }
            ("domain", domain) => keys.push(format!("domain = {}", quoted(domain.trim_start_matches('.')))),
            ("path", path) => keys.push(format!("path = {}", quoted(path))),
            ("secure", _) => keys.push("secure = true".to_owned()),
            ("httponly", _) => keys.push("http_only = true".to_owned()),
            ("samesite", same) => keys.push(format!("same_site = {}", quoted(&same.to_ascii_lowercase()))),
            (other, _) => doubts.push(format!("`{other}` left out")),
        }
    }
    line(body, "sticky", format!("{{ {} }}", keys.join(", ")));
    doubts.insert(
        0,
        "`sticky`: the cookie is sealed, `HttpOnly` and `SameSite=Lax` unless said otherwise".to_owned(),
    );
    conversion.ledger.approximate(directive, doubts.join("; "));
}

/// `tls` of a pool.
pub fn tls(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, place: &NginxPlace) -> String {
    let mut keys: Vec<String> = Vec::new();
    let verifies = scope.one("proxy_ssl_verify").filter(|directive| directive.word(0) == "on");
    let files = [
        ("proxy_ssl_trusted_certificate", "ca"),
        ("proxy_ssl_crl", "crl"),
        ("proxy_ssl_certificate", "cert"),
        ("proxy_ssl_certificate_key", "key"),
    ];
    for (name, key) in files {
        let Some(directive) = scope.one(name) else { continue };
        if matches!(key, "ca" | "crl") && verifies.is_none() {
            conversion.ledger.exact(directive, "says nothing while `proxy_ssl_verify` is off");
            continue;
        }
        keys.push(format!("{key} = {}", quoted(&conversion.file(directive.word(0)))));
        conversion.ledger.exact(directive, format!("`{key}` of the pool's `tls`"));
    }
    match verifies {
        Some(directive) => conversion.ledger.exact(directive, "as Weir does by default"),
        None => {
            keys.push("verify = false".to_owned());
            if let Some(directive) = scope.one("proxy_ssl_verify") {
                conversion.ledger.exact(directive, "`verify = false` of the pool's `tls`");
            }
            conversion.ledger.unsaid(
                "proxy_ssl_verify",
                DirectiveVerdict::Exact,
                "`verify = false`, as nginx: ANYBODY IN THE WAY can be taken for a backend; take it out, and name a `ca`",
            );
        }
    }
    let name = scope.one("proxy_ssl_name").map_or_else(
        || place.proxy_host.clone(),
        |directive| {
            conversion.ledger.exact(directive, "`server_name` of the pool's `tls`");
            place.constant(directive.word(0)).replace("${proxy_host}", &place.proxy_host)
        },
    );
    let host = name
        .rsplit_once(':')
        .filter(|(_, port)| port.parse::<u16>().is_ok())
        .map_or(name.as_str(), |(host, _)| host);
    if is_plain_host(host) && host.parse::<std::net::IpAddr>().is_err() && !host.contains('_') {
        keys.push(format!("server_name = {}", quoted(host)));
    }
    match scope.one("proxy_ssl_server_name") {
        Some(directive) if directive.word(0) == "on" => {
            conversion.ledger.exact(directive, "as Weir does always")
        }
        Some(directive) => conversion.ledger.approximate(directive, "backends are told the name always"),
        None => conversion.ledger.unsaid(
            "proxy_ssl_server_name",
            DirectiveVerdict::Approximate,
            "backends are told the name that they are asked for (SNI), and nginx tells none",
        ),
    }
    for name in
        ["proxy_ssl_session_reuse", "proxy_ssl_verify_depth", "proxy_ssl_ciphers", "proxy_ssl_protocols"]
    {
        if let Some(directive) = scope.one(name) {
            conversion
                .ledger
                .approximate(directive, "Weir's own: TLS 1.2 and 1.3, with ciphers that are not weak");
        }
    }
    format!("{{ {} }}", keys.join(", "))
}

/// Writes whose address backends see: `proxy_bind`.
pub fn source(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, body: &mut String) {
    let Some(directive) = scope.one("proxy_bind") else { return };
    match (directive.word(0), directive.word(1)) {
        ("off", _) => conversion.ledger.exact(directive, "as by default"),
        ("$remote_addr" | "$binary_remote_addr", _) => {
            line(body, "source", quoted("client"));
            conversion.ledger.exact(directive, "`source = \"client\"` of the pool");
        }
        (address, _) => {
            let host = address
                .rsplit_once(':')
                .filter(|(_, port)| port.parse::<u16>().is_ok())
                .map_or(address, |(host, _)| host);
            match host.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
                Ok(address) => {
                    line(body, "source", quoted(&address.to_string()));
                    conversion.ledger.exact(directive, "`source` of the pool");
                }
                Err(_) => conversion.ledger.unsupported(directive, "no address that never changes: left out"),
            }
        }
    }
}
