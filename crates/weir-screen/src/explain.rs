//! The verdict of a screen on a request, check by check, without counting the request.

use std::net::IpAddr;
use std::time::Duration;

use crate::addresses::{Addresses, Standing};
use crate::concurrency::ConcurrencyLimiter;
use crate::rate_limiter::RateLimiter;
use crate::screen::{Facts, Reason, Screen, Texts, with_client};
use crate::settings::Checkpoint;

/// One check that a screen makes, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScreenCheck {
    /// The key of the config.
    pub name: String,
    /// Whether the request passes.
    pub passes: bool,
    /// Why, in words.
    pub reason: String,
    /// Where it is made.
    pub at: Checkpoint,
    /// The reason for the refusal if it does not pass.
    pub refused_as: Reason,
    /// Status of the answer if it does not pass.
    pub status: u16,
}

impl ScreenCheck {
    fn of_list(name: &str, passes: bool, reason: String, refused_as: Reason) -> ScreenCheck {
        let (name, at) = (name.to_owned(), Checkpoint::Edge);
        ScreenCheck { name, passes, reason, at, refused_as, status: 403 }
    }
}

impl Screen {
    /// The verdicts of address lists and rate limits on a connection or flow of a client, in the order of the
    /// checks. Counts nothing.
    pub fn explain_client(&self, client: IpAddr, now: Duration) -> Vec<ScreenCheck> {
        let of_address = self.addresses.as_ref().map(|addresses| of_address(addresses, client));
        let of_rates = with_client(client, |facts| {
            self.rates.iter().map(|limiter| of_rate(limiter, facts, now)).collect::<Vec<_>>()
        });
        of_address.into_iter().chain(of_rates).collect()
    }

    /// The result of every check, in the order in which they are made; a live request is not checked any
    /// further after the first refusal. Counts nothing.
    pub fn explain(&self, facts: &Facts<'_>, now: Duration) -> Vec<ScreenCheck> {
        let mut steps = Vec::new();
        if let Some(addresses) = &self.addresses {
            steps.push(of_address(addresses, facts.client));
        }
        for (reason, texts, text) in [
            (Reason::Method, &self.methods, facts.method),
            (Reason::Path, &self.paths, facts.path),
            (Reason::UserAgent, &self.user_agents, facts.user_agent),
        ] {
            of_text(reason, texts, text, &mut steps);
        }
        steps.extend(self.concurrencies.iter().map(|limiter| of_concurrency(limiter, facts)));
        steps.extend(self.rates.iter().map(|limiter| of_rate(limiter, facts, now)));
        steps
    }
}

fn of_address(addresses: &Addresses, client: IpAddr) -> ScreenCheck {
    let client = client.to_canonical();
    let passes = addresses.passes(client);
    let (allowed, denied) = addresses.counts();
    let name = if denied > 0 && (allowed == 0 || !passes) { "deny_address" } else { "allow_address" };
    let reason = match addresses.standing(client) {
        Standing::Allowed(network) => format!("`{network}` of `allow_address` holds {client}"),
        Standing::Denied(network) => format!("`{network}` of `deny_address` holds {client}"),
        Standing::Unlisted if allowed == 0 => format!("no entry of {denied} holds {client}"),
        Standing::Unlisted => format!("no entry of {allowed} in `allow_address` holds {client}"),
    };
    ScreenCheck::of_list(name, passes, reason, Reason::Address)
}

fn of_text(refused_as: Reason, texts: &Texts, text: &[u8], steps: &mut Vec<ScreenCheck>) {
    let name = match refused_as {
        Reason::Method => "method",
        Reason::Path => "path",
        _ => "user_agent",
    };
    let shown = String::from_utf8_lossy(text);
    for (verb, list, passes) in [("deny", &texts.deny, false), ("allow", &texts.allow, true)] {
        let Some(list) = list else { continue };
        let found = list.first(text);
        let reason = match found {
            Some(pattern) => format!("`{pattern}` matches `{shown}`"),
            None => format!("no entry matches `{shown}`"),
        };
        let name = format!("{verb}_{name}");
        steps.push(ScreenCheck::of_list(&name, found.is_some() == passes, reason, refused_as));
    }
}

fn of_rate(limiter: &RateLimiter, facts: &Facts<'_>, now: Duration) -> ScreenCheck {
    let settings = &limiter.settings;
    let left = limiter.tokens(facts, now);
    let passes = left > 0 || settings.dry_run;
    let (rate, burst, at, key) =
        (settings.rate, settings.burst, settings.at.word(), settings.key.describe(facts));
    let dry = if settings.dry_run { ", dry run" } else { "" };
    let counted = match settings.counts_answers() {
        true => {
            let statuses: Vec<String> = settings.statuses.iter().map(ToString::to_string).collect();
            format!(", counts answers of {}", statuses.join(", "))
        }
        false => format!(" at {at}"),
    };
    let shared = if limiter.untold.is_some() { ", counted together with the other Weirs" } else { "" };
    let reason = format!("{left} of {burst} tokens left for {key}; {rate}{counted}{shared}{dry}");
    ScreenCheck {
        name: "rate_limit".to_owned(),
        passes,
        reason,
        at: settings.at,
        refused_as: Reason::Rate,
        status: settings.status,
    }
}

fn of_concurrency(limiter: &ConcurrencyLimiter, facts: &Facts<'_>) -> ScreenCheck {
    let settings = &limiter.settings;
    let under_way = limiter.under_way(facts);
    let max = limiter.limit();
    let passes = under_way < max || settings.dry_run;
    let (at, key) = (settings.at.word(), settings.key.describe(facts));
    let dry = if settings.dry_run { ", dry run" } else { "" };
    let adaptive = match (&settings.adaptive, limiter.unloaded()) {
        (None, _) => String::new(),
        (Some(adaptive), None) => format!(", adaptive from {} to {}", adaptive.min, settings.max),
        (Some(adaptive), Some(unloaded)) => {
            let (min, most, took) = (adaptive.min, settings.max, unloaded.as_secs_f64() * 1e3);
            format!(", adaptive from {min} to {most}: an answer takes {took:.1} ms when nothing waits")
        }
    };
    let reason = format!("{under_way} of {max} under way for {key}; at {at}{dry}{adaptive}");
    ScreenCheck {
        name: "concurrency_limit".to_owned(),
        passes,
        reason,
        at: settings.at,
        refused_as: Reason::Concurrency,
        status: settings.status,
    }
}
