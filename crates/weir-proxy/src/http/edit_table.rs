//! The rules about header fields of requests and responses, merged once for each route and pool.
//!
//! A listener without any rule has no [`EditTable`] and skips all of this. Lines without variables are
//! written when the rules are compiled; `edits` fills in the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use weir_config::{ClientAddress, Headers, MergedHeaders, MergedSide, RuleOf};
use weir_http::{DroppedNames, FieldEdits, ValueEdits};
use weir_template::{Source, Template, clean_field_value};

use crate::http::replacing::Replacing;
use crate::seldom::Reused;

/// The rules of a listener, its routes and the pools.
///
/// The rules of a listener, a pool and a route are merged when they are first needed together, and kept.
/// Routes without rules share one row, and pools without rules share one column.
pub struct EditTable {
    listener: Arc<weir_config::Listener>,
    pools: Vec<Arc<weir_config::Pool>>,
    /// Row of each route, by its number; 0 for routes without rules.
    rows: Box<[usize]>,
    /// Column of each pool, by its index; 0 for pools without rules.
    columns: Box<[usize]>,
    /// The row for requests of Weir's own, to which only the rules of their pool apply.
    question_row: usize,
    width: usize,
    /// Rules that follow from the listener's `client_address`: the field by which proxies name the client is
    /// sent to backends with the address that Weir believes, also if somebody else sent that field.
    implied: Headers,
    /// Names of the fields by which any `auth` tells backends who the user is: first those of this listener,
    /// then, by the index of a pool plus one, those of all listeners that lead to that pool too. Clients may
    /// not send these fields, whether their route has an `auth` or not.
    told: Box<[Box<[Box<str>]>]>,
    merged: Box<[OnceLock<Edits>]>,
}

/// The edits for exchanges of one route with one pool.
pub struct Edits {
    pub(super) request: Option<Side>,
    pub(super) response: Option<Side>,
    pub(super) host: Option<Template>,
}

/// The edits for one message.
pub(super) struct Side {
    /// Shared with bodies in transit, from whose trailers the same names are dropped.
    dropped: Arc<DroppedNames>,
    /// Whether some lines come from what authentication says about the user.
    tells_user: bool,
    /// All lines, if none of them has variables.
    constant: Option<Box<[u8]>>,
    steps: Box<[Lines]>,
    /// Rules about the values of fields that stay.
    values: Option<Box<Replacing>>,
}

/// Some lines of a message.
enum Lines {
    /// Lines without variables, already written.
    Constant(Box<[u8]>),
    /// A line whose value has variables.
    FilledIn {
        /// `name: `
        front: Box<[u8]>,
        value: Template,
    },
}

/// The lines filled in for one request; the buffers are reused for the next.
#[derive(Default)]
pub struct Rendered {
    pub(super) request: Vec<u8>,
    pub(super) response: Vec<u8>,
    /// What rules about values need to know of the request.
    pub(super) for_request: Vec<u8>,
    pub(super) for_response: Vec<u8>,
    pub(super) host: Vec<u8>,
    pub(super) client: Vec<u8>,
    pub(super) has_response: bool,
}

impl EditTable {
    /// The table of a listener; `None` if neither it nor any route nor any pool has rules. `told_by_pool`
    /// holds, by the pool's name, the names of the fields by which all listeners tell its backends about
    /// users.
    pub fn compile(
        listener: &Arc<weir_config::Listener>,
        pools: &[Arc<weir_config::Pool>],
        told_by_pool: &BTreeMap<&str, BTreeSet<&str>>,
    ) -> Option<Box<EditTable>> {
        let http = listener.http();
        let numbered = |says: &mut dyn Iterator<Item = bool>| -> (Box<[usize]>, usize) {
            let mut count = 0;
            let numbers = says.map(|says| {
                count += usize::from(says);
                if says { count } else { 0 }
            });
            (numbers.collect(), count)
        };
        let (rows, row_count) = numbered(&mut listener.routes.iter().map(|route| {
            !route.headers.is_empty()
                || route.marks != http.marks
                || route.backend_host.is_some()
                || route.auth != http.auth
        }));
        let of_listener = listener.told_to_backends();
        let of_pool = |pool: &weir_config::Pool| told_by_pool.get(pool.name.as_str());
        let (columns, column_count) = numbered(&mut pools.iter().map(|pool| {
            !pool.headers.is_empty()
                || pool.backend_host.is_some()
                || of_pool(pool).is_some_and(|told| !told.is_subset(&of_listener))
        }));
        let implied = implied(http);
        let says_nothing = implied.is_empty()
            && http.headers.is_empty()
            && http.marks.via
            && http.marks.forwarded
            && http.auth.is_none();
        if says_nothing && row_count + column_count == 0 {
            return None;
        }
        let width = column_count + 1;
        let question_row = row_count + 1;
        let merged = (0..width * (question_row + 1)).map(|_| OnceLock::new()).collect();
        let told = std::iter::once(None).chain(pools.iter().map(|pool| of_pool(pool))).map(|of_pool| {
            let all: BTreeSet<&str> =
                of_listener.iter().chain(of_pool.into_iter().flatten()).copied().collect();
            all.into_iter().map(Box::from).collect()
        });
        let told = told.collect();
        let (listener, pools) = (listener.clone(), pools.to_vec());
        Some(Box::new(EditTable {
            listener,
            pools,
            rows,
            columns,
            question_row,
            width,
            implied,
            told,
            merged,
        }))
    }

    /// The edits for requests that match the route of that number (or none) and go to the pool of that index
    /// (or to none).
    #[inline]
    pub fn of(&self, route: Option<usize>, pool: Option<usize>) -> &Edits {
        let cell = place(&self.rows, route) * self.width + place(&self.columns, pool);
        match self.merged[cell].get() {
            Some(edits) => edits,
            None => self.merge(cell, route, pool),
        }
    }

    /// The edits for Weir's own requests to the pool of that index.
    pub fn of_question(&self, pool: Option<usize>) -> &Edits {
        let cell = self.question_row * self.width + place(&self.columns, pool);
        self.merged[cell].get_or_init(|| {
            let (_, pool) = self.config_of(None, pool);
            let merged = MergedHeaders::of(pool.map(|pool| (RuleOf::Pool, &pool.headers)));
            let marks = self.listener.http().marks;
            let forwarded: &[&str] = if marks.forwarded { &[] } else { &["forwarded"] };
            Edits {
                request: Side::compile(&merged.request, true, marks.via, forwarded, &[]),
                response: None,
                host: pool.and_then(|pool| pool.backend_host.clone()),
            }
        })
    }

    #[cold]
    fn merge(&self, cell: usize, route: Option<usize>, pool: Option<usize>) -> &Edits {
        self.merged[cell].get_or_init(|| {
            let (merged, marks) = self.merged(route, pool);
            let (to_backend, to_client) = self.told_of_user(route);
            let forwarded = (!marks.forwarded).then_some("forwarded");
            let password = self.takes_authorization(route).then_some("authorization");
            let of_others = self.told_by_others(route, pool);
            let taken: Vec<&str> = forwarded.into_iter().chain(password).chain(of_others).collect();
            Edits {
                request: Side::compile(&merged.request, true, marks.via, &taken, &to_backend),
                response: Side::compile(&merged.response, false, marks.via, &[], &to_client),
                host: self.host(route, pool).cloned(),
            }
        })
    }

    fn config_of(
        &self,
        route: Option<usize>,
        pool: Option<usize>,
    ) -> (Option<&weir_config::Route>, Option<&weir_config::Pool>) {
        let pool = pool.and_then(|index| self.pools.get(index));
        (route.and_then(|number| self.listener.routes.get(number)), pool.map(|pool| &**pool))
    }

    /// The configured rules, merged, and which fields Weir adds about itself.
    pub fn merged(&self, route: Option<usize>, pool: Option<usize>) -> (MergedHeaders, weir_config::Marks) {
        let http = self.listener.http();
        let (route, pool) = self.config_of(route, pool);
        let rules = [
            Some((RuleOf::Listener, &self.implied)),
            Some((RuleOf::Listener, &http.headers)),
            pool.map(|pool| (RuleOf::Pool, &pool.headers)),
            route.map(|route| (RuleOf::Route, &route.headers)),
        ];
        (MergedHeaders::of(rules.into_iter().flatten()), route.map_or(http.marks, |route| route.marks))
    }

    /// Names of the fields about the user that go to a backend, and of those that go to the client.
    pub(super) fn told_of_user(&self, route: Option<usize>) -> (Vec<&str>, Vec<&str>) {
        let of_listener = &self.listener.http().auth;
        let auth = self.config_of(route, None).0.map_or(of_listener, |route| &route.auth);
        let Some(auth) = auth else { return Default::default() };
        let to_client = auth.forward.iter().flat_map(|it| &it.copy_to_client).map(String::as_str);
        (auth.told_to_backends().collect(), to_client.collect())
    }

    /// Names of fields about the user that the route's own `auth` does not set but another `auth` for the
    /// same backends does: what a client sends by these names is dropped. What the operator's rules set
    /// stays.
    pub(super) fn told_by_others(&self, route: Option<usize>, pool: Option<usize>) -> Vec<&str> {
        let (own, _) = self.told_of_user(route);
        let told = self.told.get(pool.map_or(0, |index| index + 1)).map_or(&[][..], |told| told);
        told.iter().map(|name| &**name).filter(|name| !own.contains(name)).collect()
    }

    /// Whether the client's `authorization` is dropped. What the operator's rules set by that name stays.
    pub(super) fn takes_authorization(&self, route: Option<usize>) -> bool {
        let of_listener = &self.listener.http().auth;
        let auth = self.config_of(route, None).0.map_or(of_listener, |route| &route.auth);
        auth.as_ref().and_then(|auth| auth.basic.as_ref()).is_some_and(|it| !it.pass_authorization)
    }

    /// The `host` that is sent to backends; `None` for the one that the client sent.
    pub fn host(&self, route: Option<usize>, pool: Option<usize>) -> Option<&Template> {
        let (route, pool) = self.config_of(route, pool);
        let of_pool = pool.and_then(|pool| pool.backend_host.as_ref());
        route.and_then(|route| route.backend_host.as_ref()).or(of_pool)
    }

    /// A text that is part of cache keys: it differs where requests to backends are made by different rules.
    pub fn scope(&self, route: Option<usize>, pool: Option<usize>) -> Vec<u8> {
        let merged = self.merged(route, pool).0.request;
        let mut scope = Vec::new();
        for (name, _) in &merged.dropped {
            scope.extend_from_slice(format!("\n-{name}").as_bytes());
        }
        for field in &merged.new {
            scope.extend_from_slice(format!("\n{}:{}", field.name, field.value).as_bytes());
        }
        for rule in merged.values.iter().flat_map(|rules| &rules.values) {
            scope.extend_from_slice(format!("\n~{rule:?}").as_bytes());
        }
        if let Some(host) = self.host(route, pool) {
            scope.extend_from_slice(format!("\n@{host}").as_bytes());
        }
        scope
    }
}

/// Row of a route, or column of a pool; 0 for none, and for those without rules.
#[inline]
fn place(places: &[usize], index: Option<usize>) -> usize {
    index.and_then(|index| places.get(index)).copied().unwrap_or(0)
}

/// The rules that follow from how a listener learns the addresses of its clients.
fn implied(http: &weir_config::Http) -> Headers {
    let mut implied = Headers::default();
    if let Some(field) = http.client_address.as_ref().and_then(ClientAddress::single_field)
        && let Ok(client) = Template::parse("$client_ip", 0)
    {
        implied.set_request_header.insert(field.to_owned(), client);
    }
    implied
}

impl Side {
    /// Drops the fields that others sent by the names `taken`. The fields `of_user`, which come from
    /// authentication, replace all that others sent, and that rules set, by these names.
    fn compile(
        merged: &MergedSide,
        is_request: bool,
        writes_via: bool,
        taken: &[&str],
        of_user: &[&str],
    ) -> Option<Side> {
        // Each `set-cookie` line is a cookie of its own, so none replaces another.
        let replaced = of_user.iter().copied().filter(|name| *name != "set-cookie");
        let names = merged.dropped.iter().map(|(name, _)| name.as_str()).chain(taken.iter().copied());
        let names = names.chain(replaced);
        let mut dropped = DroppedNames::new(names);
        if !writes_via {
            dropped = dropped.leaving_via();
        }
        let values = Replacing::compile(merged, is_request).map(Box::new);
        if dropped.is_empty() && merged.new.is_empty() && of_user.is_empty() && values.is_none() {
            return None;
        }
        let is_of_user = |name: &str| name != "set-cookie" && of_user.contains(&name);
        let mut steps = Vec::new();
        for field in merged.new.iter().filter(|field| !is_of_user(&field.name)) {
            let front = format!("{}: ", field.name).into_bytes();
            match (field.value.as_constant(), steps.last_mut()) {
                (Some(value), Some(Lines::Constant(lines))) => {
                    *lines = [&lines[..], &front, value.as_bytes(), b"\r\n"].concat().into();
                }
                (Some(value), _) => {
                    steps.push(Lines::Constant([&front, value.as_bytes(), b"\r\n"].concat().into()));
                }
                (None, _) => steps.push(Lines::FilledIn { front: front.into(), value: field.value.clone() }),
            }
        }
        let tells_user = !of_user.is_empty();
        let constant = match &mut *steps {
            _ if tells_user => None,
            [] => Some(Box::default()),
            [Lines::Constant(lines)] => Some(std::mem::take(lines)),
            _ => None,
        };
        Some(Side { dropped: Arc::new(dropped), tells_user, constant, steps: steps.into(), values })
    }

    /// Fills in what rules about values need to know.
    #[inline]
    pub(super) fn fill_in(&self, source: &impl Source, out: &mut Vec<u8>) {
        if let Some(values) = &self.values {
            values.fill_in(source, out);
        }
    }

    /// Fills in the lines with variables; `of_user` holds the lines about the user.
    pub(super) fn render(&self, values: &impl Source, of_user: &[u8], out: &mut Vec<u8>) {
        out.clear();
        if self.constant.is_some() {
            return;
        }
        for step in &self.steps {
            match step {
                Lines::Constant(lines) => out.extend_from_slice(lines),
                Lines::FilledIn { front, value } => put_line(front, value, values, out),
            }
        }
        if self.tells_user {
            out.extend_from_slice(of_user);
        }
    }

    /// The edits, once the lines, and what rules about values need to know, are filled in.
    #[inline]
    pub(super) fn edits<'a>(&'a self, lines: &'a [u8], filled_in: &'a [u8]) -> FieldEdits<'a> {
        let values = self.values.as_deref().map(|rules| ValueEdits { rules, filled_in });
        FieldEdits { dropped: &self.dropped, lines: self.constant.as_deref().unwrap_or(lines), values }
    }
}

/// Appends a line, or nothing if its value turns out empty.
#[inline]
pub(super) fn put_line(front: &[u8], value: &Template, values: &impl Source, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(front);
    let value_start = out.len();
    value.render(values, out);
    clean_field_value(out, value_start);
    match out.len() == value_start {
        true => out.truncate(start),
        false => out.extend_from_slice(b"\r\n"),
    }
}

impl Reused for Rendered {
    const UNUSED: &'static Rendered = &Rendered {
        request: Vec::new(),
        response: Vec::new(),
        for_request: Vec::new(),
        for_response: Vec::new(),
        host: Vec::new(),
        client: Vec::new(),
        has_response: false,
    };

    fn clear(&mut self) {
        self.has_response = false;
    }
}

impl Rendered {
    /// The client's address as text, where a trusted proxy named it.
    pub fn client(&self) -> &[u8] {
        &self.client
    }

    /// Frees buffers that one request has made larger than `most_bytes`.
    pub fn shrink(&mut self, most_bytes: usize) {
        let Rendered { request, response, for_request, for_response, host, .. } = self;
        for room in [request, response, for_request, for_response, host] {
            if room.capacity() > most_bytes {
                *room = Vec::new();
            }
        }
    }
}

impl Edits {
    /// The edits for the request, once its lines are filled in.
    pub fn of_request<'a>(&'a self, rendered: &'a Rendered) -> Option<FieldEdits<'a>> {
        Some(self.request.as_ref()?.edits(&rendered.request, &rendered.for_request))
    }

    /// Names that are dropped from the request's trailers; `None` for none.
    pub fn dropped_of_request(&self) -> Option<Arc<DroppedNames>> {
        self.request.as_ref().map(|side| side.dropped.clone())
    }

    /// The edits for the response, once its lines are filled in.
    pub fn of_response<'a>(&'a self, rendered: &'a Rendered) -> Option<FieldEdits<'a>> {
        Some(self.response.as_ref()?.edits(&rendered.response, &rendered.for_response))
    }

    /// Names that are dropped from the response's trailers; `None` for none.
    pub fn dropped_of_response(&self) -> Option<Arc<DroppedNames>> {
        self.response.as_ref().map(|side| side.dropped.clone())
    }

    /// The `host` that is sent to the backend, once it is filled in; `None` for the one that the client sent.
    pub fn host<'a>(&self, rendered: &'a Rendered) -> Option<&'a [u8]> {
        self.host.as_ref().map(|_| &*rendered.host)
    }
}
