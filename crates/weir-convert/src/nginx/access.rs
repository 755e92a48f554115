//! Who may ask: `allow` and `deny`, `auth_basic`, `auth_request`, `satisfy`.

use std::collections::BTreeMap;

use weir_config::quoted;

use super::conversion::Conversion;
use super::errors::located;
use super::locations::PlacedLocation;
use super::networks::{ClientLists, lists};
use super::pools::{PoolKind, pool};
use super::proxy_target::ProxyTarget;
use super::request_test::RequestTest;
use super::route::NewRoute;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::variables::{NginxPlace, single_variable};
use crate::write::texts;

/// What holds for the requests of a location.
#[derive(Clone, Debug, Default)]
pub struct NginxGate {
    lists: ClientLists,
    /// The keys of `auth`, without those of what is copied.
    basic: Option<String>,
    forward: Option<Vec<String>>,
    /// Nobody is let in, since what must be asked cannot be.
    is_closed: bool,
    /// Either the lists or the rest is enough.
    any_is_enough: bool,
}

/// What other modules ask of clients, and why it is not converted.
const ASKED_BY_MODULES: [(&str, &str); 9] = [
    ("access_by_lua", "who may ask is decided by Lua"),
    ("access_by_lua_block", "who may ask is decided by Lua"),
    ("access_by_lua_file", "who may ask is decided by Lua"),
    ("auth_jwt", "write it as `auth = { jwt = … }`"),
    ("auth_digest", "Weir has no digests of passwords"),
    ("auth_gss", "Weir does not speak Kerberos"),
    ("auth_ldap", "Weir does not speak LDAP"),
    ("auth_ldap_servers", "Weir does not speak LDAP"),
    ("auth_pam", "Weir does not speak PAM"),
];

/// Fields of the answer of `auth_request`, by the variables that `auth_request_set` puts them into.
pub type AnswerFields = BTreeMap<String, String>;

/// What the answer of `auth_request` has, by the variables that `auth_request_set` puts it into.
pub fn answer_fields(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) -> AnswerFields {
    let mut fields = AnswerFields::new();
    if scope.one("auth_request").is_none_or(|directive| directive.word(0) == "off") {
        return fields;
    }
    for directive in scope.all("auth_request_set") {
        let name = directive.word(0).trim_start_matches('$').to_owned();
        match single_variable(directive.word(1))
            .as_deref()
            .and_then(|value| value.strip_prefix("upstream_http_"))
        {
            Some(field) => {
                fields.insert(name, field.replace('_', "-"));
                conversion
                    .ledger
                    .exact(directive, "where it is used: `copy_to_backend`, `copy_to_client` or `user`");
            }
            None => {
                conversion.ledger.unsupported(directive, "only fields of the answer can be copied: left out")
            }
        }
    }
    fields
}

/// Reads who may ask in a block. `locations` are those of its server, `server` the scope of that.
pub fn gate<'c>(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    (locations, server): (&[PlacedLocation<'c>], &NginxScope<'c>),
    place: &NginxPlace,
) -> NginxGate {
    let mut gate = NginxGate {
        lists: lists(&scope.any_of(&["allow", "deny"]), &mut conversion.ledger),
        ..NginxGate::default()
    };
    if let Some(directive) = scope.one("auth_basic").filter(|directive| directive.word(0) != "off") {
        match basic(conversion, scope, directive, place) {
            Ok(keys) => gate.basic = Some(keys),
            Err(why) => {
                let note = format!("{why}: SUCH REQUESTS ARE ANSWERED WITH 403");
                conversion.ledger.unsupported(directive, note);
                gate.is_closed = true;
            }
        }
    } else if let Some(directive) = scope.one("auth_basic") {
        conversion.ledger.exact(directive, "no `auth`");
    }
    if let Some(directive) = scope.one("auth_request").filter(|directive| directive.word(0) != "off") {
        match forward(conversion, directive, (locations, server), place) {
            Ok(keys) => gate.forward = Some(keys),
            Err(why) => {
                let note = format!("{why}: SUCH REQUESTS ARE ANSWERED WITH 403");
                conversion.ledger.unsupported(directive, note);
                gate.is_closed = true;
            }
        }
        sign_in(conversion, scope, &mut gate, (locations, server), place);
    } else if let Some(directive) = scope.one("auth_request") {
        conversion.ledger.exact(directive, "no `auth`");
    }
    for (name, what) in ASKED_BY_MODULES {
        for directive in scope.all(name).into_iter().filter(|directive| directive.word(0) != "off") {
            let note = format!("{what}: SUCH REQUESTS ARE ANSWERED WITH 403");
            conversion.ledger.unsupported(directive, note);
            gate.is_closed = true;
        }
    }
    if let Some(directive) = scope.one("satisfy") {
        let has_auth = gate.basic.is_some() || gate.forward.is_some();
        match (directive.word(0), has_auth && !gate.lists.is_open(), gate.lists.deny.is_empty()) {
            ("any", true, true) => {
                gate.any_is_enough = true;
                conversion
                    .ledger
                    .exact(directive, "a route for the clients of `allow`, and one for all others");
            }
            ("any", true, false) => {
                let note = "with `deny` for some and `allow` for others, BOTH are asked for: nobody gets in who would not";
                conversion.ledger.unsupported(directive, note);
            }
            _ => conversion.ledger.exact(directive, "there is one condition, or all hold"),
        }
    }
    gate
}

impl NginxGate {
    /// Whether somebody is known who asks.
    pub fn names_user(&self) -> bool {
        self.basic.is_some()
    }

    /// The routes that a route becomes: it with the conditions, or two where one of them is enough, or one
    /// that refuses. What the answer of `auth_request` has for backends and clients is in `copied`.
    pub fn routes(&self, route: NewRoute, copied: &CopiedFields) -> Vec<NewRoute> {
        if self.is_closed || (self.lists.refuses_all && !self.any_is_enough) {
            return vec![NewRoute::answering(route.test, route.comment, 403)];
        }
        let mut all = Vec::new();
        let mut route = route;
        if self.any_is_enough {
            let inside = RequestTest { client_ip: self.lists.allow.clone(), ..RequestTest::default() };
            if !self.lists.allow.is_empty()
                && let Some(test) = route.test.and(&inside)
            {
                all.push(route.for_test(test));
            }
        } else {
            if !self.lists.allow.is_empty() {
                route.set("allow_address", texts(&self.lists.allow));
            }
            if !self.lists.deny.is_empty() {
                route.set("deny_address", texts(&self.lists.deny));
            }
        }
        let mut ways = Vec::new();
        if let Some(keys) = &self.forward {
            let mut keys = keys.clone();
            keys.extend(copied.keys());
            ways.push(format!("forward = {{ {} }}", keys.join(", ")));
        }
        ways.extend(self.basic.as_ref().map(|keys| format!("basic = {{ {keys} }}")));
        if !ways.is_empty() {
            route.set("auth", format!("{{ {} }}", ways.join(", ")));
        }
        all.push(route);
        all
    }
}

/// What is taken from the answer of `auth_request`.
#[derive(Clone, Debug, Default)]
pub struct CopiedFields {
    /// For backends, by the same name.
    pub to_backend: Vec<String>,
    /// For clients, by the same name.
    pub to_client: Vec<String>,
    /// The field that names the user.
    pub user: Option<String>,
}

impl CopiedFields {
    fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        if !self.to_backend.is_empty() {
            keys.push(format!("copy_to_backend = {}", texts(&self.to_backend)));
        }
        if !self.to_client.is_empty() {
            keys.push(format!("copy_to_client = {}", texts(&self.to_client)));
        }
        keys.extend(self.user.as_ref().map(|user| format!("user = {}", quoted(user))));
        keys
    }
}

/// The keys of `basic`. `Err` says why there are none.
fn basic(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    directive: &NginxDirective,
    place: &NginxPlace,
) -> Result<String, String> {
    let users = scope.one("auth_basic_user_file").ok_or("there is no `auth_basic_user_file`")?;
    let path = conversion.file(&place.constant(users.word(0)));
    if path.contains('$') {
        return Err("the file of users is chosen by the request".to_owned());
    }
    match conversion.files.read(&path) {
        Ok(text) => {
            let bad = text.lines().find(|line| {
                let line = line.trim();
                let hash = line.split_once(':').map_or("", |(_, hash)| hash);
                !line.is_empty()
                    && !line.starts_with('#')
                    && !hash.starts_with("$2")
                    && !hash.starts_with("$argon2")
            });
            if let Some(bad) = bad {
                let name = bad.split(':').next().unwrap_or_default();
                let note = format!(
                    "`{path}` has a hash of another kind than bcrypt and Argon2 (of `{name}`): make it anew with `htpasswd -B`"
                );
                conversion.ledger.unsupported(users, note.clone());
                return Err(note);
            }
            conversion.ledger.exact(users, "`users`");
        }
        Err(why) => {
            let note = format!(
                "`users`; it was not looked at ({why}): only hashes of bcrypt and Argon2 are taken (`htpasswd -B`)"
            );
            conversion.ledger.approximate(users, note);
        }
    }
    conversion.ledger.exact(
        directive,
        "`auth = { basic = … }`; backends get the password, as by nginx, unless it is taken out",
    );
    let realm = place.constant(directive.word(0));
    let realm = if realm.contains('$') || realm.is_empty() { "restricted".to_owned() } else { realm };
    let hides = scope
        .all("proxy_set_header")
        .iter()
        .any(|directive| directive.word(0).eq_ignore_ascii_case("authorization"));
    let pass = if hides { "" } else { ", pass_authorization = true" };
    Ok(format!("users = {}, realm = {}{pass}", quoted(&path), quoted(&realm)))
}

/// The keys of `forward`: the pool and the path of the service. `Err` says why there are none.
fn forward<'c>(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    (locations, server): (&[PlacedLocation<'c>], &NginxScope<'c>),
    place: &NginxPlace,
) -> Result<Vec<String>, String> {
    let asked = place.constant(directive.word(0));
    if asked.contains('$') {
        return Err("the path of `auth_request` is chosen by the request".to_owned());
    }
    let path = asked.split('?').next().unwrap_or_default();
    let location = located(locations, path).ok_or_else(|| format!("no location is for `{asked}`"))?;
    let scope = location.chain.iter().fold(server.clone(), |scope, each| scope.within(each.inner()));
    let pass = scope
        .own("proxy_pass")
        .last()
        .copied()
        .ok_or_else(|| format!("the location for `{asked}` asks no service"))?;
    let target = ProxyTarget::of(&place.constant(pass.word(0)))?;
    let inner = NginxPlace { proxy_host: target.proxy_host(), ..place.clone() };
    let kind = PoolKind::Http { is_grpc: false, has_tls: target.has_tls };
    let found = pool(conversion, &target.authority, kind, &scope, &inner)?;
    let service_path = match &target.uri {
        None => asked.clone(),
        Some(uri) if uri.contains('$') => {
            return Err("the service's path is chosen by the request".to_owned());
        }
        Some(uri) => {
            let own = super::locations::words_of(location.own()).1;
            format!("{uri}{}", asked.strip_prefix(own).unwrap_or_default())
        }
    };
    conversion.ledger.exact(pass, "the pool that `auth` asks");
    conversion.ledger.approximate(
        directive,
        "`auth = { forward = … }`: the service is told `x-forwarded-…`, `cookie`, `authorization` and the like, not all fields (`request_header` names more); 3xx and 4xx of it go to the client",
    );
    for own in scope.own("proxy_set_header") {
        let note = "the service is told `x-forwarded-method`, `-uri`, `-host`, `-proto` and `-for`, and this only where it is one of these";
        conversion.ledger.approximate(own, note);
    }
    for name in ["proxy_pass_request_body", "proxy_pass_request_headers", "internal"] {
        if let Some(own) = scope.own(name).first() {
            conversion.ledger.exact(own, "`auth` asks without a body; nobody else gets there");
        }
    }
    Ok(vec![format!("pool = {}", quoted(&found.name)), format!("path = {}", quoted(&service_path))])
}

/// Where people log in: `error_page 401` beside `auth_request`.
fn sign_in<'c>(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    gate: &mut NginxGate,
    (locations, server): (&[PlacedLocation<'c>], &NginxScope<'c>),
    place: &NginxPlace,
) {
    let Some(keys) = &mut gate.forward else { return };
    for directive in scope.all("error_page") {
        let Some((target, words)) = directive.words.split_last() else { continue };
        if !words.iter().any(|word| word == "401") {
            continue;
        }
        let named = target.starts_with('@').then(|| {
            let is_it = |it: &&NginxDirective| it.name == "location" && it.word(0) == target;
            let found = server.everywhere("location").into_iter().find(is_it)?;
            let answer = found.inner().iter().find(|inner| inner.name == "return")?;
            conversion.ledger.exact(found, "where people are led to log in: `sign_in`");
            conversion.ledger.exact(answer, "`sign_in`");
            answer.words.last().cloned()
        });
        let target = match named {
            Some(None) => continue,
            Some(Some(target)) => target,
            None => target.clone(),
        };
        // A location that is not there would lead nowhere.
        if target.starts_with('/')
            && located(locations, target.split('?').next().unwrap_or_default()).is_none()
        {
            continue;
        }
        match conversion.template(&target, place) {
            Ok(target) => {
                keys.push(format!("sign_in = {}", quoted(&target)));
                let note = "`sign_in`: browsers are led there by 302, where nginx answers with that page itself; others get the 401";
                conversion.ledger.approximate(directive, note);
            }
            Err(bad) => {
                let note = format!("Weir has no `${bad}` there: the service's own answer goes to the client");
                conversion.ledger.unsupported(directive, note);
            }
        }
    }
}
