//! Who may ask: what a listener or a route wants to know of whoever asks before a request goes on, and what
//! is known then.
//!
//! [`gate`] asks, before memory or a backend answers. What is known of the user ends up in the request to
//! the backend by [`super::edit_table`], which also takes out what clients send by the same names.

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

/// What a listener or a route asks of whoever asks.
pub enum Authenticator {
    /// A service of another pool.
    Service(AuthService),
    /// A file of names and passwords.
    Passwords(Arc<Passwords>),
    /// Keys that tokens are signed by.
    Tokens(Box<Tokens>),
    /// Nobody is asked, and nobody passes: the config's check refuses what would come to this.
    Nobody,
}

/// A service that says who may pass.
pub struct AuthService {
    /// Index of its pool in the snapshot.
    pub pool: usize,
    /// Its name.
    pub pool_name: Box<str>,
    /// Path and query that it is asked for.
    pub target: Box<str>,
    /// Names of fields of the request that it is told, in lower case.
    pub told: Box<[Box<str>]>,
    /// Names of cookies that it is told, each perhaps with a `*` at its end; all where it is empty.
    pub cookies: Box<[Box<str>]>,
    /// What it has let pass; `None` where each request is asked about.
    pub remembered: Option<Arc<Remembered>>,
    /// Names of fields of its answer that the backend is told.
    pub to_backend: Box<[Box<str>]>,
    /// Names of fields of its answer that the client is told.
    pub to_client: Box<[Box<str>]>,
    /// Where browsers are led that it answers with 401.
    pub sign_in: Option<Template>,
    /// The field of its answer that names the user.
    pub user: Option<Box<str>>,
    /// For its answer, with all waits and tries.
    pub timeout: Duration,
    /// Most bytes of its answer's content.
    pub body_limit_bytes: u64,
}

impl Authenticator {
    /// The name of the pool that is asked; `None` where none is.
    pub fn pool_name(&self) -> Option<&str> {
        match self {
            Authenticator::Service(service) => Some(&service.pool_name),
            _ => None,
        }
    }

    /// Whether what was answered before stands for some time.
    pub fn remembers(&self) -> bool {
        matches!(self, Authenticator::Service(service) if service.remembered.is_some())
    }

    /// Compiles; `pool` gives the index of a pool by its name, and `known` are files of passwords that go on
    /// where nothing has changed; `token_keys` are those that are fetched. `None` where everybody may
    /// ask.
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
            // Each once: those of a thousand routes are compared with these.
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
    /// The file of passwords.
    pub(super) fn passwords(&self) -> Option<&Arc<Passwords>> {
        match self {
            Authenticator::Passwords(passwords) => Some(passwords),
            Authenticator::Service(_) | Authenticator::Tokens(_) | Authenticator::Nobody => None,
        }
    }

    /// Who is asked, and what becomes of the answer, in words.
    pub fn words(&self) -> String {
        let service = match self {
            Authenticator::Service(service) => service,
            Authenticator::Passwords(passwords) => return passwords.words(),
            Authenticator::Tokens(tokens) => return tokens.words(),
            Authenticator::Nobody => return "nobody is asked, and nobody passes".to_owned(),
        };
        let AuthService { pool_name, target, timeout, .. } = service;
        // The query may hold a secret.
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

/// What a service says of a request that it does not let pass.
pub struct Refused {
    /// 300 to 499.
    pub status: u16,
    /// Its fields, those left out that Weir writes itself.
    pub fields: Vec<AddedField>,
    /// Its content.
    pub content: Vec<u8>,
}

/// What is known of the user of a request, with room that is used again for the next.
#[derive(Default)]
pub struct UserFacts {
    /// Lines for the backend, `name: value` CRLF each.
    pub to_backend: Vec<u8>,
    /// Lines for the client.
    pub to_client: Vec<u8>,
    /// The name.
    pub name: Vec<u8>,
    /// What its token says.
    pub claims: Option<Claims>,
    /// Whether it was known without a question.
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

/// Appends a line, in whose value no byte ends it.
fn put_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    let start = out.len();
    out.extend_from_slice(value);
    clean_field_value(out, start);
    out.extend_from_slice(b"\r\n");
}
