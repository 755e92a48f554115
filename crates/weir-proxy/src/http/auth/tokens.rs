//! Signed tokens (JWT, RFC 7519): held against public keys that are known, and against the clock.
//!
//! The way of signing is a closed set without shared secrets and without "none", and a key says itself which
//! of them it may have used: what a token says of it chooses among these and nothing else (RFC 8725 section
//! 3.1).

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{
    self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::{Map, Value};
use weir_config::{Alphabet, PublicKey, Signing, TokenAuth, TokenKey, decode_base64};
use weir_http::{AddedField, KnownHeader};

use super::{UserFacts, put_line};
use crate::http::exchange::Exchange;
use crate::http::failure::{Denied, Failure};
use crate::http::session::Session;
use crate::http::sticky;

/// Longest token that is looked at, bytes.
const TOKEN_BYTES: usize = 16 << 10;

/// The keys of a listener or a route, and what tokens must say.
pub struct Tokens {
    config: TokenAuth,
    keys: Vec<TokenKey>,
}

/// Why a token is not taken: the word that the client is told (RFC 6750 section 3).
type Why = &'static str;

impl Tokens {
    /// Compiles.
    pub fn compile(config: &TokenAuth) -> Tokens {
        Tokens { keys: config.public_keys(), config: config.clone() }
    }

    /// In words.
    pub fn words(&self) -> String {
        let place = match &self.config.cookie {
            Some(name) => format!("in the cookie {name}"),
            None => "in `authorization: Bearer`".to_owned(),
        };
        let mut words =
            format!("a token that one of {} keys has signed is asked for, {place}", self.keys.len());
        for (name, claim) in &self.config.claims {
            words += &format!("; {claim} of it for the backend as {name}");
        }
        words
    }

    /// Asks for the exchange. `Ok` lets it pass; who it is is in `exchange.user` then.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn ask(&self, session: &Session, exchange: &mut Exchange) -> Result<(), Failure> {
        let Exchange { request, user, .. } = exchange;
        let text = session.requester.received();
        let shown = match &self.config.cookie {
            Some(name) => sticky::cookie(request.values(KnownHeader::Cookie, text), name.as_bytes()),
            None => {
                let mut lines = request.values(KnownHeader::Authorization, text);
                let only = (lines.next(), lines.next());
                if let (Some(line), None) = only { of_bearer(line) } else { None }
            }
        };
        let Some(shown) = shown.filter(|token| !token.is_empty()) else { return Err(denied("Bearer")) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        match self.verified(shown, now) {
            Ok(claims) => {
                self.note(&claims, user);
                Ok(())
            }
            Err(why) => Err(denied(&format!("Bearer error=\"invalid_token\", error_description=\"{why}\""))),
        }
    }

    /// The claims of a token that is good at `now`, in seconds since 1970.
    fn verified(&self, token: &[u8], now: f64) -> Result<Map<String, Value>, Why> {
        let token = std::str::from_utf8(token).ok().filter(|token| token.len() <= TOKEN_BYTES);
        let token = token.ok_or("not a token")?;
        let (signed, signature) = token.rsplit_once('.').ok_or("not a token")?;
        let (head, payload) = signed.split_once('.').ok_or("not a token")?;
        let head = object(head)?;
        let signing = head.get("alg").and_then(Value::as_str).and_then(Signing::of_name);
        let signing = signing.ok_or("signed in a way that is not taken")?;
        if head.contains_key("crit") {
            // RFC 7515 section 4.1.11: what must be understood is not.
            return Err("has a critical header");
        }
        let id = match head.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.as_str()),
            Some(_) => return Err("not a token"),
        };
        let signature = decode_base64(signature.as_bytes(), Alphabet::Url).ok_or("not a token")?;
        let may_be = |key: &&TokenKey| {
            let is_named = id.is_none_or(|id| key.id.as_deref().is_none_or(|own| own == id));
            is_named && key.signings.contains(&signing)
        };
        let mut keys = self.keys.iter().filter(may_be).peekable();
        if keys.peek().is_none() {
            return Err("signed by a key that is not known");
        }
        if !keys.any(|key| has_signed(key, signing, signed.as_bytes(), &signature)) {
            return Err("its signature is not good");
        }
        let claims = object(payload)?;
        self.is_in_force(&claims, now)?;
        Ok(claims)
    }

    fn is_in_force(&self, claims: &Map<String, Value>, now: f64) -> Result<(), Why> {
        let leeway = self.config.leeway.as_secs_f64();
        // A time of another type is no time, and never one that need not be looked at.
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or("has a time that is none"),
        };
        match time("exp")? {
            Some(until) if now < until + leeway => {}
            Some(_) => return Err("is over"),
            None => return Err("has no end"),
        }
        if time("nbf")?.is_some_and(|from| now + leeway < from) {
            return Err("is not yet good");
        }
        let TokenAuth { issuer, audience, .. } = &self.config;
        let is_one = |all: &[String], value: &Value| {
            value.as_str().is_some_and(|value| all.iter().any(|one| one == value))
        };
        if !issuer.is_empty() && !claims.get("iss").is_some_and(|value| is_one(issuer, value)) {
            return Err("is of another issuer");
        }
        let is_for_us = match claims.get("aud") {
            _ if audience.is_empty() => true,
            Some(Value::Array(all)) => all.iter().any(|value| is_one(audience, value)),
            Some(value) => is_one(audience, value),
            None => false,
        };
        if is_for_us { Ok(()) } else { Err("is for another audience") }
    }

    /// Notes what backends and the log are told.
    fn note(&self, claims: &Map<String, Value>, user: &mut UserFacts) {
        for (name, claim) in &self.config.claims {
            let value = found(claims, claim).and_then(told);
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                put_line(&mut user.to_backend, name, value.as_bytes());
            }
        }
        if let Some(name) = found(claims, &self.config.user).and_then(told) {
            user.name.extend_from_slice(name.as_bytes());
        }
    }
}

/// What stands behind `Bearer` (RFC 6750 section 2.1).
fn of_bearer(line: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = line.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn denied(challenge: &str) -> Failure {
    let fields = AddedField::new(b"www-authenticate", challenge.as_bytes()).into_iter().collect();
    Failure::AuthDenied(Box::new(Denied { status: 401, fields }))
}

/// A segment that is base64url of a JSON object.
fn object(segment: &str) -> Result<Map<String, Value>, Why> {
    let bytes = decode_base64(segment.as_bytes(), Alphabet::Url).ok_or("not a token")?;
    serde_json::from_slice(&bytes).map_err(|_| "not a token")
}

fn has_signed(key: &TokenKey, signing: Signing, message: &[u8], signed: &[u8]) -> bool {
    match &key.public {
        PublicKey::Rsa(n, e) => {
            let Some(parameters) = of_rsa(signing) else { return false };
            RsaPublicKeyComponents { n, e }.verify(parameters, message, signed).is_ok()
        }
        PublicKey::Point(point) => {
            let Some(algorithm) = of_curve(signing) else { return false };
            UnparsedPublicKey::new(algorithm, point).verify(message, signed).is_ok()
        }
    }
}

fn of_rsa(signing: Signing) -> Option<&'static RsaParameters> {
    Some(match signing {
        Signing::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Signing::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Signing::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Signing::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        Signing::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        Signing::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        Signing::Es256 | Signing::Es384 | Signing::EdDsa => return None,
    })
}

fn of_curve(signing: Signing) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match signing {
        Signing::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
        Signing::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
        Signing::EdDsa => &signature::ED25519,
        _ => return None,
    })
}

/// The claim of that name, or within another by a path of names.
fn found<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    found(claims.get(first)?.as_object()?, rest)
}

/// As a field says it: texts, numbers, and lists of them; `None` for what has more inside.
fn told(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Array(all) => Some(all.iter().filter_map(told).collect::<Vec<_>>().join(",")),
        Value::Null | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of RFC 8037 appendix A.2, and the signature of its appendix A.4.
    const KEY: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    const SIGNED: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    const SIGNATURE: &str =
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

    #[test]
    fn the_signature_of_the_rfc_is_good_and_no_other() {
        let point = decode_base64(KEY.as_bytes(), Alphabet::Url).unwrap();
        let key = TokenKey { id: None, signings: vec![Signing::EdDsa], public: PublicKey::Point(point) };
        let mut signed = decode_base64(SIGNATURE.as_bytes(), Alphabet::Url).unwrap();
        assert!(has_signed(&key, Signing::EdDsa, SIGNED.as_bytes(), &signed));
        assert!(!has_signed(&key, Signing::EdDsa, &SIGNED.as_bytes()[1..], &signed));
        assert!(!has_signed(&key, Signing::Rs256, SIGNED.as_bytes(), &signed));
        signed[0] ^= 1;
        assert!(!has_signed(&key, Signing::EdDsa, SIGNED.as_bytes(), &signed));
    }

    #[test]
    fn claims_are_found_by_their_whole_name_or_by_a_path_and_told_flat() {
        let claims = serde_json::from_str(
            r#"{"a.b": "whole", "a": {"c": ["x", 1, {"y": 2}], "d": {"e": true}}, "https://x.example/r": "url"}"#,
        );
        let claims: Map<String, Value> = claims.unwrap();
        let of = |path: &str| found(&claims, path).and_then(told);
        assert_eq!(of("a.b").as_deref(), Some("whole"));
        assert_eq!(of("a.c").as_deref(), Some("x,1"));
        assert_eq!(of("a.d.e").as_deref(), Some("true"));
        assert_eq!(of("https://x.example/r").as_deref(), Some("url"));
        assert_eq!((of("a"), of("a.x"), of("b.c")), (None, None, None));
    }
}
