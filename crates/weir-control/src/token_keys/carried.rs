//! Fetched keys that an upgrade carries to the new process: `token-key JSON`, one line for each key, with its
//! source and the time since it was last confirmed. So tokens are still accepted if a provider is unavailable
//! at that time.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_config::KeySet;
use weir_state::Snapshot;

/// The first word of each line, with the space after it.
const WORD: &str = "token-key ";

/// Most keys that are taken over, for all sets.
const MOST: usize = 20_000;

/// A key to be carried.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    url: String,
    ca: Option<String>,
    age_ms: u64,
    key: serde_json::Value,
}

/// The lines for every valid key, each with its line end.
pub fn lines(snapshot: &Snapshot, now: Duration) -> Vec<String> {
    let mut lines = Vec::new();
    for set in snapshot.token_keys.iter().flat_map(|keys| keys.all()) {
        let Some(held) = set.good(now) else { continue };
        for text in &held.set.texts {
            let Ok(key) = serde_json::from_str(text) else { continue };
            let line = Line {
                url: set.config.url.clone(),
                ca: set.config.ca.as_ref().map(|ca| ca.display().to_string()),
                age_ms: u64::try_from(held.age(now).as_millis()).unwrap_or(u64::MAX),
                key,
            };
            lines.extend(serde_json::to_string(&line).map(|line| format!("{WORD}{line}\n")));
        }
    }
    lines
}

/// What the previous process had fetched.
#[derive(Debug, Default)]
pub struct Inherited(Vec<Line>);

impl Inherited {
    /// Parses a line; one that can't be understood is ignored.
    pub fn take(&mut self, line: &str) {
        if let Some(json) = line.strip_prefix(WORD)
            && self.0.len() < MOST
        {
            self.0.extend(serde_json::from_str::<Line>(json));
        }
    }

    /// Gives the sets of a snapshot that is not served yet the keys from the same source.
    pub fn apply(&self, snapshot: &Snapshot, now: Duration) {
        for set in snapshot.token_keys.iter().flat_map(|keys| keys.all()) {
            let ca = set.config.ca.as_ref().map(|ca| ca.display().to_string());
            let own = || self.0.iter().filter(|line| line.url == set.config.url && line.ca == ca);
            // Of two sets from the same source the more recent one counts: each is complete.
            let Some(age_ms) = own().map(|line| line.age_ms).min() else { continue };
            let mut texts: Vec<String> = Vec::new();
            for text in own().filter(|line| line.age_ms == age_ms).map(|line| line.key.to_string()) {
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            match KeySet::of_texts(texts.iter().map(String::as_str)) {
                Ok(keys) => {
                    tracing::info!(
                        source = set.config.shown(),
                        keys = keys.keys.len(),
                        "keys for tokens taken over"
                    );
                    set.inherit(keys, Duration::from_millis(age_ms), now);
                }
                Err(error) => {
                    tracing::warn!(source = set.config.shown(), error, "keys for tokens not taken over")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn snapshot(more: &str) -> Snapshot {
        let text = format!(
            "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[listener.web.auth.jwt]\naudience = 'a'\nkeys = \
             'https://login.example/jwks?a=b'\n{more}\n[pool.app]\nbackends = ['10.0.0.1:80']\n"
        );
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 1)
    }

    #[test]
    fn keys_arrive_at_the_new_process_with_their_age_and_only_where_they_came_from() {
        const KEY: &str = r#"{"crv":"Ed25519","kid":"a b\n\u2028\"","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
        let seconds = Duration::from_secs;
        let old = snapshot("");
        let keys = KeySet::of_texts([KEY, &KEY.replace("a b", "c")]).unwrap();
        old.token_keys.as_ref().unwrap().all()[0].take_over(keys.clone(), seconds(100));
        let mut inherited = Inherited::default();
        for line in lines(&old, seconds(130)) {
            assert!(line.ends_with('\n') && line.lines().count() == 1, "{line}");
            inherited.take(line.trim_end());
        }
        inherited.take("token-key {");
        let new = snapshot("stale = '60s'");
        inherited.apply(&new, seconds(5));
        let set = &new.token_keys.as_ref().unwrap().all()[0];
        assert_eq!(set.held().unwrap().set.keys, keys.keys);
        assert!(set.good(seconds(35)).is_some() && set.good(seconds(36)).is_none());
        let others = snapshot("ca = 'own.pem'");
        inherited.apply(&others, seconds(5));
        assert!(others.token_keys.as_ref().unwrap().all()[0].held().is_none());
        assert!(lines(&old, seconds(100_000)).is_empty(), "what is stale is worth nothing");
    }
}
