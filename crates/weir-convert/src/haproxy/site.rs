//! All proxies together: which listeners and pools there are, and how they lead to each other.

use std::collections::{BTreeMap, BTreeSet};

use super::acls::{Acls, Here, Reader};
use super::binds::{self, Group};
use super::choices::may_name;
use super::criteria::Unseen;
use super::fronts::{self, Front, Listener};
use super::globals::Globals;
use super::headers::{Edits, Side};
use super::ledger::Ledger;
use super::logs::Logs;
use super::maps::Maps;
use super::output::{Keys, name_of};
use super::pages::{HaproxyPage, PagePlaces};
use super::peers::Peers;
use super::pools::{self, Pool};
use super::proxies::Proxy;
use super::routes::{Behind, End, Known, Routes};
use super::rules::{self, RuleStep, Rules, StepAct};
use super::sections::{Line, Section};
use super::tables::{COUNTED_APART, Tables};
use super::tcp::{self, Gate};
use super::tracks::{self, Tracks};
use super::{options, stats, tcp_responses, trust};
use crate::{ConvertedFile, SourceFiles};

/// A file while it is converted.
pub struct Site<'s> {
    sections: &'s [Section],
    proxies: &'s [Proxy<'s>],
    globals: &'s Globals,
    peers: &'s Peers,
    source: &'s dyn SourceFiles,
    /// Verdicts.
    pub ledger: Ledger,
    /// Maps that are used.
    pub maps: Maps,
    /// Access logs.
    pub logs: Logs,
    /// Where the admin API is, if not at its default.
    pub admin: Option<String>,
    /// Files beside the converted one.
    pub files: Vec<ConvertedFile>,
    /// Whether a limit is counted together with peers.
    pub shares: bool,
}

/// What is known of one proxy.
struct Part<'s> {
    proxy: &'s Proxy<'s>,
    rules: Rules,
    tables: Tables,
    gate: Gate,
    groups: Vec<Group>,
    pool: Option<Pool>,
    /// Pages of a backend.
    pages: Vec<HaproxyPage>,
}

/// The pool for connections that no rule takes, which HAProxy closes.
const NOBODY: &str = "nobody";

impl<'s> Site<'s> {
    /// One where nothing is converted yet.
    pub fn new(
        sections: &'s [Section],
        proxies: &'s [Proxy<'s>],
        (globals, peers): (&'s Globals, &'s Peers),
        source: &'s dyn SourceFiles,
        ledger: Ledger,
    ) -> Site<'s> {
        let (maps, logs) = (Maps::beside(&globals.folder), Logs::default());
        let (admin, files) = (None, Vec::new());
        Site { sections, proxies, globals, peers, source, ledger, maps, logs, admin, files, shares: false }
    }

    /// The tables of all listeners and pools.
    pub fn read(&mut self) -> String {
        let tables = Tables::read(self.sections, self.proxies, self.peers, &mut self.ledger);
        let mut parts: Vec<Part<'s>> = Vec::new();
        for proxy in self.proxies {
            if stats::is_alone(proxy) {
                let own = stats::alone(proxy, &mut self.ledger);
                self.admin = self.admin.take().or(own);
                continue;
            }
            stats::beside(proxy, &mut self.ledger);
            parts.push(self.part(proxy, &tables));
        }
        self.pools(&mut parts);
        self.write(parts)
    }

    /// The lists of users that rules ask for.
    pub fn lists(&self) -> Vec<String> {
        let words = self.proxies.iter().flat_map(|proxy| &proxy.lines).flat_map(|line| &line.words);
        let named = |word: &String| {
            let (_, rest) = word.split_once("http_auth(").or_else(|| word.split_once("http_auth_group("))?;
            rest.split_once(')').map(|(name, _)| name.to_owned())
        };
        words.filter_map(named).collect()
    }

    /// Gives all lines a verdict that have none.
    pub fn judge(&mut self) {
        super::destinations::judge(self.proxies, &mut self.ledger);
        for proxy in self.proxies {
            proxy.judge_overridden(&mut self.ledger);
        }
        for proxy in self.proxies {
            options::judge(proxy, &mut self.ledger);
        }
        // What stands in `defaults` that no proxy of its kind takes over.
        for section in
            self.sections.iter().filter(|section| section.kind == super::sections::SectionKind::Defaults)
        {
            let taken: BTreeSet<usize> =
                self.proxies.iter().flat_map(|proxy| &proxy.lines).map(|line| line.number).collect();
            for line in section.lines.iter().filter(|line| !taken.contains(&line.number)) {
                if !self.ledger.has(line.number) {
                    self.ledger.exact(line.number, "no proxy takes it over");
                }
            }
        }
    }

    fn part(&mut self, proxy: &'s Proxy<'s>, tables: &Tables) -> Part<'s> {
        let acls = Acls::of(&proxy.lines, &mut self.maps, self.source, proxy.is_tcp);
        let tables = tables.of(proxy.name(), &proxy.lines, &mut self.maps);
        let backends = |is_tcp: bool| -> Vec<String> {
            let is_meant = |other: &&Proxy<'_>| other.is_back() && other.is_tcp == is_tcp;
            self.proxies.iter().filter(is_meant).map(|other| other.name().to_owned()).collect()
        };
        let (backends, other_backends) = (backends(proxy.is_tcp), backends(!proxy.is_tcp));
        let mut reader = Reader {
            acls: &acls,
            maps: &mut self.maps,
            source: self.source,
            is_tcp: proxy.is_tcp,
            of_response: false,
            unseen: Unseen::Nothing,
            backends,
            other_backends,
            tracks: Tracks::new(),
        };
        let mut trusting = Vec::new();
        reader.tracks = tracks::tracks(&proxy.lines, &mut reader, &mut trusting);
        let trust = match proxy.is_front() && !proxy.is_tcp {
            true => trust::trusted(proxy, &mut reader, &mut trusting, &mut self.ledger),
            false => Keys::default(),
        };
        let mut rules = rules::rules(&proxy.lines, &mut reader, &mut self.ledger);
        rules.used.extend(trusting);
        if !proxy.is_front() {
            // Who watches asks a frontend.
            rules.steps.retain(|step| step.phase > 0);
        }
        if !proxy.is_back() {
            rules.steps.retain(|step| step.act != StepAct::Unstuck);
        }
        let early = tcp_responses::rules(proxy, &mut reader, &mut rules.used, &mut self.ledger);
        let first = rules.steps.iter().position(|step| step.phase > 0).unwrap_or(rules.steps.len());
        rules.steps.splice(first..first, early);
        let (mut front, mut pages) = (Front::default(), Vec::new());
        let mut places = PagePlaces {
            sections: self.sections,
            folder: &self.globals.folder,
            source: self.source,
            made: &mut self.files,
        };
        let mut groups = Vec::new();
        let mut gate = tcp::gate(proxy, &mut reader, &tables, &mut self.ledger);
        if proxy.is_front() {
            front = fronts::front(proxy, self.globals, &mut places, &mut self.ledger);
            let by_port = rules.steps.iter().chain(&gate.steps).any(|step| step.when.asks_ports());
            groups = binds::groups(proxy, by_port, self.globals, self.source, &mut self.ledger);
            self.logs.read(proxy, self.sections, &mut self.maps, &mut self.ledger);
            for (key, value) in gate.keys.entries().iter().chain(trust.entries()) {
                front.keys.set(key, value.clone());
            }
        }
        if !proxy.is_front() && !proxy.is_tcp {
            let (looks, own) = fronts::looks(proxy, &mut places, &mut self.ledger);
            rules.steps.splice(0..0, looks);
            pages = own;
        }
        rules.steps.splice(0..0, fronts::forwarded_as(proxy));
        rules.steps.splice(0..0, std::mem::take(&mut gate.steps));
        let used: Vec<String> = rules.used.iter().chain(&gate.used).cloned().collect();
        acls.judge(&used, &mut self.ledger);
        gate.keys = front.keys;
        gate.pages = front.pages;
        Part { proxy, rules, tables, gate, groups, pool: None, pages }
    }

    /// Makes the pools, and has them say what holds for all of their requests.
    fn pools(&mut self, parts: &mut [Part<'s>]) {
        let ports: Vec<Option<u16>> = parts.iter().map(|part| port_of(part, parts)).collect();
        let of_fronts: Vec<String> = parts
            .iter()
            .filter(|part| !part.proxy.is_back())
            .flat_map(|part| pools::changed_names(&part.rules.steps, false))
            .collect();
        for (part, port) in parts.iter_mut().zip(ports) {
            if !part.proxy.is_back() {
                continue;
            }
            part.pool = pools::pool(
                part.proxy,
                (port, self.globals.trusts_servers),
                &mut self.maps,
                &mut self.ledger,
            );
            if let Some(pool) = &mut part.pool {
                let mut others = of_fronts.clone();
                others.extend(pools::changed_names(&part.rules.steps, true));
                for lost in pools::hoisted(&mut part.rules.steps, &others, pool) {
                    self.ledger.unsupported(part.proxy.section.number, lost);
                }
            }
            self.servers_alone(part);
            self.said_of_backend(part);
        }
    }

    /// Makes the pools of single servers, and those without a cookie, that rules lead to.
    fn servers_alone(&mut self, part: &mut Part<'s>) {
        let names: Vec<String> = self.proxies.iter().map(|proxy| name_of(proxy.name())).collect();
        let is_tcp = part.proxy.is_tcp;
        let has_cookie = part.proxy.last(&["cookie"]).is_some();
        let pool = &mut part.pool;
        part.rules.steps.retain_mut(|step| {
            if step.act == StepAct::Unstuck {
                let made = pool.as_mut().filter(|_| has_cookie).and_then(|pool| pool.unstuck(&names));
                let Some((name, note)) = made else { return false };
                self.ledger.approximate(step.line, note);
                step.act = StepAct::Pool(name);
                return true;
            }
            let StepAct::Server(server) = &step.act else { return true };
            let made = match pool {
                Some(pool) => pool.alone(server, is_tcp, &names),
                None => Err("none of its servers is converted".to_owned()),
            };
            match made {
                Ok(Some((name, note))) => {
                    self.ledger.approximate(step.line, note);
                    step.act = StepAct::Pool(name);
                    true
                }
                Ok(None) => {
                    self.ledger.exact(step.line, "never followed: the server is disabled");
                    false
                }
                Err(why) => {
                    let why = format!("{why}: these requests go where the balance says");
                    self.ledger.unsupported(step.line, why);
                    false
                }
            }
        });
    }

    fn write(&mut self, parts: Vec<Part<'s>>) -> String {
        let lines: BTreeMap<usize, &Line> =
            self.proxies.iter().flat_map(|proxy| &proxy.lines).map(|line| (line.number, *line)).collect();
        let mut backends = [BTreeMap::new(), BTreeMap::new()];
        for part in parts.iter().filter(|part| part.proxy.is_back()) {
            let pool = part.pool.as_ref().map(|pool| pool.name.clone());
            // A `listen` that others lead to does not lead on: that is for those who come to its addresses.
            let is_own = |step: &&RuleStep| {
                !matches!(step.act, StepAct::Backend(_) | StepAct::Mapped(..) | StepAct::Chosen(_))
            };
            let steps = part.rules.steps.iter().filter(is_own).cloned().collect();
            let asked = part.pool.as_ref().and_then(Pool::asked);
            let behind = Behind { pool, steps, pages: part.pages.clone(), asked };
            backends[usize::from(part.proxy.is_tcp)].insert(part.proxy.name().to_owned(), behind);
        }
        let of_backs: Vec<String> = self
            .proxies
            .iter()
            .filter(|proxy| proxy.is_back())
            .flat_map(|proxy| proxy.lines_of("http-request").chain(proxy.lines_of("http-response")))
            .map(|line| line.word(2).to_ascii_lowercase())
            .collect();
        let mut body = String::new();
        let mut fallbacks = Vec::new();
        let mut names = BTreeSet::new();
        let mut taken = BTreeSet::new();
        let mut has_nobody = false;
        for part in parts.iter().filter(|part| part.proxy.is_front()) {
            let backends = &backends[usize::from(part.proxy.is_tcp)];
            let is_tcp = part.proxy.is_tcp;
            let listener_count = part.groups.len();
            let (tables, folder, pages) = (&part.tables, &self.globals.folder, &part.gate.pages);
            let known = Known { backends, is_tcp, tables, folder, pages, listener_count };
            let end = self.end(part, backends);
            self.said_of_section(part);
            for line in part.gate.limit_lines.iter().filter(|_| listener_count > 1) {
                self.ledger.approximate(*line, COUNTED_APART);
            }
            for group in &part.groups {
                let Some(group) = self.untaken(part, group, &mut taken) else { continue };
                let mut listener = self.listener(part, &group, &end, &known, (&of_backs, &mut names));
                if part.proxy.is_tcp {
                    has_nobody |= only_pools(&mut listener.routes);
                }
                self.told(&listener.routes, &lines);
                self.shares |= listener.routes.shares || part.gate.shares;
                fallbacks.append(&mut listener.routes.fallbacks);
                listener.write(part.proxy.is_tcp, &mut body);
            }
        }
        for mut part in parts {
            if let Some(pool) = &mut part.pool {
                if let Some((_, other)) = fallbacks.iter().find(|(of, _)| *of == pool.name) {
                    pool.leads_on(other);
                }
                pool.write(&mut body);
            }
        }
        if has_nobody {
            body.push_str(
                "\n[pool.nobody]\nbackends = [{ address = \"127.0.0.1:9\", weight = 0 }]\nhealth = \"off\"\n",
            );
        }
        body
    }

    /// The group without the addresses that another listener has; `None` if it has no other.
    fn untaken(&mut self, part: &Part<'s>, group: &Group, taken: &mut BTreeSet<String>) -> Option<Group> {
        let mut group = group.clone();
        group.addresses.retain(|address| {
            let is_free = taken.insert(address.clone());
            if !is_free {
                let note = format!("{address} is left out: another listener has it");
                self.ledger.unsupported(part.proxy.section.number, note);
            }
            is_free
        });
        (!group.addresses.is_empty()).then_some(group)
    }

    /// One listener of a proxy.
    fn listener<'k>(
        &mut self,
        part: &Part<'s>,
        group: &Group,
        end: &End,
        known: &'k Known<'k>,
        (of_backs, names): (&[String], &mut BTreeSet<String>),
    ) -> Listener<'k> {
        // Unix sockets have no port, which is none of those that are asked for.
        let is_unix = group.addresses.iter().all(|address| address.starts_with("unix:"));
        let ports = if is_unix { vec![0] } else { group.ports.clone() };
        let here = Here { tls: group.is_tls, ports };
        let mut steps = part.rules.steps.clone();
        let mut front = Front { keys: part.gate.keys.clone(), pages: part.gate.pages.clone() };
        if !part.proxy.is_back() {
            for lost in hoisted(&mut steps, &here, of_backs, &mut front.keys) {
                self.ledger.unsupported(part.proxy.section.number, lost);
            }
        }
        self.logs.say(part.proxy.name(), &mut front.keys);
        let mut routes = Routes::of(&steps, end, here, known);
        routes.limits.splice(0..0, part.gate.limits.iter().cloned());
        let plain = name_of(part.proxy.name());
        let several = part.groups.len() > 1;
        let wanted = match (group.is_tls && several, group.ports.as_slice()) {
            (true, _) => format!("{plain}-tls"),
            (false, [port]) if several && names.contains(&plain) => format!("{plain}-{port}"),
            _ => plain,
        };
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let name = std::iter::once(wanted.clone()).chain(numbered).find(|name| !names.contains(name));
        let name = name.unwrap_or(wanted);
        names.insert(name.clone());
        Listener { name, group: group.clone(), front, routes }
    }

    /// Where requests go that no rule of a proxy has taken.
    fn end(&mut self, part: &Part<'s>, backends: &BTreeMap<String, Behind>) -> End {
        let Some(line) = part.proxy.last(&["default_backend"]) else {
            return match part.proxy.is_back() {
                true => End::Pool(part.pool.as_ref().map(|pool| pool.name.clone())),
                false => End::Backend(None),
            };
        };
        let name = line.word(1);
        match backends.get(name) {
            Some(Behind { pool: None, steps, .. }) if steps.is_empty() => {
                self.ledger.unsupported(
                    line.number,
                    format!("backend `{name}` has no server that is converted: 503"),
                );
                End::Backend(None)
            }
            Some(_) => {
                self.ledger.exact(line.number, "`pool` of listeners");
                End::Backend(Some(name.to_owned()))
            }
            None => {
                self.ledger
                    .unsupported(line.number, format!("there is no backend `{name}` of this mode: 503"));
                End::Backend(None)
            }
        }
    }

    /// The verdict of the section of a backend, or of the half of a `listen` that is one.
    fn said_of_backend(&mut self, part: &Part<'s>) {
        let number = part.proxy.section.number;
        let has = |word: &str| part.proxy.lines_of(word).next().is_some();
        if part.pool.is_some() {
            self.ledger.exact(number, format!("`[pool.{}]`", name_of(part.proxy.name())));
        } else if has("server") || has("server-template") {
            self.ledger.unsupported(number, "no pool: none of its servers is converted");
        } else if !part.rules.steps.is_empty() {
            self.ledger.exact(number, "no pool: its rules are in the routes that lead to it");
        } else if has("stick-table") {
            self.ledger.approximate(number, "no pool: its counters are those of limits");
        } else {
            self.ledger.exact(number, "no pool: it has no server");
        }
    }

    fn said_of_section(&mut self, part: &Part<'s>) {
        let number = part.proxy.section.number;
        match part.groups.is_empty() {
            true => self.ledger.unsupported(number, "no listener: it has no address that Weir can accept at"),
            false => self.ledger.exact(number, format!("`[listener.{}]`", name_of(part.proxy.name()))),
        }
    }

    /// Tells what became of rules that could not be converted everywhere.
    fn told(&mut self, routes: &Routes<'_>, lines: &BTreeMap<usize, &Line>) {
        for (line, why) in &routes.failed {
            let effect = lines.get(line).map_or("", |line| rules::effect(line));
            self.ledger.unsupported(*line, format!("{why}: {effect}"));
        }
        for (line, why) in &routes.unlimited {
            self.ledger.unsupported(*line, format!("{why}: {}", rules::NO_LIMIT));
        }
        for (line, note) in &routes.notes {
            self.ledger.approximate(*line, note.clone());
        }
    }
}

/// The port that clients of a pool ask for, where it is one alone.
fn port_of(part: &Part<'_>, parts: &[Part<'_>]) -> Option<u16> {
    let name = part.proxy.name();
    let leads = |other: &&Part<'_>| {
        std::ptr::eq(*other, part)
            || other.proxy.lines.iter().any(|line| match line.word(0) {
                "use_backend" => line.word(1) == name || may_name(line.word(1), name),
                word => word == "default_backend" && line.word(1) == name,
            })
    };
    let mut ports: Vec<u16> = parts
        .iter()
        .filter(leads)
        .flat_map(|part| &part.groups)
        .flat_map(|group| group.ports.iter().copied())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    if let [port] = ports.as_slice() { Some(*port) } else { None }
}

/// Takes the changes of header fields that hold for all requests of a listener, and that nothing else makes,
/// out of its rules. `others` are the names that backends change. What could not be said.
fn hoisted(steps: &mut Vec<RuleStep>, here: &Here, others: &[String], keys: &mut Keys) -> Vec<String> {
    let is_always = |step: &RuleStep| {
        step.when.terms(here).is_ok_and(|terms| matches!(terms.as_slice(), [term] if term.is_always()))
    };
    let is_never = |step: &RuleStep| step.when.terms(here).is_ok_and(|terms| terms.is_empty());
    let conditional: Vec<String> = steps
        .iter()
        .filter(|step| !is_always(step) && !is_never(step))
        .flat_map(|step| pools::changed_names(std::slice::from_ref(step), false))
        .collect();
    let (mut request, mut response) = (Edits::default(), Edits::default());
    let mut open = true;
    steps.retain(|step| {
        // What stands behind a rule that lets some go on past it does not hold for all.
        open &= step.act != StepAct::Allow;
        let StepAct::Edit(side, edit) = &step.act else { return true };
        if !open || !is_always(step) || conditional.contains(&edit.name) || others.contains(&edit.name) {
            return true;
        }
        match side {
            Side::Request => request.push(edit.clone()),
            Side::Response => response.push(edit.clone()),
        }
        false
    });
    let mut lost = request.say(Side::Request, keys);
    lost.extend(response.say(Side::Response, keys));
    lost
}

/// Leaves routes of tcp that lead to a pool; what would be refused goes to a pool that takes nobody. Whether
/// that pool is needed.
fn only_pools(routes: &mut Routes<'_>) -> bool {
    let mut refuses = false;
    for route in &mut routes.routes {
        for entry in route.iter_mut().filter(|(key, _)| key == "respond") {
            *entry = ("pool".to_owned(), super::output::said(NOBODY));
            refuses = true;
        }
    }
    refuses
}
