use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex as Lock, PoisonError};
use std::task::{Wake, Waker};

use weir_state::plane::Pending;

use super::*;
use crate::control::ChangeError;
use crate::dns::Moved;
use crate::events::Bus;
use crate::reload::ReloadError;

/// Two pools of two, not probed.
const CONFIG: &str = "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80', '10.0.0.2:80']\nhealth = 'off'\n\
                      [pool.other]\nbackends = ['10.0.1.1:80', '10.0.1.2:80']\nhealth = 'off'\n";

fn config(text: &str) -> Arc<Config> {
    Arc::new(weir_config::parse("weir.toml", text).unwrap_or_else(|report| panic!("{report}")))
}

fn backend(address: &str) -> weir_config::Backend {
    weir_config::Backend { address: address.to_owned(), weight: 1, ..weir_config::Backend::default() }
}

/// What planes did, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Lock<Vec<String>>>);

impl Diary {
    fn note(&self, line: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A plane that notes what it is asked, and fails to do one thing.
struct Noting {
    name: &'static str,
    fails_to: &'static str,
    diary: Diary,
}

impl Noting {
    fn does(&self, what: &str, about: &str) -> io::Result<()> {
        self.diary.note(format!("{} {what} {about}", self.name));
        if format!("{what} {about}") == self.fails_to { Err(io::Error::other("no room")) } else { Ok(()) }
    }
}

impl Plane for Noting {
    fn name(&self) -> &'static str {
        self.name
    }

    fn stage<'p>(&'p self, next: Next<'p>) -> Pending<'p, Result<Box<dyn StagedChange + 'p>, StageError>> {
        Box::pin(async move {
            let about = match next {
                Next::Config(config, _) => format!("config of {}", config.pools.len()),
                Next::Pool(index) => format!("pool {index}"),
            };
            self.does("stages", &about)?;
            Ok(Box::new(NotedChange(self)) as Box<dyn StagedChange>)
        })
    }
}

struct NotedChange<'p>(&'p Noting);

impl StagedChange for NotedChange<'_> {
    fn apply<'s>(&'s mut self, snapshot: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        let done = self.0.does("applies", &snapshot.generation.to_string());
        Box::pin(async move { done })
    }

    fn put_back<'s>(&'s mut self, before: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        let done = self.0.does("puts back", &before.generation.to_string());
        Box::pin(async move { done })
    }
}

/// Serves [`CONFIG`] on three planes, of which the second fails to do one thing.
async fn publisher(fails_to: &'static str) -> (Publisher, Diary) {
    let diary = Diary::default();
    let plane = |name, fails_to| Arc::new(Noting { name, fails_to, diary: diary.clone() }) as Arc<dyn Plane>;
    let planes = vec![plane("a", ""), plane("b", fails_to), plane("c", "")];
    let (bus, in_force) = (Arc::new(Bus::default()), InForce::default());
    let kernel = Arc::new(KernelPlane::new(bus.clone(), tokio::sync::mpsc::unbounded_channel().0, None));
    let board =
        Arc::new(Board::new(bus.clone(), in_force.clone(), tokio::sync::mpsc::unbounded_channel().0).0);
    let followers = Arc::new(Followers {
        token_keys: Fetches::new(Arc::default()),
        names: Names::new(bus.clone(), Arc::new(Moved::default())).0,
        watch: Watch::new(bus.clone(), in_force.clone(), board.clone()).0,
        board,
        orders: Orders::new(bus),
        sharing: Sharing::new(Box::new(|| None), None),
    });
    let carried = Carried::default();
    let planes = Planes { kernel, others: planes };
    let publisher = Publisher::start(planes, 1, config(CONFIG), &carried, followers, in_force).await.unwrap();
    diary.take();
    (publisher, diary)
}

async fn reload(publisher: &Publisher, text: &str) -> Result<Option<Arc<Snapshot>>, ReloadError> {
    let config = config(text);
    publisher.publish(|_| Ok(Some(config))).await
}

async fn add(publisher: &Publisher, pool: usize, address: &str) -> Result<Arc<Snapshot>, ChangeError> {
    publisher.change_pool(|before| Ok(before.with_backend(pool, backend(address)).unwrap())).await
}

#[tokio::test]
async fn every_plane_is_ready_before_the_first_serves_anything_new() {
    let (publisher, diary) = publisher("").await;
    add(&publisher, 1, "10.0.1.3:80").await.unwrap();
    assert_eq!(
        diary.take(),
        [
            "a stages pool 1",
            "b stages pool 1",
            "c stages pool 1",
            "a applies 2",
            "b applies 2",
            "c applies 2"
        ]
    );
    assert_eq!(publisher.snapshot().pools[1].backends.len(), 3);
}

#[tokio::test]
async fn when_one_plane_cannot_get_ready_none_serves_anything_new() {
    let (publisher, diary) = publisher("stages config of 3").await;
    let more = format!("{CONFIG}[pool.third]\nbackends = ['10.0.2.1:80']\n");
    let refused = reload(&publisher, &more).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.to_string(), "no room");
    assert_eq!(diary.take(), ["a stages config of 3", "b stages config of 3"]);
    assert_eq!(publisher.snapshot().generation, 1);
}

#[tokio::test]
async fn when_one_plane_cannot_serve_a_config_all_that_were_asked_serve_the_one_before() {
    let (publisher, diary) = publisher("applies 2").await;
    let of_app = publisher.snapshot().pools[0].clone();
    of_app.balance.set_weight(0, 0).unwrap();
    of_app.refresh(clock::now());
    let refused = reload(&publisher, &CONFIG.replace("10.0.0.2", "10.0.0.9")).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.to_string(), "the b plane did not take the new configuration: no room");
    assert_eq!(diary.take()[3..], ["a applies 2", "b applies 2", "b puts back 1", "a puts back 1"]);
    let now = publisher.snapshot();
    assert_eq!((now.generation, now.pools[0].backends[1].address.as_str()), (1, "10.0.0.2:80"));
    assert_eq!(of_app.balance.members()[0].weight(), 0, "what was set by hand holds again");
    assert_eq!(of_app.balance.eligible().len(), 1);
}

#[tokio::test]
async fn when_one_plane_cannot_change_a_pool_all_that_were_asked_serve_the_one_before() {
    let (publisher, diary) = publisher("applies 2").await;
    let refused = add(&publisher, 0, "new.invalid:80").await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, ChangeError::Publish(PublishError::Apply { plane: "b", .. })), "{refused}");
    assert_eq!(diary.take()[3..], ["a applies 2", "b applies 2", "b puts back 1", "a puts back 1"]);
    assert_eq!(publisher.snapshot().pools[0].backends.len(), 2);
    assert_eq!(publisher.followers.names.count(), 0, "nobody resolves what is not served");
}

#[derive(Default)]
struct Calls(AtomicU32);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn who_waits_for_a_backend_of_another_pool_is_not_called() {
    let (publisher, _) = publisher("").await;
    let (concerned, unconcerned) = (Arc::new(Calls::default()), Arc::new(Calls::default()));
    let snapshot = publisher.snapshot();
    let wait = |pool: usize, calls: &Arc<Calls>| {
        snapshot.pools[pool].queue.enter(None, Waker::from(calls.clone()), 9).expect("room")
    };
    let (_in_line, _in_other_line) = (wait(0, &concerned), wait(1, &unconcerned));
    add(&publisher, 0, "10.0.0.3:80").await.unwrap();
    assert_eq!(concerned.0.load(Ordering::Relaxed), 1);
    assert_eq!(unconcerned.0.load(Ordering::Relaxed), 0);
}
