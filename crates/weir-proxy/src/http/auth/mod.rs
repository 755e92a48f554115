//! Authentication: what a listener or a route requires from a client before a request goes on, and what is
//! then known about the user.
//!
//! [`gate`] runs it, before the cache or a backend answers. [`super::edit_table`] writes facts about the user
//! into the request to the backend, and drops what clients send by the same names.

mod basic;
mod claims;
pub(super) mod gate;
mod line;
mod passwords;
mod presence;
mod question;
mod remembered;
mod service;
mod sign_in;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use weir_http::AddedField;
use weir_state::token_keys::TokenKeys;
use weir_template::{Template, clean_field_value};

use crate::seldom::Reused;

pub use self::claims::Claims;
pub use self::passwords::Passwords;
pub use self::remembered::Remembered;
pub use self::tokens::Tokens;

/// How a listener or a route authenticates its clients.
pub enum Authenticator {
    /// By a service, which is another pool.
    Service(AuthService),
    /// By a file of names and passwords.
    Passwords(Arc<Passwords>),
    /// By the keys that tokens are signed with.
    Tokens(Box<Tokens>),
    /// Nobody passes. The config's check refuses whatever would lead to this.
    Nobody,
}

/// A service that decides which requests may pass.
pub struct AuthService {
    /// Index of its pool in the snapshot.
    pub pool: usize,
    /// Name of its pool.
    pub pool_name: Box<str>,
    /// Path and query of the questions to it.
    pub target: Box<str>,
    /// Names of the request's fields that are sent to it, in lower case.
    pub told: Box<[Box<str>]>,
    /// Names of the cookies that are sent to it, each perhaps with a `*` at its end; all cookies if empty.
    pub cookies: Box<[Box<str>]>,
    /// Its remembered answers; `None` if it is asked about each request.
    pub remembered: Option<Arc<Remembered>>,
    /// Names of its answer's fields that are sent to the backend.
    pub to_backend: Box<[Box<str>]>,
    /// Names of its answer's fields that are sent to the client.
    pub to_client: Box<[Box<str>]>,
    /// Where browsers are redirected if it answers with 401.
    pub sign_in: Option<Template>,
    /// The field of its answer that names the user.
    pub user: Option<Box<str>>,
    /// For its answer, including all waits and retries.
    pub timeout: Duration,
    /// Most bytes of content in its answer.
    pub body_limit_bytes: u64,
}

impl Authenticator {
    /// The name of the service's pool; `None` if there is no service.
    pub fn pool_name(&self) -> Option<&str> {
        match self {
            Authenticator::Service(service) => Some(&service.pool_name),
            _ => None,
        }
    }

    /// Whether earlier answers are remembered for some time.
    pub fn remembers(&self) -> bool {
        matches!(self, Authenticator::Service(service) if service.remembered.is_some())
    }

    /// Compiles the config. `pool` gives the index of a pool by its name. `known` holds the compiled password
    /// files, which are reused where nothing has changed; `token_keys` are the keys that are fetched. `None`
    /// if no authentication is required.
    pub fn compile(
        config: Option<&weir_config::Authentication>,
        pool: impl Fn(&str) -> Option<usize>,
        known: &mut Vec<Arc<Passwords>>,
        token_keys: Option<&TokenKeys>,
    ) -> Option<Authenticator> {
        let config = config?;
        if let (Some(jwt), None, None) = (&config.jwt, &config.basic, &config.forward) {
            let tokens = Tokens::compile(jwt, token_keys).map(Box::new);
            return Some(tokens.map_or(Authenticator::Nobody, Authenticator::Tokens));
        }
        if let (Some(basic), None) = (&config.basic, &config.forward) {
            let passwords = Passwords::compile(basic, known);
            // Each only once, because the config of each of perhaps a thousand routes is compared with these.
            if !known.iter().any(|known| Arc::ptr_eq(known, &passwords)) {
                known.push(passwords.clone());
            }
            return Some(Authenticator::Passwords(passwords));
        }
        let Some(forward) = config.forward.as_ref() else { return Some(Authenticator::Nobody) };
        let Some(pool) = pool(&forward.pool) else { return Some(Authenticator::Nobody) };
        let names = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        Some(Authenticator::Service(AuthService {
            pool,
            pool_name: forward.pool.as_str().into(),
            target: forward.path.as_str().into(),
            told: names(&forward.request_headers),
            cookies: names(&forward.cookies),
            remembered: forward.remember.as_ref().and_then(Remembered::compile),
            to_backend: names(&forward.copy_to_backend),
            to_client: names(&forward.copy_to_client),
            sign_in: forward.sign_in.clone(),
            user: forward.user.as_deref().map(Into::into),
            timeout: forward.timeout,
            body_limit_bytes: forward.body_limit_bytes,
        }))
    }
}

impl Authenticator {
    /// The file of passwords, if there is one.
    pub(super) fn passwords(&self) -> Option<&Arc<Passwords>> {
        match self {
            Authenticator::Passwords(passwords) => Some(passwords),
            Authenticator::Service(_) | Authenticator::Tokens(_) | Authenticator::Nobody => None,
        }
    }

    /// How clients are authenticated, and what is done with the answer, in words.
    pub fn words(&self) -> String {
        let service = match self {
            Authenticator::Service(service) => service,
            Authenticator::Passwords(passwords) => return passwords.words(),
            Authenticator::Tokens(tokens) => return tokens.words(),
            Authenticator::Nobody => return "nobody is asked, and nobody passes".to_owned(),
        };
        let AuthService { pool_name, target, timeout, .. } = service;
        // The query may contain a secret.
        let (path, query) = target.split_once('?').map_or((&**target, ""), |(path, _)| (path, "?…"));
        let mut words = format!("pool {pool_name} is asked for GET {path}{query}, for at most {timeout:?}");
        for (names, whom) in [(&service.to_backend, "backend"), (&service.to_client, "client")] {
            if !names.is_empty() {
                words += &format!("; {} of its answer for the {whom}", names.join(", "));
            }
        }
        if let Some(to) = &service.sign_in {
            words += &format!("; browsers that it answers with 401 are led to {to}");
        }
        if let Some(remembered) = &service.remembered {
            words += &format!("; {}", remembered.words());
        }
        words
    }
}

/// A service's answer to a request that it does not let pass.
pub struct Refused {
    /// The status, 300 to 499.
    pub status: u16,
    /// The answer's fields, except for those that Weir writes itself.
    pub fields: Vec<AddedField>,
    /// The answer's content.
    pub content: Vec<u8>,
}

/// What is known about the user of a request; the buffers are reused for the next one.
#[derive(Default)]
pub struct UserFacts {
    /// Lines for the backend, each `name: value` and CRLF.
    pub to_backend: Vec<u8>,
    /// Lines for the client, in the same form.
    pub to_client: Vec<u8>,
    /// The user's name.
    pub name: Vec<u8>,
    /// The claims of the user's token.
    pub claims: Option<Claims>,
    /// Whether a remembered answer let the request pass.
    pub is_remembered: bool,
}

impl Reused for UserFacts {
    const UNUSED: &'static UserFacts = &UserFacts {
        to_backend: Vec::new(),
        to_client: Vec::new(),
        name: Vec::new(),
        claims: None,
        is_remembered: false,
    };

    fn clear(&mut self) {
        for part in [&mut self.to_backend, &mut self.to_client, &mut self.name] {
            part.clear();
        }
        self.claims = None;
        self.is_remembered = false;
    }
}

/// Appends a line; bytes in its value that would end the line are replaced.
fn put_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    let start = out.len();
    out.extend_from_slice(value);
    clean_field_value(out, start);
    out.extend_from_slice(b"\r\n");
}
