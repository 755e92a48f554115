//! `peers`: other machines that limits are counted together with.
//!
//! Weir has one group of them, and it is made by a secret that all have. It is written only if a limit is
//! counted in a table that HAProxy shares; limits of all other tables are then each Weir's own.

use std::fmt::Write as _;

use super::globals::Globals;
use super::ledger::Ledger;
use super::networks::{Endpoint, bracketed, place};
use super::output::{Keys, said, said_all};
use super::sections::{Line, Section, SectionKind};
use super::tables;

/// What is known of `peers` before limits are made.
#[derive(Debug, Default)]
pub struct Peers {
    /// The section whose tables Weirs share; `None` where no table that limits can be of is shared.
    name: Option<String>,
    /// The name of the machine that the file is for, among the peers; empty if nobody says it.
    local: String,
}

/// A peer that HAProxy knows.
struct Peer<'s> {
    line: &'s Line,
    is_local: bool,
    /// Host and port; `Err` says why Weir can't reach it. An empty host stands for all addresses.
    at: Result<(String, String), String>,
}

impl Peers {
    /// Finds the section that is converted: the first that a table with rates names, or has.
    pub fn of(sections: &[Section], localpeer: &str, host_name: &str) -> Peers {
        let mut all = sections.iter().filter(|section| section.kind == SectionKind::Peers);
        let counts = |section: &&Section| !is_disabled(section) && has_rates(section, sections);
        let name = all.find(counts).map(|section| section.name.clone());
        let local = if localpeer.is_empty() { host_name } else { localpeer };
        Peers { name, local: local.to_owned() }
    }

    /// Whether some limits are counted together, so that all others say that they are not.
    pub fn are_some(&self) -> bool {
        self.name.is_some()
    }

    /// Whether the tables of this section are shared.
    pub fn share(&self, section: &str) -> bool {
        self.name.as_deref() == Some(section)
    }

    /// Writes `[peers]` if a limit is shared, and gives all sections their verdicts.
    pub fn write(
        &self,
        sections: &[Section],
        is_shared: bool,
        globals: &Globals,
        (body, ledger): (&mut String, &mut Ledger),
    ) {
        for section in sections.iter().filter(|section| section.kind == SectionKind::Peers) {
            if !self.share(&section.name) {
                left_out(section, has_rates(section, sections), ledger);
            } else if !is_shared {
                let note = "not needed: no limit that is converted counts in its tables";
                all_of(section, note, ledger);
            } else {
                self.write_section(section, globals, body, ledger);
            }
        }
    }

    fn write_section(&self, section: &Section, globals: &Globals, body: &mut String, ledger: &mut Ledger) {
        let secret = format!("{}/peers.secret", globals.folder);
        let tls = certificates(section, globals);
        let peers = self.peers(section);
        let mut addresses: Vec<String> = Vec::new();
        for peer in &peers {
            let number = peer.line.number;
            match &peer.at {
                Ok((host, port)) if !is_any(host) => {
                    let address = format!("{}:{port}", bracketed(host));
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                    let own = if peer.is_local { ", and this Weir's own" } else { "" };
                    ledger.exact(number, format!("`peers.addresses`{own}"));
                }
                Ok(_) | Err(_) if peer.is_local => ledger.exact(number, "this Weir itself"),
                Ok(_) => ledger.unsupported(number, "left out: it has no address where it is reached"),
                Err(why) => ledger.unsupported(number, format!("left out: {why}")),
            }
        }
        let bind = self.bind(section, &peers, ledger);
        section.lines.iter().for_each(|line| other(line, tls.is_some(), ledger));
        let Some(bind) = bind else {
            let note = "no `[peers]`, each Weir counts alone: nothing says at which address and port this one is reached";
            return ledger.unsupported(section.number, note);
        };
        if addresses.is_empty() {
            let port = bind.rsplit(':').next().unwrap_or_default();
            addresses.push(format!("127.0.0.1:{port}"));
        }
        ledger.approximate(
            section.number,
            format!("`[peers]`: WRITE {secret} BEFORE WEIR STARTS, the same on all machines, for their owner alone (`umask 077; openssl rand -hex 32 > {secret}`); a limit then holds over the sum of all Weirs, HAProxy takes the count of whoever wrote last; HAProxy itself is told nothing"),
        );
        let _ = writeln!(
            body,
            "\n# The secret is yours to make, on one machine: umask 077; openssl rand -hex 32 > {}\n# Copy it to the others. Weir does not start without it.\n[peers]\nbind = {}\naddresses = {}\nsecret_file = {}",
            super::words::with_variables(&secret).replace(char::is_control, " "),
            said(&bind),
            said_all(&addresses),
            said(&secret)
        );
        if let Some(tls) = tls {
            body.push_str("\n[peers.tls]\n");
            tls.write(body);
        }
    }

    fn peers<'s>(&self, section: &'s Section) -> Vec<Peer<'s>> {
        let lines = section.lines.iter().filter(|line| matches!(line.word(0), "peer" | "server"));
        let mut peers: Vec<Peer<'s>> = lines
            .map(|line| Peer {
                line,
                is_local: !self.local.is_empty() && line.word(1) == self.local,
                at: at(line.word(2)),
            })
            .collect();
        // One without an address is the machine's own, which has it in `bind`.
        if !peers.iter().any(|peer| peer.is_local)
            && let Some(own) = peers.iter_mut().find(|peer| peer.line.word(2).is_empty())
        {
            own.is_local = true;
        }
        peers
    }

    /// Where this Weir listens. `None` where nothing says it.
    fn bind(&self, section: &Section, peers: &[Peer<'_>], ledger: &mut Ledger) -> Option<String> {
        let line = section.lines.iter().find(|line| line.word(0) == "bind");
        if let Some(line) = line {
            return match at(line.word(1)) {
                Ok(at) => {
                    ledger.exact(line.number, "`peers.bind`");
                    Some(bind_at(&at, line.number, ledger))
                }
                Err(why) => {
                    ledger.unsupported(line.number, why);
                    None
                }
            };
        }
        if let Some(own) = peers.iter().find(|peer| peer.is_local) {
            let at = own.at.as_ref().ok()?;
            ledger.exact(own.line.number, "`peers.bind`");
            return Some(bind_at(at, own.line.number, ledger));
        }
        let mut reached = peers.iter().filter_map(|peer| peer.at.as_ref().ok());
        let (host, port) = reached.next()?;
        if reached.all(|(_, other)| other == port) {
            let any = if host.contains(':') { "[::]" } else { "0.0.0.0" };
            let note = format!(
                "`peers.bind` is {any}: which of them this Weir is, is not known here (no `localpeer`, and none has this host's name)"
            );
            ledger.approximate(section.number, note);
            return Some(format!("{any}:{port}"));
        }
        let note = "SET `peers.bind` ON EACH: it is the first peer's, because which of them this Weir is, is not known here (no `localpeer`, and none has this host's name)";
        ledger.unsupported(section.number, note);
        Some(bind_at(&(host.clone(), port.clone()), section.number, ledger))
    }
}

fn is_disabled(section: &Section) -> bool {
    section.lines.iter().any(|line| line.word(0) == "disabled")
}

/// Whether a table that is shared with these peers has rates.
fn has_rates(peers: &Section, sections: &[Section]) -> bool {
    let own = peers.lines.iter().filter(|line| line.word(0) == "table").map(|line| line.from(2));
    let others = sections.iter().flat_map(|section| &section.lines);
    let others = others.filter(|line| line.word(0) == "stick-table").map(|line| line.from(1));
    let mut shared = own.chain(others.filter(|words| tables::after(words, "peers") == Some(&peers.name)));
    shared.any(tables::has_rates)
}

/// The verdicts of peers that Weirs have no group for.
fn left_out(section: &Section, has_rates: bool, ledger: &mut Ledger) {
    let number = section.number;
    if is_disabled(section) {
        ledger.exact(number, "no `[peers]`: it is disabled");
        section.lines.iter().for_each(|line| ledger.exact(line.number, "of peers that are disabled"));
    } else if has_rates {
        let note = "Weirs are one group, that of the first `peers` whose tables have rates: limits of these tables are counted by each Weir alone (`share = false`)";
        ledger.unsupported(number, note);
        section.lines.iter().for_each(|line| ledger.unsupported(line.number, "of peers left out"));
    } else {
        let note = "no `[peers]`: no table of theirs has rates; where a client belongs is the same on all Weirs, by a hash of its address or by a cookie (`sticky.secret_file`)";
        all_of(section, note, ledger);
    }
}

/// Gives a section and all of its lines one verdict.
fn all_of(section: &Section, note: &str, ledger: &mut Ledger) {
    ledger.approximate(section.number, note);
    for line in &section.lines {
        ledger.approximate(line.number, "of peers that nothing is shared with");
    }
}

/// `[peers.tls]`, where both sides verify each other, and a name is said that certificates must be for.
fn certificates(section: &Section, globals: &Globals) -> Option<Keys> {
    let said_by = |lines: [&str; 3], keyword: &str| {
        let of = section.lines.iter().filter(|line| lines.contains(&line.word(0)));
        of.filter_map(|line| tables::after(&line.words, keyword)).next_back().cloned()
    };
    let (binds, servers) = (["bind", "default-bind", ""], ["default-server", "peer", "server"]);
    let name = said_by(servers, "verifyhost").or_else(|| {
        let sni = said_by(servers, "sni")?;
        sni.strip_prefix("str(")?.strip_suffix(')').map(str::to_owned)
    })?;
    let cert = globals.certificate(&said_by(binds, "crt").or_else(|| said_by(servers, "crt"))?);
    let ca = globals.authority(&said_by(servers, "ca-file").or_else(|| said_by(binds, "ca-file"))?);
    if said_by(binds, "verify")? != "required"
        || said_by(servers, "verify").is_some_and(|verify| verify == "none")
    {
        return None;
    }
    let mut tls = Keys::default();
    tls.set("cert", said(&cert));
    tls.set("key", said(&cert));
    tls.set("ca", said(&ca));
    if let Some(crl) = said_by(binds, "crl-file").or_else(|| said_by(servers, "crl-file")) {
        tls.set("crl", said(&crl));
    }
    tls.set("name", said(&name));
    Some(tls)
}

/// The other lines of a section, and the keywords of its peers.
fn other(line: &Line, has_tls: bool, ledger: &mut Ledger) {
    let number = line.number;
    let has = |words: &[&str]| line.words.iter().any(|word| words.contains(&word.as_str()));
    match (has(&["ssl", "crt", "verify", "ca-file"]), has_tls) {
        (true, true) => {
            let note = "`peers.tls`: every certificate is for that name, those of who connects too";
            ledger.approximate(number, note);
        }
        (true, false) => {
            let note = "encrypted by the secret that all have; for certificates `[peers.tls]` takes `cert`, `key`, `ca` and the `name` that all are for";
            ledger.approximate(number, note);
        }
        _ => {}
    }
    match line.word(0) {
        "peer" | "server" if has(&["shard"]) => ledger.approximate(number, "each Weir is told of all keys"),
        "default-bind" | "default-server" => ledger.exact(number, "for all peers alike"),
        "shards" => ledger.approximate(number, "each Weir is told of all keys"),
        "log" => ledger.approximate(number, "Weir's own log, and `weir status`, say who is told"),
        "enabled" => ledger.exact(number, "always on"),
        _ => {}
    }
}

/// Host and port of an address.
fn at(text: &str) -> Result<(String, String), String> {
    match place(text)? {
        (Endpoint::Host(host, Some(port)), false) => Ok((host, port)),
        (Endpoint::Host(..), false) => Err("it has no port".to_owned()),
        _ => Err("Weirs reach each other at an address and a port".to_owned()),
    }
}

fn is_any(host: &str) -> bool {
    matches!(host, "" | "*" | "0.0.0.0" | "::")
}

/// The address that is listened at.
fn bind_at((host, port): &(String, String), line: usize, ledger: &mut Ledger) -> String {
    let is_address = host.parse::<std::net::IpAddr>().is_ok() || super::words::has_variable(host);
    match (is_any(host), is_address) {
        (true, _) if host == "::" => format!("[::]:{port}"),
        (true, _) => format!("0.0.0.0:{port}"),
        (false, true) => format!("{}:{port}", bracketed(host)),
        (false, false) => {
            let note = "`peers.bind` is 0.0.0.0: it takes no names, set it to the address of this one";
            ledger.approximate(line, note);
            format!("0.0.0.0:{port}")
        }
    }
}
