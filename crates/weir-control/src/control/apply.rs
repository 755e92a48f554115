//! Puts the config file in force, or leaves everything unchanged and says why.

use std::sync::Arc;

use weir_io::clock;
use weir_state::Pool;

use super::{Control, Phase};
use crate::blocking::reading;
use crate::events::What;
use crate::lock;
use crate::reload::{Outcome, ReloadError, ReloadVerdict, Reread, Source};
use crate::this_host;
use crate::timestamp::Timestamp;

impl Control {
    /// Reads the config file and puts it in force, or changes nothing. `trigger` is the origin of the reload:
    /// `signal` or `api`.
    pub async fn reload(&self, trigger: &str) -> Outcome {
        let _turn = self.reloading.lock().await;
        let began = clock::now();
        let done = match self.phase() {
            Phase::Serving => {
                self.notifier.reloading();
                self.read_and_publish().await
            }
            Phase::Draining => Err(ReloadError::Leaving),
        };
        let done = done.unwrap_or_else(|error| Outcome {
            result: error.verdict(),
            error: error.to_string(),
            ..Outcome::default()
        });
        let outcome = Outcome {
            generation: self.snapshot().generation,
            time: Timestamp::now(),
            seconds: (clock::now() - began).as_secs_f64(),
            trigger: trigger.to_owned(),
            ..done
        };
        lock(&self.ledger).note(&outcome);
        let (result, generation) = (outcome.result.word(), outcome.generation);
        if outcome.result.is_good() {
            tracing::info!(trigger, generation, changes = ?outcome.changes, "reload {result}");
            for key in &outcome.needs_restart {
                tracing::warn!(key, "{}", weir_config::how_to_change(key));
            }
        } else {
            tracing::error!(
                trigger,
                generation,
                "reload {result}, the configuration before stays in force:\n{}",
                outcome.error
            );
        }
        self.bus.tell(What::Reload { result, generation, error: outcome.error.clone() });
        if self.phase() == Phase::Serving {
            self.notifier.ready(&self.summary());
        }
        outcome
    }

    /// The result, without what every outcome contains.
    async fn read_and_publish(&self) -> Result<Outcome, ReloadError> {
        if matches!(self.source, Source::Text { .. }) {
            return Err(ReloadError::NoFile);
        }
        // Probes and the admin API go on, however long a disk takes.
        let source = self.source.clone();
        let checked = reading(move || source.read()).await.map_err(ReloadError::Files)?;
        let mut checked = checked.map_err(ReloadError::Read)?;
        // The command line also prevails after a restart, so what the file says is not a change that needs
        // one.
        checked.config.runtime.workers = self.workers.or(checked.config.runtime.workers);
        let mut warnings = checked.warnings.to_string();
        for warning in &checked.warnings.problems {
            tracing::warn!("{warning}");
        }
        for doubt in this_host::short_of_ports(&checked.config) {
            tracing::warn!("{doubt}");
            warnings.push_str(&format!("warning: {doubt}\n"));
        }
        let running = self.snapshot();
        let (config, needs_restart) = weir_config::until_restart(&checked.config, &running.config);
        let config = Arc::new(config);
        let admin_files =
            self.admin_files.clone().map(Reread::read).transpose().map_err(ReloadError::Admin)?;
        // Taken before the files are actually read: if they change in between, the next reload notices.
        let named = config.clone();
        let files = reading(move || weir_tls::fingerprint(&named)).await.map_err(ReloadError::Files)?;
        if self.phase() == Phase::Draining {
            // A disk may have taken its time.
            return Err(ReloadError::Leaving);
        }
        // The log comes first: a path that can't be opened must refuse the reload before anything else has
        // changed.
        self.access_log.reconfigure(&config.log, &config.access_logs).map_err(ReloadError::Log)?;
        let mut changes = Vec::new();
        let are_files_as_before = files.is_some() && files == *lock(&self.files);
        let published = self.publisher.publish(|before| {
            if *before == *config && !self.is_tuned() && are_files_as_before {
                return Ok(None);
            }
            changes = weir_config::diff(before, &config).iter().map(ToString::to_string).collect();
            if *before != *config && changes.is_empty() {
                changes.push("files of error pages have changed".to_owned());
            }
            if *before == *config && !are_files_as_before {
                changes.push("files of certificates, keys, authorities or tokens have changed".to_owned());
            }
            Ok::<_, ReloadError>(Some(config.clone()))
        });
        match published.await {
            Ok(snapshot) => {
                *lock(&self.files) = files;
                if let Some(take_up) = admin_files {
                    take_up();
                }
                if let Some(snapshot) = &snapshot {
                    (self.on_level)(snapshot.config.log.level);
                }
                // An operator who reloads expects an effect, even if it is only to pick up what another
                // process has stored.
                self.orders().hasten();
                self.followers.token_keys.hasten();
                let result =
                    if snapshot.is_some() { ReloadVerdict::Applied } else { ReloadVerdict::Unchanged };
                Ok(Outcome { result, warnings, changes, needs_restart, ..Outcome::default() })
            }
            Err(error) => {
                let (log, access_logs) = (&running.config.log, &running.config.access_logs);
                if let Err(error) = self.access_log.put_back(log, access_logs) {
                    tracing::error!(%error, "the access log could not be put back to its target before");
                }
                Err(error)
            }
        }
    }

    /// Whether weights were changed at run time, so that even an unchanged file has something to restore.
    fn is_tuned(&self) -> bool {
        let snapshot = self.snapshot();
        let tuned = |pool: &Arc<Pool>| {
            let configured = pool.config.backends.iter().map(|backend| backend.weight);
            configured.zip(&pool.backends).any(|(weight, backend)| backend.balance.weight() != weight)
        };
        snapshot.pools.iter().any(tuned)
    }

    /// The last reload.
    pub fn last_reload(&self) -> Option<Outcome> {
        lock(&self.ledger).last.clone()
    }

    /// Number of reloads with this result.
    pub fn reload_count(&self, verdict: ReloadVerdict) -> u64 {
        lock(&self.ledger).count(verdict)
    }
}
