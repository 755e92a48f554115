//! Proves domains by records in their zones (`dns-01`, RFC 8555 section 8.4): adds a record, by a signed
//! update or by the operator's program, waits until the name servers have it, and removes it when dropped.

mod message;
mod program;
mod tsig;
mod update;
mod wait;

use std::time::Duration;

use tokio::task::JoinHandle;
use weir_config::{Acme, DnsProgram, DnsUpdate};

/// The label in front of the domain in the name of the record.
const PREFIX: &str = "_acme-challenge";

/// A record that was added to a zone, or is about to be. When this is dropped a separate task removes it, and
/// nothing waits for that.
#[must_use = "the record is there for as long as this is kept"]
pub struct InZone {
    record: Option<Record>,
    /// The task that adds the record. It runs on even if nothing waits for it: a record that were removed
    /// before it is added would stay.
    putting: Option<JoinHandle<Result<(), String>>>,
}

/// A record, and the means to change its zone.
#[derive(Clone)]
struct Record {
    /// Without the trailing dot.
    name: String,
    /// The domain to prove, without a wildcard's star.
    domain: String,
    value: String,
    way: Way,
}

#[derive(Clone)]
enum Way {
    Update { update: DnsUpdate, zone: String },
    Program(DnsProgram),
}

/// How much longer orders of `acme` may take than those whose proofs need no waiting.
pub fn longest(acme: &Acme) -> Duration {
    let for_each = match (&acme.dns_update, &acme.dns_program) {
        (Some(update), _) => update.wait + 3 * message::PATIENCE,
        (None, Some(program)) => program.wait + program.timeout,
        (None, None) => Duration::ZERO,
    };
    for_each.saturating_mul(u32::try_from(acme.domains.len()).unwrap_or(u32::MAX))
}

/// Adds the record that proves `domain` to its zone, and returns once all name servers have it.
///
/// # Errors
/// The reason: the update was refused, or a name server did not have the record in time. The record is then
/// removed.
pub async fn put(acme: &Acme, domain: &str, value: String) -> Result<InZone, String> {
    let domain = domain.strip_prefix("*.").unwrap_or(domain).to_owned();
    let name = format!("{PREFIX}.{domain}");
    let way = match (&acme.dns_update, &acme.dns_program) {
        (Some(update), _) => {
            let zone = match &update.zone {
                Some(zone) => zone.clone(),
                None => update::zone_of(update.server, &name).await?,
            };
            Way::Update { update: update.clone(), zone }
        }
        (None, Some(program)) => Way::Program(program.clone()),
        (None, None) => return Err("neither `dns_update` nor `dns_program` is there".to_owned()),
    };
    let record = Record { name, domain, value, way };
    // From here on the record may exist, whatever an error says.
    let mut kept = InZone { record: Some(record.clone()), putting: None };
    let put = record.clone();
    let putting = kept.putting.insert(tokio::spawn(async move { put.set(true).await }));
    let put = putting.await;
    kept.putting = None;
    put.unwrap_or_else(|error| Err(error.to_string()))?;
    record.waited_for().await?;
    Ok(kept)
}

impl Record {
    /// Adds the record, or removes it.
    async fn set(&self, is_there: bool) -> Result<(), String> {
        match &self.way {
            Way::Update { update, zone } => {
                update::send(update, zone, &self.name, &self.value, is_there).await
            }
            Way::Program(program) => {
                program::run(program, &self.domain, &self.name, &self.value, is_there).await
            }
        }
    }

    async fn waited_for(&self) -> Result<(), String> {
        let (servers, longest) = match &self.way {
            Way::Update { update, zone } if update.wait_for.is_empty() => {
                (update::servers_of(update.server, zone).await?, update.wait)
            }
            Way::Update { update, .. } => (wait::alone(&update.wait_for), update.wait),
            Way::Program(program) => (wait::alone(&program.wait_for), program.wait),
        };
        wait::until_all_have(&servers, &self.name, &self.value, longest).await
    }
}

impl Drop for InZone {
    fn drop(&mut self) {
        let (Some(record), Ok(runtime)) = (self.record.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let putting = self.putting.take();
        drop(runtime.spawn(async move {
            if let Some(putting) = putting {
                let _ = putting.await;
            }
            match record.set(false).await {
                Ok(()) => tracing::debug!(record = record.name, "record taken out of its zone"),
                Err(reason) => {
                    tracing::warn!(
                        record = record.name,
                        reason,
                        "a record could not be taken out of its zone"
                    );
                }
            }
        }));
    }
}
