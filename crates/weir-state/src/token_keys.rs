//! Fetched public keys for signed tokens: the keys at hand, and how a request asks for another fetch.
//!
//! Keys lie in an `ArcSwap`, so that new ones take effect for all workers at once, and a token is checked
//! against one whole set. The control side fetches; a request only asks for a fetch, and may wait for its
//! end. However many requests ask, there is one fetch, and none begins sooner than `early_refresh` after the
//! previous one began. One client gets only a share of the places to wait, so that others find one.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use weir_config::{Config, FetchedKeys, KeySet};

use crate::listener::{Counted, OpenBy};
use crate::nudge::Nudge;

/// All JWK sets that a config fetches.
#[derive(Debug)]
pub struct TokenKeys(Box<[Arc<FetchedSet>]>);

/// One JWK set.
#[derive(Debug)]
pub struct FetchedSet {
    /// The source and the rules.
    pub config: FetchedKeys,
    held: ArcSwapOption<Held>,
    rounds: Mutex<Rounds>,
    nudge: Nudge,
    /// Counts the fetches that have ended; waiters watch it.
    ended: watch::Sender<u64>,
    waiting: AtomicUsize,
    /// How many of the places each client has.
    by_client: Arc<OpenBy<IpAddr>>,
    history: Arc<History>,
}

/// Keys that were fetched.
#[derive(Debug)]
pub struct Held {
    /// The keys.
    pub set: KeySet,
    /// When a fetch last confirmed them, or when they came from another process, by this process's clock.
    pub confirmed: Duration,
    /// Their age at that time.
    pub age_then: Duration,
}

impl Held {
    /// The time since a fetch last confirmed them.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.confirmed) + self.age_then
    }
}

/// The state of fetches.
#[derive(Debug, Default)]
struct Rounds {
    is_under_way: bool,
    /// Whether a fetch was asked for and has not begun.
    is_asked: bool,
    /// When the last fetch began.
    began: Option<Duration>,
    /// Fetching has stopped: another config is in force.
    is_over: bool,
}

/// The results of fetches since the process began; the next snapshot takes them over.
#[derive(Debug, Default)]
struct History {
    fetched: AtomicU64,
    failed: AtomicU64,
    waited: AtomicU64,
    no_place: AtomicU64,
    client_full: AtomicU64,
    too_soon: AtomicU64,
    error: Mutex<Option<String>>,
}

/// Counts since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Fetches that brought keys.
    pub fetched: u64,
    /// Fetches that failed.
    pub failed: u64,
    /// Requests that waited for a fetch.
    pub waited: u64,
    /// Requests that could not wait, because too many were waiting.
    pub no_place: u64,
    /// Requests that could not wait, because too many of the same client were waiting.
    pub client_full: u64,
    /// Requests that asked for a fetch too soon after the previous one.
    pub too_soon: u64,
}

impl TokenKeys {
    /// `None` if `config` fetches no keys. Sets whose config did not change are the same `Arc`s as in
    /// `previous`; others take over the keys of the same source.
    pub fn compile(config: &Config, previous: Option<&TokenKeys>) -> Option<Arc<TokenKeys>> {
        let compile = |config: FetchedKeys| {
            let old = previous.map_or(&[][..], |old| &old.0);
            if let Some(same) = old.iter().find(|old| old.config == config) {
                return same.clone();
            }
            let old = old.iter().find(|old| old.config.is_same_place(&config));
            Arc::new(FetchedSet::new(config, old))
        };
        let all: Box<[_]> = config.fetched_keys().into_iter().map(compile).collect();
        (!all.is_empty()).then(|| Arc::new(TokenKeys(all)))
    }

    /// All sets, in the order of the config.
    pub fn all(&self) -> &[Arc<FetchedSet>] {
        &self.0
    }

    /// The set with this config.
    pub fn find(&self, config: &FetchedKeys) -> Option<&Arc<FetchedSet>> {
        self.0.iter().find(|set| set.config == *config)
    }
}

impl FetchedSet {
    fn new(config: FetchedKeys, old: Option<&Arc<FetchedSet>>) -> FetchedSet {
        FetchedSet {
            config,
            held: ArcSwapOption::new(old.and_then(|old| old.held.load_full())),
            rounds: Mutex::default(),
            nudge: Nudge::default(),
            ended: watch::Sender::new(0),
            waiting: AtomicUsize::new(0),
            by_client: Arc::default(),
            history: old.map(|old| old.history.clone()).unwrap_or_default(),
        }
    }

    /// The keys that are valid at `now`; `None` before the first fetch, and when they are older than `stale`.
    #[inline]
    pub fn good(&self, now: Duration) -> Option<Arc<Held>> {
        self.held().filter(|held| held.age(now) <= self.config.stale)
    }

    /// The keys that were fetched last, however old they are.
    pub fn held(&self) -> Option<Arc<Held>> {
        self.held.load_full()
    }

    /// Asks for a fetch on behalf of a request that needs other keys, and for a place to wait for its end. A
    /// fetch in progress will do. `client` is the client whose share of the places is used, as from
    /// [`weir_screen::address_key`]; `None` if unknown.
    pub fn ask(self: &Arc<Self>, client: Option<IpAddr>, now: Duration) -> Result<Waiting, NoWait> {
        // Subscribe before asking: the fetch may end at once.
        let ended = self.ended.subscribe();
        if !self.is_coming(now) {
            self.history.too_soon.fetch_add(1, Ordering::Relaxed);
            return Err(NoWait::TooSoon);
        }
        let of_client = match client {
            None => None,
            Some(client) => match Counted::of(&self.by_client, client, self.config.waiting_of_client()) {
                Some(counted) => Some(counted),
                None => {
                    self.history.client_full.fetch_add(1, Ordering::Relaxed);
                    return Err(NoWait::ClientFull);
                }
            },
        };
        let most = self.config.waiting as usize;
        let place = |waiting: usize| (waiting < most).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place) {
            Ok(_) => {
                self.history.waited.fetch_add(1, Ordering::Relaxed);
                Ok(Waiting { set: self.clone(), ended, _of_client: of_client })
            }
            Err(_) => {
                self.history.no_place.fetch_add(1, Ordering::Relaxed);
                Err(NoWait::Full)
            }
        }
    }

    /// Whether a fetch is in progress, or now begins for this request.
    fn is_coming(&self, now: Duration) -> bool {
        let mut rounds = self.rounds();
        if rounds.is_under_way || rounds.is_asked {
            return true;
        }
        let is_early = rounds.began.is_some_and(|began| now < began + self.config.early_refresh);
        if rounds.is_over || is_early {
            return false;
        }
        rounds.is_asked = true;
        self.nudge.ask();
        true
    }

    /// Asks for a fetch now. If one is in progress its answer may be outdated, so another follows it.
    pub fn hasten(&self) {
        let mut rounds = self.rounds();
        if !rounds.is_over {
            rounds.is_asked = true;
            self.nudge.ask();
        }
    }

    /// Waits until a fetch is wanted. For the task that fetches.
    pub async fn asked(&self) {
        while !self.rounds().is_asked {
            self.nudge.asked().await;
        }
    }

    /// Records that a fetch begins; dropping the result ends it.
    pub fn begin(self: &Arc<Self>, now: Duration) -> UnderWay {
        let mut rounds = self.rounds();
        (rounds.is_under_way, rounds.is_asked, rounds.began) = (true, false, Some(now));
        UnderWay(self.clone())
    }

    /// Puts fetched keys in force, for all workers from their next token on. Returns whether they differ from
    /// those before.
    pub fn take_over(&self, set: KeySet, now: Duration) -> bool {
        let is_new = self.held().is_none_or(|held| held.set.keys != set.keys);
        self.held.store(Some(Arc::new(Held { set, confirmed: now, age_then: Duration::ZERO })));
        self.history.fetched.fetch_add(1, Ordering::Relaxed);
        self.tell(None);
        is_new
    }

    /// Takes over keys that another process fetched `age` ago.
    pub fn inherit(&self, set: KeySet, age: Duration, now: Duration) {
        self.held.store(Some(Arc::new(Held { set, confirmed: now, age_then: age })));
    }

    /// Records that a fetch failed.
    pub fn fail(&self, error: String) {
        self.history.failed.fetch_add(1, Ordering::Relaxed);
        self.tell(Some(error));
    }

    /// Stops fetching and releases everybody who waits.
    pub fn retire(&self) {
        let mut rounds = self.rounds();
        (rounds.is_over, rounds.is_asked) = (true, false);
        drop(rounds);
        self.ended.send_modify(|count| *count += 1);
    }

    /// Why the last fetch failed; `None` if it succeeded, or there was none.
    pub fn error(&self) -> Option<String> {
        self.history.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        let History { fetched, failed, waited, no_place, client_full, too_soon, .. } = &*self.history;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            fetched: of(fetched),
            failed: of(failed),
            waited: of(waited),
            no_place: of(no_place),
            client_full: of(client_full),
            too_soon: of(too_soon),
        }
    }

    fn tell(&self, error: Option<String>) {
        *self.history.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fetch in progress; it ends when this is dropped.
#[derive(Debug)]
pub struct UnderWay(Arc<FetchedSet>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.rounds().is_under_way = false;
        self.0.ended.send_modify(|count| *count += 1);
    }
}

/// A place to wait for a fetch, given back when dropped.
#[derive(Debug)]
pub struct Waiting {
    set: Arc<FetchedSet>,
    ended: watch::Receiver<u64>,
    _of_client: Option<Counted<IpAddr>>,
}

/// Why a request does not wait for a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWait {
    /// No fetch is in progress, and none may begin so soon after the last, or none begins any more.
    TooSoon,
    /// A fetch is in progress, and as many requests of this client wait for it as may.
    ClientFull,
    /// A fetch is in progress, and as many requests wait for it as may.
    Full,
}

impl Waiting {
    /// Waits until the fetch has ended, whatever it brought.
    pub async fn end(&mut self) {
        // The sender can't be gone: it belongs to the set, which is held here.
        let _ = self.ended.changed().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.set.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const ED25519: &str =
        r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","kid":"KID"}"#;

    fn config(more: &str) -> Config {
        let text = format!(
            "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[listener.web.auth.jwt]\naudience = 'a'\nkeys = \
             'https://login.example/jwks'\n{more}\n[pool.app]\nbackends = ['10.0.0.1:80']\n"
        );
        weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"))
    }

    fn compiled(more: &str, previous: Option<&TokenKeys>) -> Arc<TokenKeys> {
        TokenKeys::compile(&config(more), previous).unwrap()
    }

    fn keys(kid: &str) -> KeySet {
        KeySet::of_texts([&*ED25519.replace("KID", kid)]).unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn is_over(waiting: &mut Waiting) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(pin!(waiting.end()).poll(&mut context), Poll::Ready(()))
    }

    #[test]
    fn however_many_ask_one_fetch_begins_and_none_soon_behind_it() {
        let all = compiled("waiting = 2", None);
        let set = &all.all()[0];
        let mut first = set.ask(None, at(0)).expect("none has begun yet");
        let second = set.ask(None, at(0)).expect("a place");
        assert_eq!(set.ask(None, at(0)).err(), Some(NoWait::Full), "two may wait");
        drop(second);
        let under_way = set.begin(at(1));
        let mut third = set.ask(None, at(1)).expect("the place of the one that has left");
        assert!(!is_over(&mut first) && !is_over(&mut third));
        drop(under_way);
        assert!(is_over(&mut first) && is_over(&mut third));
        drop((first, third));
        assert_eq!(set.ask(None, at(10)).err(), Some(NoWait::TooSoon), "it began nine seconds ago");
        let counts = set.counts();
        assert_eq!((counts.waited, counts.no_place, counts.too_soon), (3, 1, 1));
        assert!(set.ask(None, at(11)).is_ok());
    }

    #[test]
    fn a_quarter_of_the_places_are_for_one_client_and_one_at_least() {
        let client = |number| Some(IpAddr::from([192, 0, 2, number]));
        let all = compiled("waiting = 8", None);
        let set = &all.all()[0];
        let first = set.ask(client(1), at(0)).expect("a place");
        let second = set.ask(client(1), at(0)).expect("another");
        assert_eq!(set.ask(client(1), at(0)).err(), Some(NoWait::ClientFull));
        let others: Vec<Waiting> =
            (2..8).map(|number| set.ask(client(number), at(0)).expect("a place")).collect();
        assert_eq!(set.ask(client(9), at(0)).err(), Some(NoWait::Full));
        drop(second);
        assert!(set.ask(client(1), at(0)).is_ok(), "it came back to both");
        drop((first, others));
        let counts = set.counts();
        assert_eq!((counts.waited, counts.client_full, counts.no_place), (9, 1, 1));
        assert!(set.by_client.lock().unwrap().is_empty());
        for (waiting, most) in [(0, 0), (1, 1), (7, 1), (100, 25)] {
            let all = compiled(&format!("waiting = {waiting}"), None);
            assert_eq!(all.all()[0].config.waiting_of_client(), most);
        }
    }

    /// A fetch in progress may return what was there before the operator asked.
    #[test]
    fn who_asks_for_a_fetch_while_one_is_under_way_gets_another() {
        let all = compiled("", None);
        let set = &all.all()[0];
        let is_asked = || {
            let mut context = Context::from_waker(Waker::noop());
            pin!(set.asked()).poll(&mut context).is_ready()
        };
        let first = set.begin(at(0));
        assert!(!is_asked());
        set.hasten();
        drop(first);
        assert!(is_asked());
        drop(set.begin(at(1)));
        assert!(!is_asked());
    }

    #[test]
    fn keys_hold_until_they_are_stale_and_go_on_in_the_next_config() {
        let all = compiled("stale = '60s'", None);
        let set = &all.all()[0];
        assert!(set.good(at(0)).is_none());
        assert!(set.take_over(keys("a"), at(10)) && !set.take_over(keys("a"), at(10)));
        assert!(set.good(at(70)).is_some() && set.good(at(71)).is_none());
        assert!(set.take_over(keys("b"), at(80)));
        let same = compiled("stale = '60s'", Some(&all));
        assert!(Arc::ptr_eq(&same.all()[0], set));
        let other = compiled("stale = '30s'", Some(&all));
        assert!(other.all()[0].good(at(110)).is_some() && other.all()[0].good(at(111)).is_none());
        assert_eq!(other.all()[0].counts().fetched, 3);
        let believed_by_others = compiled("ca = 'own.pem'", Some(&all));
        assert!(
            believed_by_others.all()[0].held().is_none(),
            "what others say of a provider counts for less"
        );
        set.inherit(keys("c"), at(50), at(5));
        assert!(set.good(at(15)).is_some() && set.good(at(16)).is_none());
    }

    #[test]
    fn nobody_waits_for_a_fetch_that_never_comes() {
        let all = compiled("", None);
        let set = &all.all()[0];
        let mut waiting = set.ask(None, at(0)).unwrap();
        set.retire();
        assert!(is_over(&mut waiting));
        assert_eq!(set.ask(None, at(100)).err(), Some(NoWait::TooSoon));
    }
}
