//! The key file of `auth.jwt`: a set of public keys in JSON (RFC 7517), as providers publish it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::base64::{Alphabet, decode};
use crate::report::quote;

/// How a token is signed (RFC 7518 section 3.1, RFC 8037). Those with a shared secret, and none at all, are
/// not among them: nothing here can take a public key for a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Signing {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

const RSA: [Signing; 6] =
    [Signing::Rs256, Signing::Rs384, Signing::Rs512, Signing::Ps256, Signing::Ps384, Signing::Ps512];

impl Signing {
    /// The algorithm with this `alg` name.
    pub fn of_name(name: &str) -> Option<Signing> {
        Some(match name {
            "RS256" => Signing::Rs256,
            "RS384" => Signing::Rs384,
            "RS512" => Signing::Rs512,
            "PS256" => Signing::Ps256,
            "PS384" => Signing::Ps384,
            "PS512" => Signing::Ps512,
            "ES256" => Signing::Es256,
            "ES384" => Signing::Es384,
            "EdDSA" => Signing::EdDsa,
            _ => return None,
        })
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// The key id by which tokens refer to it; `None` if it has none.
    pub id: Option<String>,
    /// The algorithms with which it may be used.
    pub signings: Vec<Signing>,
    /// The key.
    pub public: PublicKey,
}

/// The public key that verifies signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// Modulus and exponent, big-endian without leading zeros.
    Rsa(Vec<u8>, Vec<u8>),
    /// A point on the curve of its only algorithm, uncompressed (SEC 1); for Ed25519 the 32 bytes.
    Point(Vec<u8>),
}

/// Most keys of a file with the same key id, or without one.
pub const KEYS_OF_A_NAME_MOST: usize = 8;
/// Most keys of a file.
const KEYS_MOST: usize = 200;

/// The keys of a file, and the mistakes in it: each with the number of the key from 1, or 0 for the whole
/// file. Encryption keys are ignored.
pub fn keys(content: &[u8]) -> (Vec<TokenKey>, Vec<(usize, String)>) {
    let set = match serde_json::from_slice::<Value>(content) {
        Ok(set) => set,
        Err(error) => return (Vec::new(), vec![(0, format!("it is no JSON: {error}"))]),
    };
    let Some(Value::Array(all)) = set.get("keys") else {
        return (Vec::new(), vec![(0, "it has no list `keys`".to_owned())]);
    };
    let (mut keys, mut mistakes) = (Vec::new(), Vec::new());
    for (number, value) in (1..).zip(all) {
        match key(value) {
            Ok(found) => keys.extend(found),
            Err(message) => mistakes.push((number, message.to_owned())),
        }
    }
    if all.is_empty() {
        mistakes.push((0, "it has no keys".to_owned()));
    }
    if all.len() > KEYS_MOST {
        mistakes.push((0, format!("it has more than {KEYS_MOST} keys")));
    }
    mistakes.extend(too_many_of_a_name(&keys));
    (keys, mistakes)
}

/// The keys that a provider has published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet {
    /// The usable keys.
    pub keys: Vec<TokenKey>,
    /// Each of them as one line of JSON with only the relevant members, to be read by [`KeySet::of_texts`].
    pub texts: Vec<String>,
    /// Number of unusable keys: any that are not public keys of a known kind.
    pub skipped: usize,
}

/// The relevant members of a key (RFC 7517 section 4, RFC 7518 section 6, RFC 8037 section 2).
const MEMBERS: [&str; 10] = ["kty", "crv", "kid", "use", "key_ops", "alg", "n", "e", "x", "y"];
/// Longest key of a provider as text (bytes): it is handed to the next process in one message. The largest
/// valid one, RSA with 8192 bits, has 1500.
const KEY_BYTES: usize = 4096;

impl KeySet {
    /// Parses a provider's key set. Unusable keys are skipped, since the provider serves other clients, too.
    ///
    /// # Errors
    /// It is not a JWK set, has no usable key, or has too many.
    pub fn read(content: &[u8]) -> Result<KeySet, String> {
        let set =
            serde_json::from_slice::<Value>(content).map_err(|error| format!("it is no JSON: {error}"))?;
        let Some(Value::Array(all)) = set.get("keys") else { return Err("it has no list `keys`".to_owned()) };
        if all.len() > KEYS_MOST {
            return Err(format!("it has more than {KEYS_MOST} keys"));
        }
        let mut read = KeySet::default();
        for value in all {
            let members =
                MEMBERS.iter().filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone())));
            let text = Value::Object(members.collect()).to_string();
            match key(value) {
                Ok(Some(key)) if text.len() <= KEY_BYTES => {
                    read.texts.push(text);
                    read.keys.push(key);
                }
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => read.skipped += 1,
            }
        }
        match too_many_of_a_name(&read.keys) {
            _ if read.keys.is_empty() => Err(format!("none of its {} keys can be used", all.len())),
            Some((_, mistake)) => Err(mistake),
            None => Ok(read),
        }
    }

    /// Parses the same keys again, from their texts.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn of_texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<KeySet, String> {
        let texts: Vec<&str> = texts.into_iter().collect();
        Self::read(format!("{{\"keys\":[{}]}}", texts.join(",")).as_bytes())
    }
}

/// The mistake if many keys share a key id, or have none: each token is verified with all of them, which
/// costs the verifier more than the sender.
fn too_many_of_a_name(keys: &[TokenKey]) -> Option<(usize, String)> {
    let mut counts = BTreeMap::<Option<&str>, usize>::new();
    for key in keys {
        *counts.entry(key.id.as_deref()).or_default() += 1;
    }
    let (id, _) = counts.into_iter().find(|(_, count)| *count > KEYS_OF_A_NAME_MOST)?;
    let whose = id.map_or_else(|| "no `kid`".to_owned(), |id| format!("the `kid` {}", quote(id)));
    Some((0, format!("it has more than {KEYS_OF_A_NAME_MOST} keys with {whose}")))
}

/// Parses a key; `None` for one that is not for signatures.
fn key(value: &Value) -> Result<Option<TokenKey>, &'static str> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let bytes = |name: &str| text(name).and_then(|text| decode(text.as_bytes(), Alphabet::Url));
    if ["d", "p", "k"].iter().any(|secret| value.get(*secret).is_some()) {
        return Err("it has a secret, which is not for those who only look at signatures");
    }
    if !is_for_signatures(value) {
        return Ok(None);
    }
    let (family, public): (&[Signing], _) = match (text("kty"), text("crv")) {
        (Some("RSA"), _) => {
            let (Some(n), Some(e)) = (bytes("n"), bytes("e")) else {
                return Err("it has no `n` and `e` in base64url");
            };
            let strip = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
            let (n, e) = (strip(n), strip(e));
            if !(256..=1024).contains(&n.len()) {
                return Err("it has another size than 2048 to 8192 bits");
            }
            (&RSA, PublicKey::Rsa(n, e))
        }
        (Some("EC"), Some("P-256")) => (&[Signing::Es256], point(bytes("x"), bytes("y"), 32)?),
        (Some("EC"), Some("P-384")) => (&[Signing::Es384], point(bytes("x"), bytes("y"), 48)?),
        (Some("OKP"), Some("Ed25519")) => match bytes("x") {
            Some(x) if x.len() == 32 => (&[Signing::EdDsa], PublicKey::Point(x)),
            _ => return Err("it has no `x` of 32 bytes in base64url"),
        },
        (Some("oct"), _) => return Err("it is a shared secret, by which everybody who knows it could sign"),
        _ => return Err("it is none of RSA, P-256, P-384 and Ed25519"),
    };
    let signings = match text("alg") {
        None => family.to_vec(),
        Some(name) => match Signing::of_name(name).filter(|signing| family.contains(signing)) {
            Some(signing) => vec![signing],
            None => return Err("its `alg` is not one of its kind"),
        },
    };
    Ok(Some(TokenKey { id: text("kid").map(str::to_owned), signings, public }))
}

/// Whether the key's stated purpose (RFC 7517 sections 4.2 and 4.3) allows signatures. An unreadable purpose
/// does not: its publisher meant something by it.
fn is_for_signatures(value: &Value) -> bool {
    let says = |name: &str| value.get(name).filter(|said| !said.is_null());
    let by_use = says("use").is_none_or(|purpose| purpose.as_str() == Some("sig"));
    let by_operations = says("key_ops").is_none_or(|operations| {
        operations.as_array().is_some_and(|all| all.iter().any(|one| one.as_str() == Some("verify")))
    });
    by_use && by_operations
}

/// SEC 1 section 2.3.3.
fn point(x: Option<Vec<u8>>, y: Option<Vec<u8>>, size: usize) -> Result<PublicKey, &'static str> {
    match (x, y) {
        (Some(x), Some(y)) if x.len() == size && y.len() == size => {
            Ok(PublicKey::Point([&[4], &x[..], &y].concat()))
        }
        _ => Err("it has no `x` and `y` of the curve's size in base64url"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7517 appendix A.1, and the key of RFC 8037 appendix A.2.
    const GOOD: &str = r#"{"keys": [
        {"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","use":"enc","kid":"1"},
        {"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw","e":"AQAB","alg":"RS256","kid":"2011-04-29"},
        {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    ]}"#;

    #[test]
    fn public_keys_are_read_with_what_they_may_have_signed_by() {
        let (keys, mistakes) = keys(GOOD.as_bytes());
        assert_eq!(mistakes, []);
        let said: Vec<_> = keys.iter().map(|key| (key.id.as_deref(), &key.signings[..])).collect();
        assert_eq!(said, [(Some("2011-04-29"), &[Signing::Rs256][..]), (None, &[Signing::EdDsa][..])]);
    }

    #[test]
    fn what_a_provider_has_published_is_taken_but_for_keys_that_serve_others() {
        let others = r#"{"kty":"oct","k":"c2VjcmV0"}, {"kty":"EC","crv":"secp256k1"}, 7, {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","d":"AA"}"#;
        let more = GOOD.replace("\"keys\": [", &format!("\"keys\": [{others},"));
        let read = KeySet::read(more.as_bytes()).unwrap();
        assert_eq!((read.keys.clone(), read.skipped), (keys(GOOD.as_bytes()).0, 4));
        let again = KeySet::of_texts(read.texts.iter().map(String::as_str)).unwrap();
        assert_eq!((again.keys, again.texts, again.skipped), (read.keys, read.texts.clone(), 0));
        assert!(read.texts.iter().all(|text| !text.contains(['\n', ' '])), "{:?}", read.texts);
        let error = |content: &str| KeySet::read(content.as_bytes()).unwrap_err();
        assert!(error("<html>").contains("no JSON") && error("{}").contains("no list"));
        assert_eq!(error(r#"{"keys": []}"#), "none of its 0 keys can be used");
        assert_eq!(error(&format!("{{\"keys\": [{others}]}}")), "none of its 4 keys can be used");
        let long = GOOD.replace(r#""kid":"2011-04-29""#, &format!(r#""kid":"{}""#, "x".repeat(KEY_BYTES)));
        assert_eq!(KeySet::read(long.as_bytes()).map(|read| read.skipped), Ok(1));
        let many = vec!["7"; KEYS_MOST + 1].join(",");
        assert_eq!(error(&format!("{{\"keys\": [{many}]}}")), "it has more than 200 keys");
        let deep = "[".repeat(100_000);
        assert!(error(&deep).contains("no JSON"));
    }

    #[test]
    fn a_key_that_is_for_something_else_says_nothing_also_when_it_comes_from_another_process() {
        let with = |more: &str| {
            format!(
                r#"{{"keys": [{{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"{more}}}]}}"#
            )
        };
        for good in [
            "",
            r#","use":"sig""#,
            r#","use":null,"key_ops":null"#,
            r#","key_ops":["sign","verify"]"#,
            r#","use":"sig","key_ops":["verify"]"#,
        ] {
            let content = with(good);
            assert_eq!(keys(content.as_bytes()).0.len(), 1, "{good}");
            let read = KeySet::read(content.as_bytes()).unwrap();
            assert_eq!(KeySet::of_texts(read.texts.iter().map(String::as_str)), Ok(read.clone()), "{good}");
        }
        for bad in [
            r#","use":"enc""#,
            r#","use":["enc"]"#,
            r#","use":7"#,
            r#","key_ops":["encrypt"]"#,
            r#","key_ops":[]"#,
            r#","key_ops":"verify""#,
            r#","use":"sig","key_ops":["deriveKey"]"#,
            r#","use":"enc","key_ops":["verify"]"#,
        ] {
            let content = with(bad);
            assert_eq!(keys(content.as_bytes()), (vec![], vec![]), "{bad}");
            assert_eq!(
                KeySet::read(content.as_bytes()).unwrap_err(),
                "none of its 1 keys can be used",
                "{bad}"
            );
        }
    }

    #[test]
    fn what_is_no_public_key_for_signatures_is_refused() {
        let mistake = |key: &str| keys(format!(r#"{{"keys": [{key}]}}"#).as_bytes()).1;
        for (key, said) in [
            (r#"{"kty":"oct","kid":"a"}"#, "shared secret"),
            (r#"{"kty":"oct","k":"c2VjcmV0"}"#, "has a secret"),
            (r#"{"kty":"RSA","n":"AQAB","e":"AQAB"}"#, "another size"),
            (r#"{"kty":"RSA","n":"!","e":"AQAB"}"#, "no `n` and `e`"),
            (
                r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","alg":"HS256"}"#,
                "not one of its kind",
            ),
            (r#"{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}"#, "curve's size"),
            (r#"{"kty":"EC","crv":"secp256k1"}"#, "none of RSA"),
            ("7", "none of RSA"),
        ] {
            let found = mistake(key);
            assert!(found.len() == 1 && found[0].0 == 1 && found[0].1.contains(said), "{key}: {found:?}");
        }
        let many = |key: fn(usize) -> String, count| {
            let keys: Vec<String> = (0..count).map(key).collect();
            mistake(&keys.join(","))
        };
        const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        let unnamed: fn(usize) -> String = |_| format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}"}}"#);
        let named: fn(usize) -> String =
            |number| format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}","kid":"{number}"}}"#);
        assert_eq!((many(unnamed, 8), many(named, 200)), (vec![], vec![]));
        assert_eq!(many(unnamed, 9), [(0, "it has more than 8 keys with no `kid`".to_owned())]);
        assert_eq!(many(named, 201), [(0, "it has more than 200 keys".to_owned())]);
        for (file, said) in [("", "no JSON"), ("[]", "no list"), (r#"{"keys": []}"#, "no keys")] {
            assert!(keys(file.as_bytes()).1[0].1.contains(said), "{file}");
        }
    }
}
