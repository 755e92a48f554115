//! The watch before servers that say what they are told to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use weir_balance::Role;
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::outcome::{EofPacket, OK, OkPacket};
use weir_mysql::packet::{HEADER_BYTES, PacketHeader, write_packet_with};
use weir_mysql::topology::MOST_MEMBERS;
use weir_mysql::value::{write_integer, write_string};
use weir_state::{Pool, Snapshot};

use super::RosterChange;
use super::client::tests::greeting_of_server;
use super::watch::Watch;
use crate::events::{Bus, What};
use crate::health::Board;
use crate::lock;
use crate::publish::InForce;

/// A server of a group. It is gone once this is dropped.
struct Server {
    address: SocketAddr,
    /// Rows of its answers.
    says: Arc<Mutex<Vec<[String; 7]>>>,
    _serving: JoinSet<()>,
}

impl Server {
    async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, says) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<_>>>::default());
        let (mut serving, rows) = (JoinSet::new(), says.clone());
        serving.spawn(async move {
            // Dropped with the task, so that its connections end, too.
            let mut conversations = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                conversations.spawn(converse(stream, rows.clone()));
            }
        });
        Server { address, says, _serving: serving }
    }

    /// Has it say that it is `own`, and that `primary` is the primary of `members`.
    fn says(&self, own: &str, primary: &str, members: &[(&str, u16)]) {
        let read_only = if own == primary { "0" } else { "1" };
        let row = |(member, port): &(&str, u16)| {
            let role = if *member == primary { "PRIMARY" } else { "SECONDARY" };
            [own, read_only, member, "127.0.0.1", &port.to_string(), "ONLINE", role].map(str::to_owned)
        };
        *lock(&self.says) = members.iter().map(row).collect();
    }
}

async fn converse(mut stream: TcpStream, rows: Arc<Mutex<Vec<[String; 7]>>>) {
    let greeting = greeting_of_server();
    let mut out = Vec::new();
    write_packet_with(&mut out, 0, |out| greeting.write(out));
    let mut sequence = 2;
    loop {
        if stream.write_all(&out).await.is_err() {
            return;
        }
        let mut head = [0; HEADER_BYTES];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let mut asked = vec![0; PacketHeader::parse(head).payload_bytes as usize];
        if stream.read_exact(&mut asked).await.is_err() {
            return;
        }
        out.clear();
        if sequence == 2 {
            let ok = OkPacket::of(StatusFlags::AUTOCOMMIT);
            write_packet_with(&mut out, sequence, |out| ok.write(out, OK, Capabilities::NONE));
            sequence = 1;
            continue;
        }
        let rows = lock(&rows).clone();
        write_answer(&mut out, &rows);
    }
}

fn write_answer(out: &mut Vec<u8>, rows: &[[String; 7]]) {
    let end = EofPacket { warnings: 0, status: StatusFlags::AUTOCOMMIT };
    let mut sequence = write_packet_with(out, 1, |out| write_integer(out, 7));
    for _ in 0..7 {
        sequence = write_packet_with(out, sequence, |out| out.extend_from_slice(b"not looked at"));
    }
    sequence = write_packet_with(out, sequence, |out| end.write(out));
    for row in rows {
        sequence = write_packet_with(out, sequence, |out| {
            row.iter().for_each(|value| write_string(out, value.as_bytes()));
        });
    }
    write_packet_with(out, sequence, |out| end.write(out));
}

/// What is watched, by whom, and what it tells.
struct Scene {
    pool: Arc<Pool>,
    bus: Arc<Bus>,
    board: Arc<Board>,
    watch: Watch,
    roster: tokio::sync::mpsc::UnboundedReceiver<RosterChange>,
}

/// Watches these servers, with `more` in `[pool.db.mysql]`.
fn watch(servers: &[&Server], more: &str) -> Scene {
    let backends: Vec<String> = servers.iter().map(|server| format!("'{}'", server.address)).collect();
    let text = format!(
        "[listener.db]\nprotocol = 'mysql'\nbind = '127.0.0.1:1'\npool = 'db'\n[pool.db]\nbackends = [{}]\n[pool.db.mysql]\nuser = 'weir'\n{more}",
        backends.join(", ")
    );
    let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    let snapshot = Snapshot::compile(Arc::new(config), &Default::default(), None, 1);
    let pool = snapshot.pools[0].clone();
    let (bus, in_force) = (Arc::new(Bus::default()), InForce::of(snapshot));
    let board =
        Arc::new(Board::new(bus.clone(), in_force.clone(), tokio::sync::mpsc::unbounded_channel().0).0);
    let (watch, roster) = Watch::new(bus.clone(), in_force.clone(), board.clone());
    watch.follow(&in_force.snapshot().unwrap());
    Scene { pool, bus, board, watch, roster }
}

/// Waits until `is_so`, but not for ever.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Scene {
    fn roles(&self) -> Vec<Option<Role>> {
        self.pool.balance.status().iter().map(|backend| backend.role).collect()
    }

    fn events(&self) -> Vec<&'static str> {
        self.bus.latest(100).iter().rev().map(|event| event.what.name()).collect()
    }
}

const PRIMARY: Option<Role> = Some(Role::Primary);
const SECONDARY: Option<Role> = Some(Role::Secondary);

/// A group of two, whose first member is the primary, and what it says who is in it.
async fn primary_and_secondary() -> (Server, Server, [(&'static str, u16); 2]) {
    let (one, other) = (Server::start().await, Server::start().await);
    let members = [("a", one.address.port()), ("b", other.address.port())];
    one.says("a", "a", &members);
    other.says("b", "a", &members);
    (one, other, members)
}

#[tokio::test]
async fn a_primary_that_is_gone_loses_its_role_and_the_next_one_leaves_a_receipt() {
    let (one, other, members) = primary_and_secondary().await;
    let scene = watch(&[&one, &other], "");
    until("roles", || scene.roles() == [PRIMARY, SECONDARY]).await;
    drop(one);
    until("no primary", || scene.roles() == [None, SECONDARY]).await;
    let seen = scene.watch.seen("db").unwrap();
    until("a reason", || seen.status().no_primary.as_deref() == Some("the primary does not answer")).await;
    other.says("b", "b", &members[1..]);
    until("the next", || scene.roles() == [None, PRIMARY]).await;
    until("a receipt", || !seen.status().failovers.is_empty()).await;
    let status = seen.status();
    assert_eq!(status.primary.as_deref(), Some(&*scene.pool.backends[1].address));
    assert_eq!((status.primary_changes, status.failovers[0].to.as_str()), (1, &*status.primary.unwrap()));
    assert_eq!(status.failovers[0].reason, "the primary does not answer");
    until("it is told", || scene.events().last() == Some(&"failover")).await;
    let facts = scene.pool.backends[1].server.load_full().unwrap();
    assert_eq!((&*facts.version, facts.uuid.as_deref()), (&b"9.7.4"[..], Some("b")));
}

/// It was noticed when another snapshot came, and until then nobody took the place of a primary that was
/// gone.
#[tokio::test]
async fn a_watch_that_ended_by_a_panic_goes_on_without_another_snapshot() {
    let (one, other, members) = primary_and_secondary().await;
    let scene = watch(&[&one, &other], "");
    until("roles", || scene.roles() == [PRIMARY, SECONDARY]).await;
    let seen = scene.watch.seen("db").unwrap();
    let before = crate::tasks::panics();
    seen.goes_wrong.store(true, std::sync::atomic::Ordering::Relaxed);
    until("the panic", || crate::tasks::panics() > before).await;
    drop(one);
    other.says("b", "b", &members[1..]);
    until("the next", || scene.roles() == [None, PRIMARY]).await;
    let primary = || scene.watch.seen("db").and_then(|seen| seen.status().primary);
    until("it is shown", || primary().as_deref() == Some(&*scene.pool.backends[1].address)).await;
}

#[tokio::test]
async fn who_finds_that_a_server_is_not_what_it_was_has_all_of_them_asked_at_once() {
    let (one, other, members) = primary_and_secondary().await;
    let scene = watch(&[&one, &other], "interval = '1h'\n");
    until("roles", || scene.roles() == [PRIMARY, SECONDARY]).await;
    one.says("a", "b", &members);
    other.says("b", "b", &members);
    scene.pool.nudge.ask();
    until("the roles change places", || scene.roles() == [SECONDARY, PRIMARY]).await;
    // The watch has a thread of its own, and tells of roles behind giving them.
    let told = || scene.events().iter().filter(|name| **name == "role").count();
    until("two at the start are told, and two", || told() == 4).await;
}

#[tokio::test]
async fn a_member_that_no_config_names_is_asked_to_join_once() {
    let one = Server::start().await;
    one.says("a", "a", &[("a", one.address.port()), ("b", 3307)]);
    let mut scene = watch(&[&one], "");
    let change = tokio::time::timeout(Duration::from_secs(20), scene.roster.recv()).await.unwrap();
    let join = RosterChange::Join { pool: "db".to_owned(), address: "127.0.0.1:3307".to_owned() };
    assert_eq!(change, Some(join));
    assert!(scene.roster.try_recv().is_err());
}

#[tokio::test]
async fn a_group_of_more_members_than_there_can_be_is_not_believed() {
    let one = Server::start().await;
    let names: Vec<String> = (0..=MOST_MEMBERS).map(|number| format!("m{number}")).collect();
    let members: Vec<(&str, u16)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    one.says("m0", "m0", &members);
    let scene = watch(&[&one], "");
    let answers = || scene.watch.seen("db").map(|seen| seen.status().members[0].error.clone());
    until("it is refused", || answers().as_deref() == Some("answered something else than was asked")).await;
    assert_eq!(scene.roles(), [None]);
}

#[tokio::test]
async fn the_probe_of_a_watched_member_is_the_watchs_answer_and_no_login() {
    // Nobody accepts here: a probe of its own would get no answer.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    mute.set_nonblocking(true).unwrap();
    let server =
        Server { address: mute.local_addr().unwrap(), says: Arc::default(), _serving: JoinSet::new() };
    let scene = watch(&[&server], "topology = 'static'\n");
    let backend = &scene.pool.backends[0];
    scene.board.add(&scene.pool, backend);
    scene.board.vouch(backend, weir_io::clock::now() + Duration::from_secs(60), true);
    until("a good probe", || scene.board.findings(&scene.pool, backend).good_count > 0).await;
    let findings = scene.board.findings(&scene.pool, backend);
    assert_eq!(findings.history[0].detail, "answers the watch of its cluster");
    assert_eq!(mute.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody connected");
    let told = scene.bus.latest(10);
    assert!(!told.iter().any(|event| matches!(event.what, What::Health { .. })), "{told:?}");
}
