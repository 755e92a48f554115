//! A request as `weir explain` sees it. The code that decides about real requests decides about it; nothing
//! is counted or sent.

use std::net::{IpAddr, SocketAddr};

use weir_config::{MergedSide, Sqli, ValueRules};
use weir_http::values::accept::Wants;
use weir_http::{Progress, RequestHead, Scheme, parse_request};
use weir_io::clock;
use weir_screen::Screen;
use weir_state::maps::{Map, MapAnswer};
use weir_state::{Maps, Pool};
use weir_template::Template;

use crate::client::Client;
use crate::http::cache;
use crate::http::edit_table::EditTable;
use crate::http::edits;
use crate::http::failure::Failure;
use crate::http::hold;
use crate::http::limits::limits_of;
use crate::http::mirror::Mirror;
use crate::http::pages::{self, Pages};
use crate::http::plan::{self, OverTls, Paths, Received, Refused};
use crate::http::request_values::{self, TlsValues, Values, Who};
use crate::http::route::Route;
use crate::http::screening::{self, Step};
use crate::http::sqli;
use crate::http::sticky::Sticky;
use crate::reach::{HedgeAsked, HedgeRules};

/// The parts of a request, as text.
#[derive(Clone, Copy)]
pub struct Words<'q> {
    /// Method.
    pub method: &'q str,
    /// Request-target: path and query, `*`, or for CONNECT an authority.
    pub target: &'q str,
    /// The host, if no header gives it.
    pub authority: &'q str,
    /// Header fields.
    pub headers: &'q [(String, String)],
}

/// The answer to a request that is not let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The status, 400 to 599.
    pub status: u16,
    /// The reason in the body of the answer.
    pub word: &'static str,
}

impl From<Failure> for Answered {
    fn from(failure: Failure) -> Answered {
        // Every failure that a head is refused with has a status.
        Answered { status: failure.status().unwrap_or(400), word: failure.word() }
    }
}

impl From<Refused> for Answered {
    fn from(refused: Refused) -> Answered {
        Failure::from(refused).into()
    }
}

/// A request that was parsed as a listener would.
pub struct Request {
    head: RequestHead,
    text: Vec<u8>,
    client: SocketAddr,
    is_trusted: bool,
}

/// How a request arrives.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    /// The port that the client connects to.
    pub port: u16,
    /// The TLS that it comes over; `None` without TLS.
    pub tls: Option<OverTls<'a>>,
    /// The maps for `$map.NAME`; `None` if there are no maps.
    pub maps: Option<&'a Maps>,
}

/// A change to a header field by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Whether the field goes to the client, and not to the backend.
    pub to_client: bool,
    /// Where the rule is: listener, pool or route.
    pub of: &'static str,
    /// `set`, `add`, `remove` or `replace`.
    pub action: &'static str,
    /// Name of the field.
    pub name: String,
    /// Its value; `None` for a field that is removed, and for one left out because its value is empty. For
    /// one whose values are replaced: which, and by what.
    pub value: Option<String>,
}

impl Request {
    /// Writes the request in HTTP/1.1 and parses it as the listener would on a connection from `peer`. No
    /// word may contain a line break.
    ///
    /// # Errors
    /// The listener would refuse it; gives the answer.
    pub fn read(
        listener: &weir_config::Listener,
        peer: IpAddr,
        words: &Words<'_>,
    ) -> Result<Request, Answered> {
        let text = written(words);
        let mut head = RequestHead::new();
        match parse_request(&text, &limits_of(&listener.http().limits), &mut head) {
            Ok(Progress::Complete { .. }) => {}
            Ok(Progress::Partial) => return Err(Failure::HeaderTimeout.into()),
            Err(violation) => return Err(Failure::BadRequest(violation).into()),
        }
        let peer = Client::of_peer(SocketAddr::new(peer, 0));
        let client = peer.of_request(listener, &head, &text);
        let is_trusted = weir_config::contains(&listener.http().trusted_proxies, peer.address.ip());
        Ok(Request { client: client.address, is_trusted, head, text })
    }

    /// The request as input for the plan.
    pub fn received<'a>(&'a self, tls: Option<OverTls<'a>>) -> Received<'a> {
        Received { head: &self.head, text: &self.text, tls, client: self.client.ip() }
    }

    /// The client's address.
    pub fn client(&self) -> IpAddr {
        self.client.ip()
    }

    /// The path as sent.
    pub fn path(&self) -> &[u8] {
        self.head.path(&self.text)
    }

    /// What access lists and rate limits would answer now. `paths` are those of the plan.
    pub fn screens(&self, screens: [Option<&Screen>; 2], paths: &Paths, arrival: &Arrival<'_>) -> Vec<Step> {
        screening::explain(screens, &self.received(None), &self.values(arrival).along(paths))
    }

    /// What the screen for SQL injection says about the head, and the answer if it refuses the request;
    /// `None` if it is off.
    pub fn injection(&self, asked: Sqli) -> Option<(String, Option<Answered>)> {
        let (sentence, refuses) = sqli::explain(asked, &self.received(None))?;
        Some((sentence, refuses.then(|| Failure::Injection.into())))
    }

    /// What the route's cache says; `None` if it has none.
    pub fn cached(&self, route: &Route, is_secure: bool, paths: &Paths) -> Option<String> {
        let scheme = if is_secure { Scheme::Https } else { Scheme::Http };
        let cache = route.cache.as_deref()?;
        Some(cache::explain::explain(cache, &self.received(None), scheme, paths, self.is_trusted))
    }

    /// What the pool chooses by: the key, and the backend that the cookie names.
    pub fn wish(&self, pool: &Pool, paths: &Paths, arrival: &Arrival<'_>) -> (Option<u64>, Option<u64>) {
        // A placeholder name for the user would be hashed to a backend of its own.
        let values = Values { user: Who::Nobody, ..self.values(arrival).along(paths) };
        let key = plan::key_of(&pool.config, &values);
        (key, Sticky::of(pool, self.received(None).cookies()).wanted)
    }

    /// When a second backend of the pool would be asked in parallel, in words; `None` if that is never done.
    pub fn hedged(&self, pool: &Pool, route: Option<&Route>, is_sticky: bool) -> Option<String> {
        let of_route = route.and_then(|route| route.retry.as_deref());
        let rules = HedgeRules::of(&pool.config.retry, of_route)?;
        let asked = HedgeAsked {
            method: self.head.method(),
            is_whole: true,
            is_tunnel: self.head.upgrade(&self.text).is_some(),
            is_early: false,
            is_sticky,
        };
        let mut told = rules.words(&asked, pool.balance.response_times(), clock::now());
        if rules.hindrance(&asked).is_none() && pool.balance.eligible().len() < 2 {
            told += "; no other takes work now";
        }
        Some(told)
    }

    /// Which copies are made for another pool, and whether one of this request; that pool is called `pool`,
    /// and `is_closed` says whether it is in maintenance for the client.
    pub fn copied(&self, mirror: &Mirror, pool: &str, is_closed: impl FnOnce() -> bool) -> String {
        mirror.words(pool, (&self.head, &self.text), is_closed)
    }

    /// The answer of each map for the request.
    pub fn mapped<'a>(&self, paths: &Paths, arrival: &Arrival<'a>) -> Vec<(&'a Map, MapAnswer)> {
        let values = self.values(arrival).along(paths);
        let maps = arrival.maps.into_iter().flat_map(Maps::all);
        maps.map(|map| (&**map, map.explain(&values))).collect()
    }

    /// Whether its body is forwarded to `pool` as it comes, even if other bodies are held back.
    pub fn is_never_held(&self, pool: &weir_state::Pool) -> bool {
        Wants::of(&self.head, &self.text) == Wants::Grpc && hold::lets_calls_pass(pool)
    }

    /// The form in which the client gets an error with this status.
    pub fn told(&self, pages: Option<&Pages>, status: u16) -> String {
        pages::form_words(&pages::form(pages, status, Wants::of(&self.head, &self.text)))
    }

    /// The target of a redirect to `to`.
    pub fn location(&self, to: &Template, paths: &Paths, arrival: &Arrival<'_>) -> String {
        let location = request_values::location(to, &self.values(arrival).along(paths));
        String::from_utf8_lossy(&location).into_owned()
    }

    /// What rules change about header fields; for a request that goes to no pool, only those of the answer.
    /// Values that may be secret are masked.
    pub fn changes(
        &self,
        table: &EditTable,
        (route, pool): (Option<usize>, Option<usize>),
        paths: &Paths,
        arrival: &Arrival<'_>,
    ) -> Vec<FieldChange> {
        let values = self.values(arrival).along(paths);
        let (merged, marks) = table.merged(route, pool);
        let mut changes = Vec::new();
        let mut tell = |to_client: bool, side: &MergedSide| {
            let is_set = |name: &str| side.new.iter().any(|field| field.name == name && !field.is_added);
            let removed = side.dropped.iter().filter(|(name, _)| !is_set(name));
            changes.extend(removed.map(|(name, of)| FieldChange {
                to_client,
                of: of.word(),
                action: "remove",
                name: name.clone(),
                value: None,
            }));
            changes.extend(side.new.iter().map(|field| FieldChange {
                to_client,
                of: field.of.word(),
                action: if field.is_added { "add" } else { "set" },
                name: field.name.clone(),
                value: edits::value_of(field, &values, !to_client),
            }));
            changes.extend(side.values.iter().flat_map(|rules| replacements(rules, to_client)));
            if !marks.via {
                let of = if route.is_some() { "route" } else { "listener" };
                changes.push(FieldChange {
                    to_client,
                    of,
                    action: "remove",
                    name: "via".to_owned(),
                    value: None,
                });
            }
        };
        if pool.is_some() {
            tell(false, &merged.request);
        }
        tell(true, &merged.response);
        let (to_backend, to_client) = table.told_of_user(route);
        let to_backend = to_backend.into_iter().filter(|_| pool.is_some()).map(|name| (false, name));
        for (is_to_client, name) in to_backend.chain(to_client.into_iter().map(|name| (true, name))) {
            let is_added = name == "set-cookie";
            changes.retain(|other| is_added || other.to_client != is_to_client || other.name != name);
            let action = match name {
                "set-cookie" => "add",
                _ => "set",
            };
            changes.push(FieldChange {
                to_client: is_to_client,
                of: "auth",
                action,
                name: name.to_owned(),
                value: Some("(what is known of the user)".to_owned()),
            });
        }
        let password = table.takes_authorization(route).then_some("authorization");
        let taken = table.told_by_others(route, pool).into_iter().chain(password);
        for name in taken.filter(|_| pool.is_some()) {
            let says = |other: &FieldChange| !other.to_client && other.name == name && other.action != "add";
            if !changes.iter().any(says) {
                let name = name.to_owned();
                changes.push(FieldChange {
                    to_client: false,
                    of: "auth",
                    action: "remove",
                    name,
                    value: None,
                });
            }
        }
        if pool.is_some() && !marks.forwarded {
            let of = if route.is_some() { "route" } else { "listener" };
            let name = "forwarded".to_owned();
            changes.push(FieldChange { to_client: false, of, action: "remove", name, value: None });
        }
        changes
    }

    /// The `host` that is sent to a backend, if rules set it.
    pub fn backend_host(
        &self,
        table: &EditTable,
        (route, pool): (Option<usize>, Option<usize>),
        paths: &Paths,
        arrival: &Arrival<'_>,
    ) -> Option<String> {
        let mut host = Vec::new();
        table.host(route, pool)?.render(&self.values(arrival).along(paths), &mut host);
        Some(String::from_utf8_lossy(&host).into_owned())
    }

    /// The path and the query that are sent to a backend; only the path if the query is unchanged.
    pub fn asked_for(&self, paths: &Paths) -> Vec<u8> {
        let mut asked = paths.forwarded().unwrap_or(self.path()).to_vec();
        if let Some(query) = paths.query(None) {
            asked.push(b'?');
            asked.extend_from_slice(query);
        }
        asked
    }

    /// The values of variables before planning.
    pub fn values<'a>(&'a self, arrival: &'a Arrival<'_>) -> Values<'a> {
        Values {
            head: Some((&self.head, &self.text)),
            path: b"",
            groups: None,
            authority: self.head.host(&self.text).unwrap_or_default(),
            client: self.client,
            scheme: if arrival.tls.is_some() { Scheme::Https } else { Scheme::Http },
            request_id: self.head.request_id(&self.text).unwrap_or(b"(made for each request)"),
            listener_port: arrival.port,
            tls: arrival.tls.map(|tls| TlsValues {
                server_name: tls.server_name,
                version: "TLSv1.3",
                subject: None,
            }),
            maps: arrival.maps,
            user: Who::Asked,
        }
    }
}

/// The rules of one owner about values, in words; those about requests may be secret, and are masked.
fn replacements(rules: &ValueRules, to_client: bool) -> Vec<FieldChange> {
    let change = |name: &str, words: String| FieldChange {
        to_client,
        of: rules.of.word(),
        action: "replace",
        name: name.to_owned(),
        value: Some(words),
    };
    let values = rules.values.iter().map(|rule| {
        let words = match to_client {
            true => rule.words(),
            false => format!("{} by {}", weir_config::SECRET, edits::masked(&rule.to)),
        };
        change(&rule.name, words)
    });
    values.chain(rules.cookies.iter().map(|rule| change("set-cookie", rule.words()))).collect()
}

fn written(words: &Words<'_>) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\n", words.method, words.target);
    if !words.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += &format!("host: {}\r\n", words.authority);
    }
    for (name, value) in words.headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    text.into_bytes()
}
