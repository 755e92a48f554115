//! `[peers]`: other Weirs that count together with this one.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::fields::Fields;
use crate::keys::{Each, Shape, list, table as below, text};
use crate::report::{Findings, quote};
use crate::setting::{Section as _, table};
use crate::units::{Refused, refuse};
use crate::values::address::{FILE, KEY_FILE, PEM_FILE, bind, is_host_name};
use crate::values::host::SERVER_NAME;

/// Most addresses of peers (count): each Weir has a connection to each other one.
const ADDRESSES_MOST: usize = 64;

table! {
    /// Weirs that count together what `rate_limit`s count, so that a limit holds over all of them. Each
    /// tells all others; one that is not reached counts alone meanwhile.
    #[derive(Eq)]
    pub struct Peers at "[peers]" {
        /// Address and port where the others reach this Weir. Connections are encrypted, and only Weirs with
        /// the same secret, or with a certificate (`tls`), are listened to.
        bind: SocketAddr = text(&BIND).required().also(&["listen", "local"]);
        /// Addresses and ports of the others. This Weir's own may be among them, so that all can have the
        /// same file.
        addresses: Vec<String> =
            list(Each::Text(&PEER)).required().also(&["peer", "peers", "servers", "others", "with"]);
        /// File with a secret of at least 16 bytes that all of them have, such as `openssl rand -hex 32`
        /// writes. Only its owner may be allowed to read it. It is read at start and at each reload; with
        /// another secret, the limits that are shared begin anew.
        secret_file: PathBuf = text(&FILE).required().also(&["key_file", "secret", "psk_file"]);
        /// Certificates by which Weirs know each other, so that one of them can be shut out. The secret then
        /// lets nobody in, but all need the same one still, for what they tell each other.
        tls: Option<PeersTls> =
            below(PeersTls::TABLE).default("none: who has the secret is one of them").also(&["ssl"]);
    }
}

table! {
    /// Certificates by which Weirs know each other. Files are read at start and at each reload; where the
    /// authorities, lists or the name are others then, connections are made anew.
    #[derive(Eq)]
    pub struct PeersTls at "[peers.tls]" {
        /// PEM file of this Weir's certificate chain, its own first. It is shown to those who connect, and to
        /// those who are connected to.
        cert: PathBuf = text(&PEM_FILE).required().also(&["certificate", "crt"]);
        /// PEM file of its private key, without a passphrase.
        key: PathBuf = text(&KEY_FILE).required();
        /// PEM file of the authorities that the others' certificates must come from.
        ca: PathBuf = text(&PEM_FILE).required().also(&["ca_file", "client_ca"]);
        /// PEM files of lists of certificates that `ca` and the authorities below it have revoked. One for
        /// each of them: whom no list speaks of, or one that is out of date, is not believed.
        crl: Vec<PathBuf> = list(Each::Text(&PEM_FILE)).default("none").also(&["crl_file", "revoked"]);
        /// Name that the certificates of all Weirs are for, perhaps beside others: an authority may have
        /// certified many who are no Weirs.
        name: String = text(&SERVER_NAME).required().also(&["verifyhost", "server_name"]);
    }
}

static BIND: Shape = Shape::new("an address and port", "10.0.0.1:4460", |text| match bind(text)? {
    text if text.ends_with(":0") => {
        refuse(format!("{} has no port that others could know", quote(&text)), "expected a port such as 4460")
    }
    text => Ok(text),
});

static PEER: Shape = Shape::new("the address of another Weir", "10.0.0.2:4460", peer);

fn peer(text: &str) -> Result<String, Refused> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        // An IPv4 address in the form of an IPv6 one is the same Weir.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            let message = format!("{} is not where another Weir is reached", quote(text));
            return refuse(message, "expected the address of its machine, such as \"10.0.0.2:4460\"");
        }
        return match address.port() {
            0 => refuse(format!("{} has no port", quote(text)), "expected that of its `bind`"),
            _ => Ok(address.to_string()),
        };
    }
    let is_good =
        |(host, port): (&str, &str)| is_host_name(host) && port.parse().is_ok_and(|port: u16| port > 0);
    match text.rsplit_once(':').is_some_and(is_good) {
        // Names have no case.
        true => Ok(text.to_ascii_lowercase()),
        false => refuse(
            format!("{} is not the address of another Weir", quote(text)),
            "expected an address or host name with the port of its `bind`, such as \"10.0.0.2:4460\"",
        ),
    }
}

/// Warns of a Weir that the others can't reach, so that it is told nothing.
fn reached(peers: &Peers, fields: &Fields, findings: &mut Findings<'_>) {
    let is_elsewhere =
        |text: &String| text.parse::<SocketAddr>().is_ok_and(|address| !address.ip().is_loopback());
    let other = peers.addresses.iter().position(is_elsewhere).filter(|_| !fields.is_bad("addresses"));
    let own = peers.bind.ip().to_canonical();
    if let (true, Some(at)) = (own.is_loopback() && !fields.is_bad("bind"), other) {
        let place = fields.list("addresses").get(at).map_or(fields.at("addresses"), |(at, _)| *at);
        let other = peers.addresses.get(at).map_or("", String::as_str);
        findings.warning(
            fields.at("bind"),
            format!("{} is reached on this machine alone, and `{other}` is another one", peers.bind),
            format!(
                "this Weir would be told nothing: expected the address at which {} reaches it",
                findings.place(place)
            ),
        );
    }
}

/// Reports contradictions.
pub(crate) fn check(peers: &Peers, fields: &Fields, findings: &mut Findings<'_>) {
    crate::values::said_once(fields, "addresses", findings);
    reached(peers, fields, findings);
    if peers.addresses.len() > ADDRESSES_MOST {
        findings.error(
            fields.at("addresses"),
            format!("`addresses` has {} entries", peers.addresses.len()),
            format!("expected at most {ADDRESSES_MOST}: each Weir has a connection to each other one"),
        );
    }
}
