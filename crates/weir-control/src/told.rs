//! Which listeners have told their clients that they speak HTTP/3 (`alt-svc`), carried over an upgrade.
//! Clients remember that for a day; a listener that no longer speaks it has to tell them to forget it,
//! whichever process told them.
//!
//! There is one line of text for each listener: `told-h3 LISTENER`.

use weir_state::Snapshot;

/// The first word of each line.
const WORD: &str = "told-h3";
/// Most listeners that are taken over.
const MOST: usize = 65_536;

/// The lines for `snapshot`, each with its line end.
pub fn lines(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let told = snapshot.listeners.iter().filter(|listener| listener.has_told_h3());
    told.map(|listener| format!("{WORD} {}\n", listener.config.name))
}

/// The listeners that have told their clients in the process before.
#[derive(Debug, Default)]
pub struct ToldListeners(Vec<String>);

impl ToldListeners {
    /// Parses a line; any other is ignored.
    pub fn take(&mut self, line: &str) {
        if let Some((WORD, listener)) = line.split_once(' ')
            && self.0.len() < MOST
        {
            self.0.push(listener.trim_end().to_owned());
        }
    }

    /// Tells the listeners of a snapshot that is not served yet.
    pub fn apply(&self, snapshot: &Snapshot) {
        let told = snapshot.listeners.iter().filter(|listener| self.0.contains(&listener.config.name));
        told.for_each(|listener| listener.note_told_h3());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn snapshot() -> Snapshot {
        let text = "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[listener.other]\nbind = '127.0.0.1:81'\npool = 'app'\n\
                    [pool.app]\nbackends = ['127.0.0.1:82']\n";
        let config = weir_config::parse("weir.toml", text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 1)
    }

    #[test]
    fn what_a_listener_has_told_is_known_to_the_next_process() {
        let old = snapshot();
        old.listeners[1].note_told_h3();
        let lines: Vec<String> = lines(&old).collect();
        assert_eq!(lines, ["told-h3 other\n"]);
        let mut told = ToldListeners::default();
        for line in ["told-h3 gone", "told-h3", "state app 127.0.0.1:82"].into_iter().chain(["told-h3 other"])
        {
            told.take(line);
        }
        let new = snapshot();
        told.apply(&new);
        let has_told: Vec<bool> = new.listeners.iter().map(|listener| listener.has_told_h3()).collect();
        assert_eq!(has_told, [false, true]);
    }
}
