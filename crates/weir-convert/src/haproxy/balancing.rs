//! `balance`, `cookie` and `stick`: which backend is chosen, and by what a client comes back to it.

use super::ledger::Ledger;
use super::maps::Maps;
use super::output::{Keys, inline, is_token, said};
use super::proxies::Proxy;
use super::samples::{Sample, variable};
use super::sections::Line;
use super::servers::Server;
use super::times::duration;

/// Says the keys of a pool.
pub fn say(proxy: &Proxy<'_>, servers: &[Server], maps: &mut Maps, keys: &mut Keys, ledger: &mut Ledger) {
    if let Some(line) = proxy.last(&["balance"]) {
        match algorithm(line, maps).and_then(|chosen| match chosen {
            ("hash", ..) if proxy.is_tcp => Err("connections have no request to be hashed".to_owned()),
            chosen => Ok(chosen),
        }) {
            Ok((balance, key, note)) => {
                // What is the default need not be said.
                if balance != "round-robin" {
                    keys.set("balance", said(balance));
                }
                if let Some(key) = key {
                    keys.set("hash", inline(&[("key".to_owned(), said(&key))]));
                }
                match note {
                    Some(note) => {
                        ledger.approximate(line.number, format!("`balance = \"{balance}\"`; {note}"))
                    }
                    None => ledger.exact(line.number, format!("`balance = \"{balance}\"`")),
                }
            }
            Err(why) => ledger.unsupported(line.number, format!("{why}: backends are chosen in turn")),
        }
    }
    if let Some(line) = proxy.last(&["hash-type"]) {
        match line.word(1) {
            "consistent" => ledger.exact(line.number, "always consistent"),
            _ => ledger
                .approximate(line.number, "always consistent: fewer keys move when backends come and go"),
        }
    }
    if let Some(line) = proxy.last(&["hash-balance-factor"]) {
        let factor: u32 = line.word(1).parse().unwrap_or(0);
        let is_hash = keys.get("balance") == Some("\"hash\"");
        let hash = keys.get("hash").and_then(|hash| hash.strip_suffix(" }")).map(str::to_owned);
        match (is_hash, hash) {
            (true, Some(hash)) if (101..=1000).contains(&factor) => {
                keys.set("hash", format!("{hash}, bounded = {}.{:02} }}", factor / 100, factor % 100));
                ledger.exact(line.number, "`hash.bounded`");
            }
            _ if factor == 0 => ledger.exact(line.number, "off"),
            _ => ledger.unsupported(line.number, "no bound: it is from 101 to 1000, for a hash"),
        }
    }
    sticky(proxy, servers, keys, ledger);
    if sessions(proxy, keys, ledger) {
        return;
    }
    for line in proxy.lines_of("stick") {
        stick(line, proxy.is_tcp, maps, keys, ledger);
    }
}

type Chosen = (&'static str, Option<String>, Option<String>);

const OTHER: &str =
    "a key comes to the same backend each time, though to another one than by HAProxy's function";

fn algorithm(line: &Line, maps: &mut Maps) -> Result<Chosen, String> {
    let word = line.word(1);
    let (name, argument) =
        word.split_once('(').map_or((word, ""), |(name, rest)| (name, rest.trim_end_matches(')')));
    let other = || Some(OTHER.to_owned());
    Ok(match name {
        "roundrobin" | "static-rr" => ("round-robin", None, None),
        "leastconn" => ("least-connections", None, None),
        "first" => ("first", None, None),
        "random" if matches!(argument, "" | "2") => ("random-two", None, None),
        "random" => ("random-two", None, Some("two are drawn".to_owned())),
        "source" => ("source", None, other()),
        "uri" => {
            let key = if line.from(2).iter().any(|word| word == "whole") { "uri" } else { "path" };
            let cut = line.from(2).iter().any(|word| matches!(word.as_str(), "len" | "depth"));
            let note = if cut {
                "the whole path is the key (no `len`, no `depth`)".to_owned()
            } else {
                OTHER.to_owned()
            };
            ("hash", Some(key.to_owned()), Some(note))
        }
        "url_param" => ("hash", Some(format!("$query.{}", line.word(2))), other()),
        "hdr" if argument.eq_ignore_ascii_case("host") => ("hash", Some("$host".to_owned()), other()),
        "hdr" if is_token(argument) => {
            ("hash", Some(format!("header:{}", argument.to_ascii_lowercase())), other())
        }
        "hash" => {
            let (_, sample) = Sample::parse(&line.from(2).concat())?.without_case();
            match sample.fetch.name.as_str() {
                "src" if sample.converters.is_empty() => ("source", None, other()),
                _ => ("hash", Some(variable(&sample, maps)?.text), other()),
            }
        }
        other => return Err(format!("there is nothing like `balance {other}`")),
    })
}

fn sticky(proxy: &Proxy<'_>, servers: &[Server], keys: &mut Keys, ledger: &mut Ledger) {
    let Some(line) = proxy.last(&["cookie"]) else { return };
    if proxy.is_tcp {
        ledger.exact(line.number, "no effect in `mode tcp`");
        return;
    }
    let mut name = line.word(1).to_owned();
    if !is_token(&name) {
        return ledger.unsupported(line.number, "it names no cookie: clients do not stay with their server");
    }
    let mut sticky = Keys::default();
    let mut notes = vec![
        "the value is sealed, and is no server's name; the cookie has `HttpOnly` and `SameSite=Lax`"
            .to_owned(),
    ];
    let mut words = line.from(2).iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "insert" | "httponly" | "dynamic" => {}
            "indirect" => sticky.set("hidden", "true"),
            "nocache" => {
                sticky.set("private", "true");
                notes.push("`cache-control: private` is said whatever the method".to_owned());
            }
            "secure" => sticky.set("secure", "true"),
            "domain" => {
                let domain = words.next().map_or("", String::as_str);
                sticky.set("domain", said(domain.trim_start_matches('.')));
            }
            "maxlife" => match words.next().and_then(|text| duration(text, 1000)) {
                Some(time) => {
                    sticky.set("max_age", said(&time.within(1000, 400 * 86_400_000).0.whole_seconds()))
                }
                None => notes.push("`maxlife` is no time".to_owned()),
            },
            "maxidle" => {
                words.next();
                notes.push("there is no `maxidle`".to_owned());
            }
            "attr" => {
                let text = words.next().map_or("", String::as_str).to_ascii_lowercase();
                match text.strip_prefix("samesite=") {
                    Some(site @ ("lax" | "strict" | "none")) => sticky.set("same_site", said(site)),
                    _ => notes.push(format!("there is no attribute `{text}`")),
                }
            }
            "rewrite" | "prefix" => {
                name = format!("{}_server", line.word(1));
                notes.push(format!(
                    "a cookie of its own, `{name}`: those of the application are left as they are"
                ));
            }
            other => notes.push(format!("`{other}` is not looked at")),
        }
    }
    if sticky.get("same_site") == Some("\"none\"") {
        sticky.set("secure", "true");
    }
    let names_servers = servers.iter().any(|server| server.has("cookie"))
        || line.from(2).iter().any(|word| word == "dynamic");
    if !names_servers {
        notes.push(
            "clients stay with their server; HAProxy's would not, since no server has a `cookie`".to_owned(),
        );
    }
    let mut all = Keys::default();
    all.set("cookie", said(&name));
    sticky.entries().iter().for_each(|(key, value)| all.set(key, value.clone()));
    keys.set("sticky", all.inline());
    ledger.approximate(line.number, format!("`sticky`; {}", notes.join("; ")));
    if let Some(line) = proxy.last(&["dynamic-cookie-key"]) {
        ledger.approximate(line.number, "the secret is this machine's; `sticky.secret_file` says another");
    }
}

/// Clients that stay with the server which has given them a session: the cookie of the application says
/// which session it is, but no table which server, so Weir sets a cookie of its own beside it. Whether the
/// proxy has such clients.
fn sessions(proxy: &Proxy<'_>, keys: &mut Keys, ledger: &mut Ledger) -> bool {
    let learned = proxy.lines_of("stick").find_map(|line| {
        let sample = Sample::parse(line.word(2)).ok().filter(|_| line.word(1) == "store-response")?;
        matches!(sample.fetch.name.as_str(), "res.cook" | "scook" | "set-cookie")
            .then(|| sample.fetch.argument(0).to_owned())
    });
    let by_name = proxy.last(&["appsession"]);
    let name = learned.or_else(|| by_name.map(|line| line.word(1).to_owned()));
    let Some(name) = name.filter(|name| is_token(name) && !proxy.is_tcp) else { return false };
    if !keys.has("sticky") {
        keys.set("sticky", inline(&[("cookie".to_owned(), said(&format!("{name}_server")))]));
    }
    let note = format!(
        "`sticky`: a cookie of Weir's own, beside `{name}`, keeps clients with the server that they came to first; a table knows of none"
    );
    for line in proxy.lines_of("stick").chain(by_name) {
        ledger.approximate(line.number, note.clone());
    }
    true
}

fn stick(line: &Line, is_tcp: bool, maps: &mut Maps, keys: &mut Keys, ledger: &mut Ledger) {
    let (on, by) = (line.word(1), line.word(2));
    if !matches!(on, "on" | "match" | "store-request") {
        ledger.unsupported(
            line.number,
            "nothing of a response is remembered; `sticky` sets a cookie of Weir's own",
        );
        return;
    }
    if line.words.len() > 3 {
        ledger.approximate(line.number, "its table and its condition are not looked at");
    }
    let key = Sample::parse(by).map(|sample| sample.without_case().1).and_then(|sample| {
        if sample.fetch.name == "src" && sample.converters.iter().all(|call| call.name == "ipmask") {
            return Ok(None);
        }
        match sample.fetch.name.as_str() {
            "cook" | "req.cook" => Ok(Some(format!("cookie:{}", sample.fetch.argument(0)))),
            _ => variable(&sample, maps).map(|value| Some(value.text)),
        }
    });
    let (balance, key) = match key {
        Ok(None) => ("source", None),
        Ok(Some(_)) if is_tcp => {
            return ledger.unsupported(line.number, "connections have no request to be known again by");
        }
        Ok(Some(key)) => ("hash", Some(key)),
        Err(why) => {
            return ledger
                .unsupported(line.number, format!("{why}: clients do not come back to their server by it"));
        }
    };
    keys.set("balance", said(balance));
    keys.remove("hash");
    if let Some(key) = &key {
        keys.set("hash", inline(&[("key".to_owned(), said(key))]));
    }
    ledger.approximate(
        line.number,
        format!("`balance = \"{balance}\"`: nothing is remembered, a key comes to the same backend by its hash, and moves when that is down"),
    );
}
