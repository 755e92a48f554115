//! Access control: the token, and the checks that keep a browser from being used against its own machine
//! (D10).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, header};

/// The admin token. Its `Debug` form hides it.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("(token)")
    }
}

/// The rules of one admin listener.
#[derive(Debug)]
pub struct Auth {
    /// A reload replaces it, from the next call on.
    token: Mutex<Option<Token>>,
    /// `None`: a Unix socket, which browsers can't reach.
    bind: Option<SocketAddr>,
    /// Whether TLS is used: then a browser notices a rebound name, since no certificate matches it.
    is_secured: bool,
    machine: String,
}

/// The level of access that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whether the process is alive and ready: for monitors of the machine.
    Watch,
    /// Current state. Needs the token if other machines can call.
    Read,
    /// A change. Needs the token if one is set.
    Change,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No `host`, or one that does not name this machine.
    Host,
    /// The call comes from another site.
    CrossSite,
    /// The token is missing or wrong.
    Token,
}

impl Auth {
    /// The rules for `config`. `Err` says why the admin API can't be opened with this config.
    pub fn new(config: &weir_config::Admin) -> Result<Auth, String> {
        let token = Auth::token_of(config)?;
        let proves_clients = config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if token.is_none() && !proves_clients && !config.bind.is_local() {
            return Err(format!(
                "the admin API may not listen on {} without a token: set admin.token_file, or bind to 127.0.0.1",
                config.bind
            ));
        }
        let machine = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        Ok(Auth {
            token: Mutex::new(token),
            bind: config.bind.inet(),
            is_secured: config.tls.is_some(),
            machine,
        })
    }

    /// The current content of the token file of `config`; `None` if it names none. `Err` says why the content
    /// can't be used.
    pub fn token_of(config: &weir_config::Admin) -> Result<Option<Token>, String> {
        let token = config.token_file.as_deref().map(read_token).transpose()?;
        Ok(token.map(|token| Token(token.into())))
    }

    /// Requires another token from the next call on, on open connections too.
    pub fn ask_for(&self, token: Option<Token>) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    fn token(&self) -> Option<Token> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a call may proceed.
    pub fn check(&self, headers: &HeaderMap, access: Access) -> Result<(), Refusal> {
        let has_token = self.has_token(headers);
        // A page whose own name resolves to 127.0.0.1 (DNS rebinding) sends that name; it can't know the
        // token.
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).ok_or(Refusal::Host)?;
        if let Some(bind) = self.bind.filter(|_| !has_token && !self.is_secured)
            && !self.is_this_machine(bind, host)
        {
            return Err(Refusal::Host);
        }
        let needs_token = match access {
            Access::Watch => false,
            // At such an address without a token, any caller that gets this far has presented a client
            // certificate.
            Access::Read => self.token().is_some() && self.bind.is_some_and(|bind| !is_loopback(bind)),
            Access::Change if is_cross_site(headers, host) => return Err(Refusal::CrossSite),
            Access::Change => self.token().is_some(),
        };
        if needs_token && !has_token { Err(Refusal::Token) } else { Ok(()) }
    }

    /// Whether nobody else can read the traffic: it stays on this machine or uses TLS.
    pub fn is_private(&self) -> bool {
        self.is_secured || self.bind.is_none_or(is_loopback)
    }

    /// Whether a request carries the right token. Always false if none is set.
    pub fn has_token(&self, headers: &HeaderMap) -> bool {
        let Some(Token(token)) = self.token() else { return false };
        let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| {
            let (scheme, rest) = value.split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
        });
        given.is_some_and(|given| equal_in_constant_time(given, token.as_bytes()))
    }

    /// Whether `host` is loopback, the bound address, or the machine's own name. If bound to all addresses,
    /// any address will do: only names can be made to resolve here by others.
    fn is_this_machine(&self, bind: SocketAddr, host: &str) -> bool {
        let name = host_without_port(host).to_ascii_lowercase();
        if let Ok(address) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
            return address.is_loopback() || address == bind.ip() || bind.ip().is_unspecified();
        }
        name == "localhost" || name.ends_with(".localhost") || name == self.machine
    }
}

fn is_loopback(bind: SocketAddr) -> bool {
    bind.ip().to_canonical().is_loopback()
}

/// Whether a browser marks the call as coming from another site's page. Other programs send no such mark.
fn is_cross_site(headers: &HeaderMap, host: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let fetched = text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none");
    let origin = text("origin").is_some_and(|origin| {
        let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        !site.is_some_and(|site| site.eq_ignore_ascii_case(host))
    });
    fetched || origin
}

fn host_without_port(host: &str) -> &str {
    match host.find(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Takes the same time wherever the first difference is; only the length of `given` can be inferred.
fn equal_in_constant_time(given: &[u8], expected: &[u8]) -> bool {
    let mut difference = given.len() ^ expected.len();
    for (index, byte) in given.iter().enumerate() {
        difference |= usize::from(byte ^ expected[index % expected.len().max(1)]);
    }
    std::hint::black_box(difference) == 0
}

/// The trimmed content of the token file in a config.
///
/// # Errors
/// It can't be read or is not a token; says why.
pub fn read_token(path: &Path) -> Result<String, String> {
    weir_tls::token::read(path).map_err(|error| error.to_string())
}

/// The trimmed content of a token file given to a command: it may be a pipe.
///
/// # Errors
/// It can't be read or is not a token; says why.
pub fn read_token_or_pipe(path: &Path) -> Result<String, String> {
    weir_tls::token::read_or_pipe(path).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn auth(bind: &str, token: Option<&str>) -> Auth {
        Auth {
            token: Mutex::new(token.map(|token| Token(token.into()))),
            bind: bind.parse().ok(),
            is_secured: false,
            machine: "lb1".into(),
        }
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_name_made_to_lead_here_by_somebody_else_is_refused() {
        let auth = auth("127.0.0.1:9900", None);
        for host in ["evil.example:9900", "evil.example", "10.0.0.1:9900", "localhost.evil.example", ""] {
            assert_eq!(auth.check(&headers(&[("host", host)]), Access::Read), Err(Refusal::Host), "{host}");
        }
        for host in ["127.0.0.1:9900", "localhost:9900", "LOCALHOST", "[::1]:9900", "lb1:9900"] {
            assert_eq!(auth.check(&headers(&[("host", host)]), Access::Read), Ok(()), "{host}");
        }
        assert_eq!(auth.check(&HeaderMap::new(), Access::Watch), Err(Refusal::Host));
    }

    #[test]
    fn a_page_of_another_site_can_not_change_anything() {
        let auth = auth("127.0.0.1:9900", None);
        let host = ("host", "127.0.0.1:9900");
        for field in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("origin", "http://127.0.0.1:8080"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(
                auth.check(&headers(&[host, field]), Access::Change),
                Err(Refusal::CrossSite),
                "{field:?}"
            );
            assert_eq!(auth.check(&headers(&[host, field]), Access::Read), Ok(()));
        }
        let same = headers(&[host, ("origin", "http://127.0.0.1:9900"), ("sec-fetch-site", "same-origin")]);
        assert_eq!(auth.check(&same, Access::Change), Ok(()));
    }

    #[test]
    fn changing_calls_need_the_token_where_one_is_set() {
        let host = ("host", "192.0.2.1:9900");
        let auth = auth("0.0.0.0:9900", Some(TOKEN));
        for wrong in
            ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Bearer ", "Basic 0123456789abcdef", "x"]
        {
            let headers = headers(&[host, ("authorization", wrong)]);
            assert_eq!(auth.check(&headers, Access::Change), Err(Refusal::Token), "{wrong}");
        }
        assert_eq!(auth.check(&headers(&[host]), Access::Change), Err(Refusal::Token));
        let right = ("authorization", "bearer 0123456789abcdef");
        assert_eq!(auth.check(&headers(&[host, right]), Access::Change), Ok(()));
        // A caller with the token may use any name.
        assert_eq!(auth.check(&headers(&[("host", "lb.internal"), right]), Access::Change), Ok(()));
    }

    #[test]
    fn reading_needs_the_token_where_others_than_this_machine_can_ask() {
        for (bind, refused) in [
            ("0.0.0.0:9900", true),
            ("[::]:9900", true),
            ("192.0.2.1:9900", true),
            ("127.0.0.1:9900", false),
            ("[::1]:9900", false),
            ("[::ffff:127.0.0.1]:9900", false),
        ] {
            let auth = auth(bind, Some(TOKEN));
            let host = ("host", bind);
            let found = auth.check(&headers(&[host]), Access::Read);
            assert_eq!(found, if refused { Err(Refusal::Token) } else { Ok(()) }, "{bind}");
            let right = ("authorization", "Bearer 0123456789abcdef");
            assert_eq!(auth.check(&headers(&[host, right]), Access::Read), Ok(()), "{bind}");
            assert_eq!(auth.check(&headers(&[host]), Access::Watch), Ok(()), "{bind}");
        }
    }

    #[test]
    fn an_address_others_can_reach_needs_a_token() {
        let admin = |bind: &str| weir_config::Admin {
            bind: bind.parse().unwrap(),
            token_file: None,
            tls: None,
            unix_socket: Default::default(),
        };
        assert!(Auth::new(&admin("127.0.0.1:9900")).is_ok());
        assert!(Auth::new(&admin("[::1]:9900")).is_ok());
        let error = Auth::new(&admin("0.0.0.0:9900")).unwrap_err();
        assert!(error.contains("without a token"), "{error}");
    }
}
