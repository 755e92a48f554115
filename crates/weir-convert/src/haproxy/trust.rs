//! `http-request set-src`: whose word on who the client is counts.

use super::acls::{Here, Read, Reader};
use super::ledger::Ledger;
use super::output::{Keys, said, said_all};
use super::proxies::Proxy;
use super::samples::Sample;
use super::tcp::networks;

/// The keys of the listeners of a proxy that says it once, of a header field, under no other condition than
/// the network of the peer. Such a line gets its verdict; all others are left to the rules.
pub fn trusted(
    proxy: &Proxy<'_>,
    reader: &mut Reader<'_>,
    used: &mut Vec<String>,
    ledger: &mut Ledger,
) -> Keys {
    let mut keys = Keys::default();
    let is_one = |word: &str| word == "set-src";
    let lines: Vec<_> = proxy.lines_of("http-request").filter(|line| is_one(line.word(1))).collect();
    let [line] = lines.as_slice() else { return keys };
    let Some(name) = Sample::parse(line.word(2)).ok().and_then(|sample| field(&sample)) else { return keys };
    let mut read = Read::default();
    let Ok(when) = reader.when(line.from(3), &mut read) else { return keys };
    let terms = when.terms(&Here::default()).unwrap_or_default();
    let peers = match terms.as_slice() {
        [term] if term.is_always() => vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
        [term] => match networks(term) {
            Some((networks, false)) => networks,
            _ => return keys,
        },
        _ => return keys,
    };
    used.extend(read.used);
    keys.set("trusted_proxies", said_all(&peers));
    match name.as_str() {
        // The last one, as HAProxy takes it.
        "x-forwarded-for" => keys.set("client_address", "{ hops = 1 }"),
        name => keys.set("client_address", said(name)),
    }
    ledger.approximate(
        line.number,
        "`trusted_proxies` and `client_address`: rules that stand before it see that address, too, and backends are told what these peers say in `x-forwarded-proto` and the like",
    );
    keys
}

/// The field that an address is taken from, where it is the last of its values.
fn field(sample: &Sample) -> Option<String> {
    let fetch = &sample.fetch;
    let is_field = matches!(fetch.name.as_str(), "hdr" | "req.hdr" | "req.fhdr" | "hdr_ip" | "req.hdr_ip");
    let is_last = matches!(fetch.argument(1), "" | "-1");
    (is_field && is_last && sample.converters.is_empty() && super::output::is_token(fetch.argument(0)))
        .then(|| fetch.argument(0).to_ascii_lowercase())
}
