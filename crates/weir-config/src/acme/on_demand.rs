//! `on_demand` of an `acme`: certificates that are ordered when a client asks for a name without one.

use std::path::PathBuf;
use std::time::Duration;

use weir_screen::Rate;

use crate::acme::{Acme, AcmeChallenge, url_of};
use crate::fields::{Fields, Value};
use crate::keys::{DAY, Limit, Shape, count, duration, millis, seconds, text, text_or};
use crate::report::{Findings, quote};
use crate::setting::table;
use crate::units::{Refused, refuse};
use crate::values::address::PEM_FILE;

table! {
    /// Orders a certificate for a name when a client's handshake asks for it, no certificate of the listener
    /// is for it, and a service of the operator's says that it may be had. The handshake waits for it.
    #[derive(Eq)]
    pub struct OnDemand at "on_demand = { … }" {
        /// Service that says whether a name may have a certificate: it is asked `GET URL?domain=NAME`, and
        /// only a status from 200 to 299 is a yes. Without it anybody could have certificates ordered without
        /// end, by asking for names.
        ask: String =
            text(&ASK_URL).default("none: expected").also(&["ask_url", "url", "permission"]);
        /// PEM file of the authorities that the certificate of the service must come from, for `https://`.
        ca: Option<PathBuf> = text(&PEM_FILE).default("those of the system").also(&["ca_file", "ask_ca"]);
        /// How long it may take to answer; after that, it has not.
        ask_timeout: Duration =
            duration(Limit::new(seconds(5), millis(100), seconds(60), "a client waits for it"))
                .also(&["timeout"]);
        /// How long what it has said of a name is believed without asking again, yes or no.
        remember: Duration =
            duration(Limit::new(seconds(60), seconds(1), seconds(3600), "a customer may come, or leave"))
                .also(&["cache", "ttl"]);
        /// How long a handshake waits for a certificate. After that it is served as one for an unknown name;
        /// the order goes on, for the next one.
        wait: Duration =
            duration(Limit::new(seconds(30), seconds(1), seconds(300), "clients give up, too"));
        /// Handshakes that may wait at once for what is not in `store`. Another one is served as one for an
        /// unknown name.
        max_waiting: u32 =
            count(Limit::new(1_000, 1, 100_000, "each is a connection with what it sent"));
        /// Names that may be asked about, or ordered, at once.
        max_names: u32 =
            count(Limit::new(100, 1, 10_000, "each is a task, and a connection to the service or the authority"))
                .also(&["max_orders", "limit"]);
        /// How often a certificate may be ordered for a name that has none; authorities have limits of their
        /// own, and count what failed, too. Renewals do not count.
        rate: String = text_or(&RATE, "100/h").also(&["interval", "rate_limit"]);
        /// Orders that may be placed at once after a quiet time.
        burst: u32 = count(Limit::new(20, 1, 100_000, "orders in a burst"));
        /// Certificates held in memory; the one that was not asked for the longest gives way, and is read
        /// from `store` when it is asked for again.
        max_certificates: u32 =
            count(Limit::new(10_000, 1, 1_000_000, "each takes some KiB")).also(&["cache_capacity"]);
        /// A certificate that was asked for within this time is renewed, after asking the service again;
        /// one that was not is left to expire.
        renew_used_within: Duration =
            duration(Limit::new(days(30), seconds(60), days(365), "who still uses a name"));
    }
}

const fn days(count: u64) -> Duration {
    seconds(DAY.as_secs() * count)
}

static ASK_URL: Shape = Shape::new("a URL", "http://127.0.0.1:5555/allowed", ask_url);
static RATE: Shape = Shape::new("a rate", "100/h", |text| {
    let message = || format!("{} is not a rate", quote(text));
    Rate::parse(text).map(|rate| rate.to_string()).map_err(|hint| Refused { message: message(), hint })
});

impl OnDemand {
    /// The time after which one more order may be placed.
    pub fn between_orders(&self) -> Duration {
        Rate::parse(&self.rate).map_or(DAY, |rate| rate.per / rate.count.max(1))
    }
}

/// Checks an `acme` with or without `on_demand`; `before` are the earlier ones of the same listener.
pub(super) fn check(own: &Acme, fields: &Fields, before: &[&Acme], findings: &mut Findings<'_>) {
    let Some(entry) = fields.get("on_demand") else {
        if fields.lacks("domains") {
            let hint = "expected `domains = \"shop.example\"`, for example, or `on_demand`";
            findings.error(fields.at, "`acme` has no `domains`", hint);
        }
        return;
    };
    if let Some(table) = fields.table("on_demand").filter(|table| table.lacks("ask")) {
        let hint = "expected `ask = \"http://127.0.0.1:5555/allowed\"`, a service that knows your customers' names: else \
                    anybody has certificates ordered without end, by asking for names";
        findings.error(table.at, "`on_demand` has no `ask`", hint);
    }
    if let Some(table) = fields.table("on_demand")
        && let Some(ca) = table.get("ca")
        && table.text("ask").is_some_and(|ask| ask.starts_with("http://"))
    {
        let hint = "expected `ask = \"https://…\"` beside it, or leave it out";
        findings.error(ca.key, "`ca` needs an `ask` over TLS", hint);
    }
    for (at, value) in fields.list("challenges") {
        if matches!(value, Value::Word(word) if *word == AcmeChallenge::Dns01.word()) {
            let hint = "whoever may be asked for leads here, so expected `http-01` or `tls-alpn-01`";
            findings.error(*at, "`on_demand` is not for `dns-01`", hint);
        }
    }
    let takes_all = |acme: &&Acme| acme.on_demand.is_some() && acme.domains.is_empty();
    if before.iter().any(takes_all) && own.on_demand.is_some() {
        let hint =
            "the first that matches wins: expected `domains` of the one before, such as \"*.shop.example\"";
        findings.error(entry.key, "an `on_demand` before this one is for every name", hint);
    }
}

fn ask_url(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not the URL of a service", quote(text));
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else {
        return refuse(message, "expected a URL that begins with `http://` or `https://`");
    };
    url_of(rest, "a service", message)?;
    Ok(text.to_owned())
}
