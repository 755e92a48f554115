//! What a MySQL server said in its greeting, for greeting clients on its behalf.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::pool::Backend;

/// Wakes those who wait for facts about some server. One for all servers, because facts change seldom.
static LEARNT: Notify = Notify::const_new();

/// Facts that a server stated about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// Its version, as in its greeting.
    pub version: Box<[u8]>,
    /// What it can do: the capability flags of its greeting, MariaDB's extended ones above the lower 32 bits.
    pub capabilities: u64,
    /// `server_uuid`; `None` until it was asked for, and if the server has none.
    pub uuid: Option<Box<str>>,
}

impl Backend {
    /// Stores what this backend's server said. A login that did not ask for the uuid keeps the known one,
    /// unless the server's other facts have changed. Returns whether anything changed.
    pub fn learn(&self, mut facts: ServerFacts) -> bool {
        if let Some(known) = &*self.server.load() {
            let is_same = known.version == facts.version && known.capabilities == facts.capabilities;
            if facts.uuid.is_none() && is_same {
                facts.uuid.clone_from(&known.uuid);
            }
            if **known == facts {
                return false;
            }
        }
        self.server.store(Some(Arc::new(facts)));
        LEARNT.notify_waiters();
        true
    }

    /// Waits until something is learnt about some server: from now on, even before it is first polled.
    pub fn learns() -> impl Future<Output = ()> {
        let mut learnt = Box::pin(LEARNT.notified());
        learnt.as_mut().enable();
        learnt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, uuid: Option<&str>) -> ServerFacts {
        ServerFacts { version: version.as_bytes().into(), capabilities: 7, uuid: uuid.map(Into::into) }
    }

    #[test]
    fn who_waits_for_facts_hears_of_what_is_learnt_before_it_looks() {
        let config = weir_config::Backend {
            address: "10.0.0.1:3306".to_owned(),
            weight: 1,
            ..weir_config::Backend::default()
        };
        let backend = Backend::new(&config, None, None, 1);
        let learns = Backend::learns();
        backend.learn(facts("9.7.4", None));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::pin!(learns).poll(&mut context).is_ready());
    }

    #[test]
    fn a_login_that_asked_for_no_uuid_keeps_that_of_the_same_server() {
        let config = weir_config::Backend {
            address: "10.0.0.1:3306".to_owned(),
            weight: 1,
            ..weir_config::Backend::default()
        };
        let backend = Backend::new(&config, None, None, 1);
        assert!(backend.learn(facts("9.7.4", None)) && backend.learn(facts("9.7.4", Some("a"))));
        assert!(!backend.learn(facts("9.7.4", None)), "no news");
        assert_eq!(backend.server.load().as_deref(), Some(&facts("9.7.4", Some("a"))));
        assert!(backend.learn(facts("8.4.0", None)), "another server");
        assert_eq!(backend.server.load().as_deref(), Some(&facts("8.4.0", None)));
    }
}
