//! Frontends as listeners.

use std::fmt::Write as _;

use super::acls::When;
use super::binds::Group;
use super::globals::Globals;
use super::headers::{Act, Outcome, Side, outcome};
use super::ledger::Ledger;
use super::output::{Keys, key_of, said};
use super::pages::{self, HaproxyPage, PagePlaces};
use super::pools::timer;
use super::proxies::Proxy;
use super::routes::{Routes, listed};
use super::rules::{RuleStep, StepAct};
use super::times::Time;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 86_400_000;

/// What all listeners of a proxy say.
#[derive(Clone, Debug, Default)]
pub struct Front {
    /// Keys of the listener.
    pub keys: Keys,
    /// `[[listener.NAME.error_page]]`
    pub pages: Vec<HaproxyPage>,
}

/// A listener.
pub struct Listener<'k> {
    /// Its name.
    pub name: String,
    /// Where it accepts.
    pub group: Group,
    /// What it says.
    pub front: Front,
    /// Where its requests go.
    pub routes: Routes<'k>,
}

impl Listener<'_> {
    /// Writes its tables.
    pub fn write(&self, is_tcp: bool, body: &mut String) {
        let name = key_of(&self.name);
        let Listener { group, front, routes, .. } = self;
        let _ = writeln!(body, "\n[listener.{name}]");
        let mut keys = Keys::default();
        if is_tcp {
            keys.set("protocol", said("tcp"));
        }
        keys.set("bind", super::output::said_all(&group.addresses));
        if !group.versions.is_empty() && !is_tcp {
            let versions: Vec<String> = group.versions.iter().map(|version| said(version)).collect();
            keys.set("http", format!("[{}]", versions.join(", ")));
        }
        let mut written = routes.routes.as_slice();
        // What takes everything that is left is the listener's own pool.
        if let Some(([(key, pool)], before)) =
            written.split_last().map(|(last, before)| (last.as_slice(), before))
            && key == "pool"
        {
            keys.set("pool", pool.clone());
            written = before;
        }
        for (key, value) in
            group.keys.entries().iter().chain(front.keys.entries()).chain(routes.keys.entries())
        {
            keys.set(key, value.clone());
        }
        if !routes.limits.is_empty() {
            keys.set("rate_limit", listed(&routes.limits));
        }
        keys.write(body);
        if !group.tls.is_empty() {
            let _ = writeln!(body, "\n[listener.{name}.tls]");
            group.tls.write(body);
        }
        for page in &front.pages {
            let _ = writeln!(body, "\n[[listener.{name}.error_page]]");
            page.table.write(body);
        }
        for route in written {
            let _ = writeln!(body, "\n[[listener.{name}.route]]");
            for (key, value) in route {
                crate::write::line(body, &key_of(key), value);
            }
        }
    }
}

/// What the listeners of a proxy say, whichever they are.
pub fn front(
    proxy: &Proxy<'_>,
    globals: &Globals,
    places: &mut PagePlaces<'_>,
    ledger: &mut Ledger,
) -> Front {
    let mut front = Front::default();
    let keys = &mut front.keys;
    match (proxy.last(&["maxconn"]), globals.maxconn) {
        (Some(line), _) => match line.word(1).parse::<u64>() {
            Ok(most) if most > 0 => {
                keys.set("max_connections", most.min(10_000_000).to_string());
                ledger.approximate(line.number, "`max_connections`: beyond it the connection that has been idle longest is closed, or else the new one; none waits in the kernel");
            }
            _ => ledger.exact(line.number, "no limit but Weir's default (`max_connections`)"),
        },
        (None, Some(most)) => keys.set("max_connections", most.min(10_000_000).to_string()),
        (None, None) => {}
    }
    timers(proxy, keys, ledger);
    if proxy.is_tcp {
        return front;
    }
    ledger.unsaid(
        "paths",
        "compared, looked up and passed on in their normal form: `/%61` and `/x/../a` are `/a`; HAProxy takes them as they come",
    );
    ledger.unsaid(
        "errors",
        "refusals and errors are a line of text, or problem details for programs, in place of HAProxy's pages; where no connection to a server comes about it is 502 in place of 503, with the page of 503 unless 502 has one, a request without a host gets 400, TRACE gets 405",
    );
    if let Some(line) = proxy.option("abortonclose") {
        keys.set("abort_on_close", "true");
        ledger.exact(line.number, "`abort_on_close` of listeners, for HTTP/1.1");
    }
    forwarded(proxy, ledger);
    compression(proxy, keys, ledger);
    front.pages = pages::pages(&pages::lines_of(proxy, false), places, ledger);
    front
}

fn timers(proxy: &Proxy<'_>, keys: &mut Keys, ledger: &mut Ledger) {
    let mut timeout = Keys::default();
    let client = proxy.time("client", ledger);
    let request = proxy.time("http-request", ledger).filter(|_| !proxy.is_tcp);
    let idle = proxy.time("http-keep-alive", ledger).filter(|_| !proxy.is_tcp);
    for name in ["http-request", "http-keep-alive"] {
        if let Some(line) = proxy.last(&["timeout", name]).filter(|_| proxy.is_tcp) {
            ledger.exact(line.number, "no effect in `mode tcp`");
        }
    }
    if let Some(idle) = idle.or(request).or(client) {
        timer(&mut timeout, "client_idle", idle, 10..=DAY, ledger);
    }
    if !proxy.is_tcp {
        if let Some(head) = request.or(client) {
            timer(&mut timeout, "header", head, 10..=HOUR, ledger);
        }
        if let Some(client) = client {
            timer(&mut timeout, "client_body", client, 10..=DAY, ledger);
        }
    }
    if client.is_none() {
        ledger.unsaid("timeout client", "where it is not said HAProxy waits without end; Weir has timers for everything (`timeout` of listeners)");
    }
    if !proxy.is_tcp && request.is_none() {
        ledger.unsaid("timeout http-request", "`timeout.header`: a head must be whole by then, where HAProxy's `timeout client` begins anew with each byte");
    }
    if let Some((line, delay)) = inspect_delay(proxy) {
        if delay > Time(0) {
            timer(&mut timeout, "handshake", (line, delay), 10..=HOUR, ledger);
        } else {
            ledger.exact(line, "no wait");
        }
    }
    if !timeout.is_empty() {
        keys.set("timeout", timeout.inline());
    }
}

/// `tcp-request inspect-delay`, where a route waits for the greeting of TLS.
fn inspect_delay(proxy: &Proxy<'_>) -> Option<(usize, Time)> {
    let line = proxy.last(&["tcp-request", "inspect-delay"]).filter(|_| proxy.is_tcp)?;
    super::times::duration(line.word(2), 1).map(|time| (line.number, time))
}

/// The rule that `option forwardfor header NAME` is: the client's address in a field of its own.
pub fn forwarded_as(proxy: &Proxy<'_>) -> Option<RuleStep> {
    let line = proxy.option("forwardfor").filter(|_| !proxy.is_tcp)?;
    let at = line.words.iter().position(|word| word == "header")?;
    let edit = match outcome(Side::Request, line.word(at + 1), Act::Set("$client_ip".to_owned())) {
        Ok(Outcome::Edit(edit)) => edit,
        _ => return None,
    };
    let act = StepAct::Edit(Side::Request, edit);
    Some(RuleStep { line: line.number, phase: 2, when: When::always(), act })
}

/// What backends are told of clients.
fn forwarded(proxy: &Proxy<'_>, ledger: &mut Ledger) {
    let told = "Weir tells backends `x-forwarded-for` and its kin, `forwarded`, `via` and `x-request-id`";
    let Some(line) = proxy.option("forwardfor") else {
        ledger.unsaid("option forwardfor", format!("without it HAProxy tells nothing of clients, and passes on what they claim; {told}, and throws away what clients claim there"));
        return;
    };
    let mut notes = vec!["what clients claim is thrown away, unless they are `trusted_proxies`".to_owned()];
    let mut words = line.from(2).iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "header" => {
                words.next();
            }
            "except" => {
                words.next();
                notes.push("`except`: all requests have it".to_owned());
            }
            _ => {}
        }
    }
    ledger.approximate(line.number, format!("always on: {told}; {}", notes.join("; ")));
}

fn compression(proxy: &Proxy<'_>, keys: &mut Keys, ledger: &mut Ledger) {
    let mut codings: Vec<String> = Vec::new();
    let mut types: Vec<String> = Vec::new();
    let mut min = None;
    for line in proxy.lines_of("compression") {
        let number = line.number;
        match line.word(1) {
            "algo" | "algo-res" => {
                let known: Vec<String> =
                    line.from(2).iter().filter(|algo| *algo == "gzip").map(|algo| said(algo)).collect();
                match known.len() == line.from(2).len() {
                    true => ledger.exact(number, "`compress.codings`"),
                    false => ledger.approximate(
                        number,
                        "`compress.codings`: of these gzip alone, that all clients know",
                    ),
                }
                codings = known;
            }
            "type" | "type-res" => {
                types = line
                    .from(2)
                    .iter()
                    .filter(|kind| kind.contains('/'))
                    .map(|kind| kind.trim_end_matches(';'))
                    // HAProxy compares the beginning.
                    .map(|kind| if kind.ends_with('/') { said(&format!("{kind}*")) } else { said(kind) })
                    .collect();
                ledger.exact(number, "`compress.types`");
            }
            "minsize-res" => {
                min = super::times::bytes(line.word(2));
                ledger.exact(number, "`compress.min`");
            }
            "offload" => ledger.unsupported(
                number,
                "backends are asked with what the client accepts, and may compress themselves",
            ),
            other => {
                ledger.unsupported(number, format!("`{other}` is not in Weir: requests are not compressed"))
            }
        }
    }
    if codings.is_empty() {
        return;
    }
    types.dedup();
    let mut compress = Keys::default();
    compress.set("codings", format!("[{}]", codings.join(", ")));
    if !types.is_empty() {
        compress.set("types", format!("[{}]", types.join(", ")));
    }
    compress.set("min", said(&format!("{}B", min.unwrap_or(0))));
    keys.set("compress", compress.inline());
}

/// What a backend says of how its responses look, as rules of the routes that lead to it; and its pages.
pub fn looks(
    proxy: &Proxy<'_>,
    places: &mut PagePlaces<'_>,
    ledger: &mut Ledger,
) -> (Vec<RuleStep>, Vec<HaproxyPage>) {
    let mut acts = Vec::new();
    if let Some(line) = proxy.section.lines.iter().find(|line| line.word(0) == "compression") {
        let mut keys = Keys::default();
        compression(proxy, &mut keys, ledger);
        let compress = keys.get("compress").map(|compress| StepAct::Key("compress", compress.to_owned()));
        acts.extend(compress.map(|act| (line.number, act)));
    }
    let lines = pages::lines_of(proxy, true);
    let pages = pages::pages(&lines, places, ledger);
    if let Some(line) = lines.first().filter(|_| !pages.is_empty()) {
        let tables: Vec<String> = pages.iter().map(|page| page.table.inline()).collect();
        acts.push((line.number, StepAct::Pages(tables)));
    }
    let step = |(line, act)| RuleStep { line, phase: 1, when: When::always(), act };
    (acts.into_iter().map(step).collect(), pages)
}
