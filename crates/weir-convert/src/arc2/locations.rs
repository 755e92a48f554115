//! A domain's backends and their health checks.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use super::bag::Bag;
use super::globals::Globals;
use super::rules::Rule;
use super::{Notes, line, quoted};

/// The backends of a domain.
pub struct Pool {
    pub backends: Vec<Location>,
    pub method: Method,
    pub health: Option<Health>,
}

/// One backend.
pub struct Location {
    pub address: String,
    pub tls: bool,
    /// `priority`, which is a weight if the method is Weighted.
    pub priority: Option<u64>,
    pub primary: bool,
}

/// How a backend is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The first backend that is up.
    Priority,
    /// In proportion to the weights.
    Weighted,
    /// The backend that answers fastest.
    Performance,
}

/// `enable_health_checks` and its settings.
pub struct Health {
    pub interval_seconds: u64,
    pub path: String,
}

/// Takes all keys about backends. Also returns whether only HTTPS is to be served.
pub fn read(bag: &mut Bag, globals: &Globals, notes: &mut Notes) -> (Pool, bool) {
    let own = location(bag, notes);
    let Some(taken) = bag.table("routing_rules") else {
        let backends = own.into_iter().collect();
        return (Pool { backends, method: Method::Priority, health: None }, false);
    };
    let mut rules = taken.value;
    let method = method(&mut rules, notes);
    let mut backends = Vec::new();
    for (_, mut each) in rules.tables("routing_locations").map_or_else(Vec::new, |taken| taken.value) {
        let found = location(&mut each, notes);
        let primary = each.flag("primary").is_some_and(|taken| {
            match method {
                Method::Priority => notes.exact(&taken, "the primary comes first"),
                _ => notes.exact(&taken, "says nothing where all take part"),
            }
            taken.value
        });
        let priority = each.number("priority").map(|taken| {
            match method {
                Method::Priority => notes.approximate(&taken, "the smallest number comes first"),
                Method::Weighted => notes.exact(&taken, "`weight`"),
                Method::Performance => notes.exact(&taken, "says nothing where the fastest is chosen"),
            }
            taken.value
        });
        notes.leftover(each);
        backends.extend(found.map(|location| Location { priority, primary, ..location }));
    }
    if backends.is_empty() {
        backends.extend(own);
    }
    if method == Method::Priority {
        backends.sort_by_key(|location| (!location.primary, location.priority.unwrap_or(u64::MAX)));
    }
    let https_only = rules.flag("https_only").is_some_and(|taken| {
        match (taken.value, globals.email.is_some()) {
            (true, true) => notes.exact(&taken, "`listener.web` redirects to HTTPS"),
            (true, false) => {
                notes.approximate(&taken, "no listener for HTTPS is written: nothing to redirect to")
            }
            (false, _) => notes.exact(&taken, "off"),
        }
        taken.value
    });
    let health = health(&mut rules, notes);
    notes.leftover(rules);
    (Pool { backends, method, health }, https_only)
}

fn method(rules: &mut Bag, notes: &mut Notes) -> Method {
    let Some(taken) = rules.text("routing_method") else { return Method::Priority };
    match taken.value.as_str() {
        "Weighted" => {
            notes.exact(&taken, "`balance = \"round-robin\"` with weights");
            Method::Weighted
        }
        "Performance" => {
            notes.exact(&taken, "`balance = \"least-time\"`");
            Method::Performance
        }
        "Priority" => {
            notes.exact(&taken, "`balance = \"first\"`: the first that is up takes all");
            Method::Priority
        }
        _ => {
            notes.unsupported(&taken, "not one of ARC2's methods: Priority is taken");
            Method::Priority
        }
    }
}

fn health(rules: &mut Bag, notes: &mut Notes) -> Option<Health> {
    let enabled = rules.flag("enable_health_checks").is_some_and(|taken| {
        notes.exact(&taken, if taken.value { "`health`" } else { "no probes: `health.check` is \"off\"" });
        taken.value
    });
    let interval_seconds = rules.number("health_check_interval").map_or(30, |taken| {
        notes.exact(&taken, "`health.interval`");
        taken.value.clamp(1, 3600)
    });
    let path = rules.text("health_check_path").map_or_else(
        || "/".to_owned(),
        |taken| {
            notes.exact(&taken, "`health.path`");
            if taken.value.starts_with('/') { taken.value } else { format!("/{}", taken.value) }
        },
    );
    enabled.then_some(Health { interval_seconds, path })
}

/// Takes one address with its ports; `None` if there is none.
fn location(bag: &mut Bag, notes: &mut Notes) -> Option<Location> {
    let mut host = None;
    for key in ["forward_addr", "forward_ipv4", "forward_ipv6"] {
        let Some(taken) = bag.text(key) else { continue };
        if host.is_some() {
            notes.approximate(&taken, "another address of the same backend is there already: left out");
            continue;
        }
        notes.exact(&taken, "address of the backend");
        host = Some(match taken.value.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => taken.value,
        });
    }
    let (http, https) = (bag.number("forward_port_http"), bag.number("forward_port_https"));
    let (port, tls) = match (&http, &https) {
        (Some(port), other) => {
            notes.exact(port, "port of the backend");
            if let Some(other) = other {
                notes.approximate(other, "the backend is spoken to without TLS for clients of both kinds");
            }
            (port.value, false)
        }
        (None, Some(port)) => {
            notes.exact(port, "port of the backend, with `tls` towards it");
            (port.value, true)
        }
        (None, None) => (80, false),
    };
    host.map(|host| Location { address: format!("{host}:{port}"), tls, priority: None, primary: false })
}

/// Writes the pools.
pub fn write(globals: &Globals, rules: &[Rule], body: &mut String) {
    for rule in rules {
        let pool = &rule.locations;
        // A dot in an unquoted key would begin a nested table.
        let _ = write!(body, "\n[pool.{}]\n", quoted(&rule.pool));
        let backends: Vec<String> =
            pool.backends.iter().map(|location| backend(pool.method, location)).collect();
        line(body, "backends", format!("[{}]", backends.join(", ")));
        match pool.method {
            _ if pool.backends.len() < 2 => {}
            Method::Priority => line(body, "balance", quoted("first")),
            Method::Performance => line(body, "balance", quoted("least-time")),
            Method::Weighted => {}
        }
        line(
            body,
            "keep_alive",
            format!("{{ idle = \"{}s\" }}", globals.keep_alive_seconds.clamp(1, 86_400)),
        );
        if pool.backends.iter().any(|location| location.tls) {
            line(body, "tls", "true");
        }
        let _ = write!(body, "\n[pool.{}.health]\n", quoted(&rule.pool));
        match &pool.health {
            Some(health) => {
                line(body, "check", quoted("http"));
                line(body, "path", quoted(&health.path));
                line(body, "interval", format!("\"{}s\"", health.interval_seconds));
            }
            None => line(body, "check", quoted("off")),
        }
    }
}

fn backend(method: Method, location: &Location) -> String {
    let address = quoted(&location.address);
    match (method, location.priority) {
        (Method::Weighted, Some(weight)) => {
            format!("{{ address = {address}, weight = {} }}", weight.clamp(1, 256))
        }
        _ => address,
    }
}
