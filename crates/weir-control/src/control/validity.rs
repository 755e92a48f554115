//! Logs when a served certificate is about to expire, and when it has. If that is already so when it is
//! loaded, it is reported then, with the file.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use weir_state::Snapshot;
use weir_tls::{Facts, Validity};

use super::Control;
use crate::certificates::describe_validity;

/// Interval between two looks; nobody needs to know it to the second.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Looks repeatedly, until the process ends.
pub(super) async fn keep(control: Arc<Control>) {
    let mut told = Told::default();
    loop {
        let now = SystemTime::now();
        for Served { listener, facts, .. } in told.news(served(&control, &control.snapshot()), now) {
            let what = describe_validity(facts.validity(now), now).unwrap_or_default();
            let certificate = facts.file.display();
            match listener {
                Some(listener) => tracing::warn!(listener, %certificate, "the certificate {what}"),
                None => tracing::warn!(%certificate, "peers: the certificate of this Weir {what}"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A certificate that is shown.
struct Served {
    /// The listener that serves it; `None` for the one that other Weirs are shown.
    listener: Option<String>,
    facts: Facts,
    renewal: Renewal,
}

/// How the certificate is renewed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Renewal {
    /// By whatever writes its file.
    ByHand,
    /// By Weir.
    ByOrder,
    /// By Weir, which has not succeeded.
    Failing,
}

fn served(control: &Control, snapshot: &Snapshot) -> Vec<Served> {
    let mut all = Vec::new();
    for listener in &snapshot.listeners {
        let (Some(tls), Some(config)) = (&listener.tls, &listener.config.tls) else { continue };
        let ordered: Vec<PathBuf> = config.ordered().map(weir_tls::acme::file).collect();
        for facts in tls.certificates() {
            let standing = || control.orders().standing(&facts.file);
            let renewal = match ordered.contains(&facts.file) {
                false => Renewal::ByHand,
                true if standing().is_some_and(|it| it.failures_in_a_row > 0) => Renewal::Failing,
                true => Renewal::ByOrder,
            };
            all.push(Served { listener: Some(listener.config.name.clone()), facts, renewal });
        }
    }
    if let Some(facts) = snapshot.peer_keys.as_ref().and_then(|keys| keys.own.clone()) {
        all.push(Served { listener: None, facts, renewal: Renewal::ByHand });
    }
    all
}

/// How close to its expiry a certificate was when this was last logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Good,
    EndsSoon,
    Ended,
}

/// What was logged for each certificate, by listener, file and expiry.
#[derive(Default)]
struct Told(HashMap<(Option<String>, PathBuf, Option<i64>), Stage>);

impl Told {
    /// Those of `served` that are closer to their expiry than was last logged.
    fn news(&mut self, served: Vec<Served>, now: SystemTime) -> Vec<Served> {
        let mut after = HashMap::new();
        let news = served.into_iter().filter(|it| {
            let key = (it.listener.clone(), it.facts.file.clone(), it.facts.not_after);
            let stage = match it.facts.validity(now) {
                // A certificate that is being ordered is not worth reporting before that fails.
                _ if it.renewal == Renewal::ByOrder => Stage::Good,
                Validity::Good | Validity::NotYet(_) => Stage::Good,
                Validity::EndsSoon(_) => Stage::EndsSoon,
                Validity::Ended(_) => Stage::Ended,
            };
            // For one that was loaded since, everything was already reported at loading; for those by ACME
            // nothing was.
            let unknown = if it.renewal == Renewal::ByHand { stage } else { Stage::Good };
            let before = self.0.get(&key).copied().unwrap_or(unknown);
            after.insert(key, stage.max(before));
            stage > before
        });
        let news = news.collect();
        self.0 = after;
        news
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const DAY: u64 = 86_400;

    /// One that is good for the first hundred days since 1970.
    fn served(renewal: Renewal) -> Vec<Served> {
        let (not_before, not_after) = (Some(0), Some(100 * DAY as i64));
        let facts = Facts { file: "shop.pem".into(), not_before, not_after, ..Facts::default() };
        vec![Served { listener: Some("web".to_owned()), facts, renewal }]
    }

    /// On which days something is told when it is looked at on these days.
    fn told_on(days: &[u64], renewal: impl Fn(u64) -> Renewal) -> Vec<u64> {
        let mut told = Told::default();
        let is_told = |day: &u64| {
            !told.news(served(renewal(*day)), UNIX_EPOCH + Duration::from_secs(day * DAY)).is_empty()
        };
        days.iter().copied().filter(is_told).collect()
    }

    #[test]
    fn the_coming_end_and_the_end_of_a_certificate_are_told_once_each() {
        assert_eq!(told_on(&[1, 50, 85, 87, 88, 99, 101, 102], |_| Renewal::ByHand), [87, 101]);
    }

    #[test]
    fn what_is_so_when_it_is_loaded_was_told_then() {
        assert_eq!(told_on(&[90, 91, 101], |_| Renewal::ByHand), [101]);
    }

    #[test]
    fn one_that_is_renewed_is_spoken_of_only_where_that_fails() {
        assert_eq!(told_on(&[1, 90, 101], |_| Renewal::ByOrder), [0; 0]);
        let fails_at_last = |day| if day < 95 { Renewal::ByOrder } else { Renewal::Failing };
        assert_eq!(told_on(&[90, 95, 96, 101], fails_at_last), [95, 101]);
        assert_eq!(told_on(&[95, 96], fails_at_last), [95]);
    }
}
