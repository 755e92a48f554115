//! `hash` of a pool: the key for `hash` and `maglev`.

use std::fmt;

use weir_balance::Algorithm;
use weir_template::{Piece, Template, Variable};

use crate::fields::{Fields, Value};
use crate::keys::{Limit, Planes, Shape, factor, text};
use crate::plane::Plane;
use crate::protocol::Protocol;
use crate::report::{Findings, quote};
use crate::setting::{One as _, one, table};
use crate::suggest::nearest;
use crate::units::{Refused, refuse};
use crate::uses::Uses;
use crate::values::http::{cookie_name, field_name};
use crate::values::template::key_template;

table! {
    /// Means something where `balance` is `hash` or `maglev`.
    pub struct Hash at "hash = { … }" {
        /// `uri` (path and query), `path`, `header:NAME`, `cookie:NAME`, `client_ip`, a text with variables
        /// such as `"$host/$cookie.cart"`, or, for tcp and udp, `flow`: both addresses, both ports and the
        /// protocol.
        key: HashKey =
            text(&HASH_KEY).default("\"uri\" where only HTTP listeners use the pool, else \"client_ip\"");
        /// No backend gets more than this factor of the mean load.
        bounded: Option<f64> =
            factor(Limit::optional(
                1.01,
                10.0,
                "at 1.0 the last request of a full round finds one place only",
            ))
            .default("off")
            .on(Planes::Proxy("a backend is looked up there whatever its load"));
    }
}

/// The key that is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// Path and query.
    Uri,
    /// Path.
    Path,
    /// A header field (name in lower case).
    Header(String),
    /// A cookie.
    Cookie(String),
    /// The client's address, without port.
    ClientIp,
    /// A text with variables.
    Value(Template),
    /// Addresses and ports of both sides, and the protocol, of a TCP connection or a UDP flow.
    Flow,
}

static HASH_KEY: Shape =
    Shape::new("a hash key", "header:x-user", |text| hash_key(text).map(|key| key.to_string()));

one!(HashKey, Value::Text(text) => hash_key(text).ok(), |it| Value::Text(it.to_string()), HashKey::ClientIp);

impl fmt::Display for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashKey::Uri => f.write_str("uri"),
            HashKey::Path => f.write_str("path"),
            HashKey::Header(name) => write!(f, "header:{name}"),
            HashKey::Cookie(name) => write!(f, "cookie:{name}"),
            HashKey::ClientIp => f.write_str("client_ip"),
            HashKey::Value(template) => write!(f, "{template}"),
            HashKey::Flow => f.write_str("flow"),
        }
    }
}

fn hash_key(text: &str) -> Result<HashKey, Refused> {
    const EXPECTED: &str = "expected \"uri\", \"path\", \"client_ip\", \"flow\", \"header:NAME\", \"cookie:NAME\" or variables such as \"$host\"";
    Ok(match (text, text.split_once(':')) {
        ("uri", _) => HashKey::Uri,
        ("path", _) => HashKey::Path,
        ("client_ip", _) => HashKey::ClientIp,
        ("flow", _) => HashKey::Flow,
        (text, _) if text.contains('$') => of_template(key_template(text, "a hash key")?),
        (_, Some(("header", name))) => HashKey::Header(field_name(name)?),
        (_, Some(("cookie", name))) => HashKey::Cookie(cookie_name(name)?),
        _ => {
            let hint = match (text, nearest(text, ["uri", "path", "client_ip", "flow"])) {
                ("header" | "cookie", _) => format!("say which one, such as \"{text}:session\""),
                ("source" | "src" | "ip" | "remote_addr", _) => "did you mean \"client_ip\"?".to_owned(),
                ("tuple" | "5-tuple" | "connection", _) => "did you mean \"flow\"?".to_owned(),
                (_, Some(word)) => format!("did you mean \"{word}\"?"),
                _ => EXPECTED.to_owned(),
            };
            return refuse(format!("{} is not something to hash", quote(text)), hint);
        }
    })
}

/// A template that equals another kind of key becomes that kind.
fn of_template(template: Template) -> HashKey {
    match template.pieces() {
        [Piece::Value(Variable::ClientIp)] => HashKey::ClientIp,
        [Piece::Value(Variable::Header(name))] => HashKey::Header(name.to_string()),
        [Piece::Value(Variable::Cookie(name))] => HashKey::Cookie(name.to_string()),
        _ => HashKey::Value(template),
    }
}

/// Checks a pool's `hash`: keys that its algorithm does not use, and hash keys that not every client has.
pub(super) fn check(algorithm: Algorithm, pool: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let Some(hash) = pool.table("hash") else { return };
    let name = &pool.name;
    if let Some(entry) = hash.get("key") {
        if !pool.is_bad("balance") && !matches!(algorithm, Algorithm::Hash | Algorithm::Maglev) {
            let hint =
                format!("it is for `balance = \"hash\"` and `\"maglev\"`, and this pool has \"{algorithm}\"");
            findings.warning(entry.key, "`key` has no effect", hint);
        }
        let what = match HashKey::of(&entry.value) {
            None | Some(HashKey::ClientIp | HashKey::Flow) => None,
            Some(HashKey::Header(_)) => Some("a header field"),
            Some(HashKey::Cookie(_)) => Some("a cookie"),
            Some(HashKey::Uri | HashKey::Path) => Some("a URI"),
            Some(HashKey::Value(_)) => Some("what its key fills in"),
        };
        // Conflicts with the kernel plane are reported by its own check.
        let other = uses.of(name).iter().find(|by| {
            by.protocol.is_some_and(|protocol| protocol != Protocol::Http) && by.plane != Some(Plane::Kernel)
        });
        if let (Some(other), Some(what)) = (other, what) {
            let speaks = other.speaks(findings);
            if uses.first(name, |protocol| protocol == Protocol::Http).is_some() {
                let hint = format!("{speaks} and hashes the client's address instead");
                findings.warning(entry.at, format!("not every client of pool `{name}` has {what}"), hint);
            } else {
                let hint = format!("only http has one, and {speaks}; expected \"client_ip\"");
                findings.error(entry.at, format!("pool `{name}` cannot hash {what}"), hint);
            }
        }
    }
    if let Some(entry) = hash.get("key")
        && HashKey::of(&entry.value) == Some(HashKey::Flow)
        && let Some(other) = uses.first(name, |protocol| protocol == Protocol::Http)
    {
        let hint = format!("it is for tcp and udp, and {}; expected \"client_ip\"", other.speaks(findings));
        findings.error(entry.at, format!("pool `{name}` cannot hash flows"), hint);
    }
    if let Some(entry) = hash.get("bounded")
        && !pool.is_bad("balance")
        && !matches!(algorithm, Algorithm::Hash | Algorithm::Source)
    {
        let hint =
            format!("it is for `balance = \"hash\"` and `\"source\"`, and this pool has \"{algorithm}\"");
        findings.warning(entry.key, "`bounded` has no effect", hint);
    }
}
