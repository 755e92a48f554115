//! Checks signed tokens (JWT, RFC 7519) against known public keys and against the clock.
//!
//! The algorithms are a closed set without shared secrets and without "none", and each key says which of them
//! it may be used with. A token's `alg` only chooses among these (RFC 8725 section 3.1).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{
    self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::{Map, Value};
use weir_config::{Alphabet, KEYS_OF_A_NAME_MOST, PublicKey, Signing, TokenAuth, TokenKey, decode_base64};
use weir_http::values::cookies;
use weir_http::{AddedField, KnownHeader};
use weir_io::clock;
use weir_state::token_keys::{FetchedSet, Held, NoWait, TokenKeys};

use super::claims::Claims;
use super::presence::{client_of, while_present};
use super::{UserFacts, put_line};
use crate::http::exchange::Exchange;
use crate::http::failure::{Denied, Failure};
use crate::http::session::Session;

/// Most keys that one token is checked against, because each costs a computation, whoever sends the token. A
/// file of keys has at most half as many with one name, and as many without a name.
const KEYS_TRIED_MOST: usize = 2 * KEYS_OF_A_NAME_MOST;
/// Longest token that is checked, in bytes.
const TOKEN_BYTES: usize = 16 << 10;

/// The keys of a listener or a route, and the claims that it requires.
pub struct Tokens {
    config: TokenAuth,
    keys: Keys,
}

/// The keys that tokens are checked against.
enum Keys {
    /// Keys from a file.
    OfFile(Vec<TokenKey>),
    /// Keys that are fetched.
    Fetched(Arc<FetchedSet>),
}

/// Why a token is rejected: the text that is sent to the client (RFC 6750 section 3).
type Why = &'static str;

/// Why a token is not valid.
#[derive(Debug)]
struct Bad {
    why: Why,
    /// Whether a key that is not at hand could have signed it: none of the keys at hand has.
    may_be_of_another_key: bool,
}

impl From<Why> for Bad {
    fn from(why: Why) -> Bad {
        Bad { why, may_be_of_another_key: false }
    }
}

/// Why a request does not pass with the keys at hand.
enum Closed {
    /// It would not pass with any keys.
    Denied(Failure),
    /// It might pass with other keys. `Some` with the reason and the keys that were tried, if there are keys
    /// at hand.
    ByKeys(Option<(Why, Arc<Held>)>),
}

impl Closed {
    /// The failure if no other keys become available.
    fn in_the_end(self) -> Failure {
        match self {
            Closed::Denied(failure) => failure,
            Closed::ByKeys(Some((why, _))) => not_good(why),
            Closed::ByKeys(None) => Failure::AuthUnavailable,
        }
    }
}

impl Tokens {
    /// Compiles the config; `None` if the keys are to be fetched and are not among `fetched`.
    pub fn compile(config: &TokenAuth, fetched: Option<&TokenKeys>) -> Option<Tokens> {
        let keys = match config.fetched() {
            Some(wanted) => Keys::Fetched(fetched?.find(&wanted)?.clone()),
            None => Keys::OfFile(config.public_keys()),
        };
        Some(Tokens { keys, config: config.clone() })
    }

    /// The settings in words.
    pub fn words(&self) -> String {
        let place = match &self.config.cookie {
            Some(name) => format!("in the cookie {name}"),
            None => "in `authorization: Bearer`".to_owned(),
        };
        let keys = match &self.keys {
            Keys::OfFile(keys) => format!("{} keys", keys.len()),
            Keys::Fetched(set) => words_of(set, clock::now()),
        };
        let mut words = format!("a token that one of {keys} has signed is asked for, {place}");
        for (name, claim) in &self.config.claims {
            words += &format!("; {claim} of it for the backend as {name}");
        }
        words
    }

    /// Authenticates the request of the exchange. `Ok` lets it pass, with the user in `exchange.user`. If
    /// keys are fetched and none of those at hand has signed the token, it waits for the next fetch if that
    /// begins now.
    ///
    /// # Errors
    /// The request may not pass; or there are no keys; or a fetch that could bring the token's key is
    /// running, and there is no place to wait for it.
    pub(super) async fn ask(&self, session: &mut Session, exchange: &mut Exchange) -> Result<(), Failure> {
        let closed = match self.look(session, exchange) {
            Ok(()) => return Ok(()),
            Err(closed) => closed,
        };
        let (Keys::Fetched(set), Closed::ByKeys(looked)) = (&self.keys, &closed) else {
            return Err(closed.in_the_end());
        };
        let now = clock::now();
        match set.ask(client_of(session, exchange), now) {
            Ok(mut waiting) => {
                // A fetch ends by itself; the extra second allows for a late report of its end.
                let until = now + self.config.fetch_timeout + Duration::from_secs(1);
                while_present(session, until, waiting.end()).await?;
            }
            Err(why) => {
                let at_hand = set.good(now);
                let looked = looked.as_ref().map(|(_, held)| Arc::as_ptr(held));
                // Other keys may have arrived in between.
                if at_hand.as_ref().map(Arc::as_ptr) == looked {
                    return Err(match why {
                        NoWait::TooSoon => closed.in_the_end(),
                        NoWait::ClientFull => Failure::AuthCrowded,
                        NoWait::Full => Failure::AuthUnavailable,
                    });
                }
            }
        }
        self.look(session, exchange).map_err(Closed::in_the_end)
    }

    /// Checks the client's token against the keys at hand.
    fn look(&self, session: &Session, exchange: &mut Exchange) -> Result<(), Closed> {
        let Exchange { request, user, .. } = exchange;
        let text = session.requester.received();
        let shown = match &self.config.cookie {
            // If there are two such cookies, a backend may use the one that was not checked.
            Some(name) => cookies::only(request.values(KnownHeader::Cookie, text), name.as_bytes()),
            None => {
                let mut lines = request.values(KnownHeader::Authorization, text);
                let only = (lines.next(), lines.next());
                if let (Some(line), None) = only { of_bearer(line) } else { None }
            }
        };
        let Some(shown) = shown.filter(|token| !token.is_empty()) else {
            return Err(Closed::Denied(denied("Bearer")));
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let claims = match &self.keys {
            Keys::OfFile(keys) => {
                self.verified(keys, shown, now).map_err(|bad| Closed::Denied(not_good(bad.why)))?
            }
            Keys::Fetched(set) => match set.good(clock::now()) {
                Some(held) => self
                    .verified(&held.set.keys, shown, now)
                    .map_err(|bad| self.closed(bad, shown, now, Some(held.clone())))?,
                None => {
                    let bad = Bad { why: "", may_be_of_another_key: true };
                    return Err(self.closed(bad, shown, now, None));
                }
            },
        };
        self.note(Claims(claims), user);
        Ok(())
    }

    /// The failure for a token that is not valid with the keys `held`. It is final for a token that no other
    /// key would make valid, so that such a token causes no fetch.
    #[cold]
    fn closed(&self, bad: Bad, token: &[u8], now: f64, held: Option<Arc<Held>>) -> Closed {
        let is_worth_it = || -> Result<(), Why> {
            let Parts { payload, .. } = Parts::of(token)?;
            self.is_in_force(&object(payload)?, now)
        };
        match (bad.may_be_of_another_key, held) {
            (false, _) => Closed::Denied(not_good(bad.why)),
            (true, held) => match (is_worth_it(), held) {
                (Ok(()), held) => Closed::ByKeys(held.map(|held| (bad.why, held))),
                (Err(_), Some(_)) => Closed::Denied(not_good(bad.why)),
                (Err(why), None) => Closed::Denied(not_good(why)),
            },
        }
    }

    /// The claims of a token that is valid by one of `keys` at `now`, in seconds since 1970.
    fn verified(&self, keys: &[TokenKey], token: &[u8], now: f64) -> Result<Map<String, Value>, Bad> {
        let Parts { signed, signing, id, payload, signature } = Parts::of(token)?;
        let id = id.as_deref();
        let may_be = |key: &&TokenKey| {
            let is_named = id.is_none_or(|id| key.id.as_deref().is_none_or(|own| own == id));
            is_named && key.signings.contains(&signing)
        };
        let candidates = || keys.iter().filter(may_be);
        // Also if a key of that name is known: a provider may have replaced the key under its name.
        let by_none = |why| Bad { why, may_be_of_another_key: true };
        match candidates().count() {
            0 => return Err(by_none("signed by a key that is not known")),
            1..=KEYS_TRIED_MOST => {}
            _ => return Err("does not name which of many keys has signed it".into()),
        }
        if !candidates().any(|key| has_signed(key, signing, signed.as_bytes(), &signature)) {
            return Err(by_none("its signature is not good"));
        }
        let claims = object(payload)?;
        self.is_in_force(&claims, now)?;
        Ok(claims)
    }

    fn is_in_force(&self, claims: &Map<String, Value>, now: f64) -> Result<(), Why> {
        let leeway = self.config.leeway.as_secs_f64();
        // A time of another type makes the token invalid; it is never ignored.
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

    /// Stores what backends and the log are told.
    fn note(&self, claims: Claims, user: &mut UserFacts) {
        for (name, claim) in &self.config.claims {
            if let Some(value) = claims.told(claim).filter(|value| !value.is_empty()) {
                put_line(&mut user.to_backend, name, value.as_bytes());
            }
        }
        if let Some(name) = claims.told(&self.config.user) {
            user.name.extend_from_slice(name.as_bytes());
        }
        user.claims = Some(claims);
    }
}

/// The token after `Bearer` (RFC 6750 section 2.1).
fn of_bearer(line: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = line.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Where fetched keys come from, and their age, in words.
fn words_of(set: &FetchedSet, now: Duration) -> String {
    let mut words = match set.held() {
        Some(held) => {
            let age = held.age(now).as_secs();
            let is_stale = if set.good(now).is_none() { ", too long ago: 503" } else { "" };
            format!("{} keys from {} (fetched {age}s ago{is_stale}", held.set.keys.len(), set.config.shown())
        }
        None => format!("the keys from {} (none were fetched yet: 503", set.config.shown()),
    };
    if let Some(error) = set.error() {
        words += &format!("; the last fetch failed: {error}");
    }
    words + ")"
}

/// A token that is parsed but not yet verified.
struct Parts<'t> {
    /// The text that the signature covers.
    signed: &'t str,
    signing: Signing,
    /// The name (`kid`) of its key, according to the token.
    id: Option<String>,
    payload: &'t str,
    signature: Vec<u8>,
}

impl Parts<'_> {
    fn of(token: &[u8]) -> Result<Parts<'_>, Why> {
        let token = std::str::from_utf8(token).ok().filter(|token| token.len() <= TOKEN_BYTES);
        let token = token.ok_or("not a token")?;
        let (signed, signature) = token.rsplit_once('.').ok_or("not a token")?;
        let (head, payload) = signed.split_once('.').ok_or("not a token")?;
        let mut head = object(head)?;
        let signing = head.get("alg").and_then(Value::as_str).and_then(Signing::of_name);
        let signing = signing.ok_or("signed in a way that is not taken")?;
        if head.contains_key("crit") {
            // RFC 7515 section 4.1.11: a critical header that is not understood makes the token invalid.
            return Err("has a critical header");
        }
        let id = match head.remove("kid") {
            None => None,
            Some(Value::String(id)) => Some(id),
            Some(_) => return Err("not a token"),
        };
        let signature = decode_base64(signature.as_bytes(), Alphabet::Url).ok_or("not a token")?;
        Ok(Parts { signed, signing, id, payload, signature })
    }
}

fn not_good(why: Why) -> Failure {
    denied(&format!("Bearer error=\"invalid_token\", error_description=\"{why}\""))
}

fn denied(challenge: &str) -> Failure {
    let fields = AddedField::new(b"www-authenticate", challenge.as_bytes()).into_iter().collect();
    Failure::AuthDenied(Box::new(Denied { status: 401, fields }))
}

/// Decodes a segment that is base64url of a JSON object.
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
    fn a_token_is_held_against_few_keys_however_many_there_are() {
        let point = decode_base64(KEY.as_bytes(), Alphabet::Url).unwrap();
        let key = |number: usize| TokenKey {
            id: Some(number.to_string()),
            signings: vec![Signing::EdDsa],
            public: PublicKey::Point(point.clone()),
        };
        let why = |count: usize, head: &str| {
            let tokens = Tokens::compile(&TokenAuth::default(), None).unwrap();
            let keys: Vec<TokenKey> = (0..count).map(key).collect();
            tokens.verified(&keys, format!("{head}.e30.{SIGNATURE}").as_bytes(), 0.0).unwrap_err().why
        };
        // {"alg":"EdDSA"}, and {"alg":"EdDSA","kid":"7"}
        let (unnamed, named) = ("eyJhbGciOiJFZERTQSJ9", "eyJhbGciOiJFZERTQSIsImtpZCI6IjcifQ");
        assert_eq!(why(KEYS_TRIED_MOST, unnamed), "its signature is not good");
        assert_eq!(why(KEYS_TRIED_MOST + 1, unnamed), "does not name which of many keys has signed it");
        assert_eq!(why(KEYS_TRIED_MOST + 1, named), "its signature is not good");
    }
}
