//! The primary of a real cluster goes, in three ways, and Weir finds the next; one of a pair falls silent.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable as _;
use serde_json::Value;
use weir_tests::dialogue::{Setup, Signal, Weir, until_within};
use weir_tests::mysql::{Asked, Pair, query};

use super::client;
use super::cluster::{Cluster, PASSWORD, connect, write_anew_until_taken, write_until_taken};

/// Two seeds: the third member is to be found.
const CONFIG: &str = r#"
[listener.db]
protocol = "mysql"
bind = "@db"
access = "read-write"
pool = "cluster"
[pool.cluster]
backends = ["@one", "@two"]
[pool.cluster.mysql]
user = "lab"
password_file = "@password"
park = "30s"
"#;

/// From the first write that a server takes to the first that Weir gets there. A hundred times what it needs:
/// how long that is is for the lab to say, and here other tests share the machine.
const BOUND: Duration = Duration::from_secs(20);
/// For a member to join, or a group to elect its primary: after a crash the group itself takes 5 to 7 s.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_primary_of_a_cluster_is_followed_when_it_hands_over_crashes_and_shuts_down() {
    let cluster = Cluster::bring_up();
    let password = OwnFile::of("mysql-password", PASSWORD);
    let mut weir = Setup::of(CONFIG)
        .with("one", cluster.members[0].address)
        .with("two", cluster.members[1].address)
        .with("password", password.0.display())
        .start();
    let third = cluster.members[2].address.to_string();
    has_found(&weir, &third);
    weir.reloads(&CONFIG.replace("30s", "31s"));
    assert_eq!(found(&weir).as_deref(), Some(&*third), "after a reload");
    upgrade(&weir);
    assert_eq!(found(&weir).as_deref(), Some(&*third), "after an upgrade");

    let first = primary(&weir);
    let mut administrator = connect(cluster.at(&first).address).unwrap();
    administrator.query_drop("CREATE DATABASE weir").unwrap();
    administrator.query_drop("CREATE TABLE weir.writes (id INT AUTO_INCREMENT PRIMARY KEY)").unwrap();
    let next = cluster.members.iter().find(|member| member.address.to_string() != first).unwrap();
    let hand_over = format!("SELECT group_replication_set_as_primary('{}')", next.uuid());

    let handed_over = failover("handed over", &cluster, &weir, || {
        administrator.query_drop(&hand_over).unwrap();
    });
    let crashed = failover("kill -9", &cluster, &weir, || cluster.at(&handed_over).gets(Signal::KILL));
    failover("SIGTERM", &cluster, &weir, || cluster.at(&crashed).gets(Signal::TERM));
    assert_eq!(weir.metric("weir_mysql_primary_changes_total", &[("pool", "cluster")]), 3.0);
}

/// What was written to a group that a member has begun by itself, the cluster never gets. The member took all
/// writes as soon as the primary was late for a moment, and kept them.
#[test]
fn a_member_that_begins_a_group_of_its_own_gets_nothing_while_the_cluster_goes_on() {
    let cluster = Cluster::bring_up();
    let password = OwnFile::of("mysql-own-group", PASSWORD);
    let weir = Setup::of(&CONFIG.replace("\"@two\"", "\"@two\", \"@three\""))
        .with("one", cluster.members[0].address)
        .with("two", cluster.members[1].address)
        .with("three", cluster.members[2].address)
        .with("password", password.0.display())
        .start();
    let first = primary(&weir);
    let stranger = cluster.members.iter().find(|member| member.address.to_string() != first).unwrap();
    let mut administrator = connect(stranger.address).unwrap();
    administrator.query_drop("STOP GROUP_REPLICATION").unwrap();
    administrator.query_drop("SET GLOBAL group_replication_bootstrap_group = ON").unwrap();
    administrator.query_drop("START GROUP_REPLICATION").unwrap();
    until_within(LONG, "it takes writes", || {
        let read_only: Option<u8> = administrator.query_first("SELECT @@super_read_only").unwrap();
        (read_only == Some(0)).then_some(())
    });
    let own_view = |key: &str| {
        let members = seen(&weir)["members"].as_array().cloned().unwrap_or_default();
        let own = members.into_iter().find(|it| it["address"] == stranger.address.to_string());
        own.and_then(|it| it[key].as_str().map(str::to_owned))
    };
    until_within(LONG, "it is known for what it is", || {
        (own_view("state").as_deref() == Some("of another group")).then_some(())
    });
    assert_eq!((primary(&weir), own_view("role")), (first.clone(), None));

    cluster.at(&first).gets(Signal::STOP);
    until_within(LONG, "the primary is missed", || seen(&weir)["no_primary"].as_str().map(str::to_owned));
    assert_eq!(own_view("role"), None);
    cluster.at(&first).gets(Signal::CONT);
    assert_eq!(primary(&weir), first, "it is back");
    let mut client = connect(weir.address("db")).unwrap();
    let uuid: Option<String> = client.query_first("SELECT @@server_uuid").unwrap();
    assert_eq!(uuid, Some(cluster.at(&first).uuid()));
    let said = weir.stderr();
    assert!(said.contains("cluster: has begun a group of its own"), "{said}");
}

/// A pair of which the primary is who is not read-only.
const PAIR: &str = r#"
[listener.db]
protocol = "mysql"
bind = "@db"
access = "read-write"
pool = "pair"
[pool.pair]
backends = ["@primary", "@replica"]
[pool.pair.mysql]
topology = "replication"
user = "weir"
password_file = "@password"
"#;

#[test]
fn who_waits_for_a_primary_that_has_fallen_silent_is_held_no_longer_once_there_is_another() {
    let pair = Pair::start("silent");
    let mut root = pair.primary.root();
    root.does("CREATE USER weir@'%' IDENTIFIED BY 'weir'");
    root.does("CREATE TABLE shop.silent (id INT PRIMARY KEY)");
    pair.replica.has_all_of(&pair.primary);
    let password = OwnFile::of("mysql-silent", "weir");
    let weir = Setup::of(PAIR)
        .with("primary", pair.primary.address)
        .with("replica", pair.replica.address)
        .with("password", password.0.display())
        .start();
    assert_eq!(primary(&weir), pair.primary.address.to_string());
    let [mut reader, mut writer] = [(); 2].map(|()| client(&weir, "db"));
    // Each is to find a connection: one that is opened now waits for its login, and is given up unused.
    reader.does("BEGIN");
    writer.does("BEGIN");
    reader.does("COMMIT");
    writer.does("COMMIT");

    pair.primary.freezes();
    reader.sends(&query("SELECT 7")).unwrap();
    writer.sends(&query("INSERT INTO silent VALUES (1)")).unwrap();
    // Else a busy Weir may not have heard of them before there is another primary.
    let silent = pair.primary.address.to_string();
    weir.reaches("weir_backend_in_flight", &[("backend", &silent)], 2.0);
    let mut root = pair.replica.root();
    root.does("SET GLOBAL super_read_only = OFF");
    root.does("SET GLOBAL read_only = OFF");

    assert_eq!(reader.receives(Asked::Results).unwrap().value(), "7", "it runs again elsewhere");
    // Nobody knows what became of it, and that is how a server says so. Silence would be another error.
    let lost = writer.receives(Asked::Results).unwrap_err().kind();
    assert!(matches!(lost, ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof), "{lost}");
    client(&weir, "db").does("INSERT INTO silent VALUES (2)");
    assert_eq!(root.does("SELECT id FROM shop.silent").rows(), [["2"]]);
}

/// Has the primary go, and gives the address of the next. Prints how long after the database Weir was.
fn failover(how: &str, cluster: &Cluster, weir: &Weir, goes: impl FnOnce()) -> String {
    let (old, listener, before) = (primary(weir), weir.address("db"), receipts(weir).len());
    let uuid = cluster.at(&old).uuid();
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let (direct, through) = std::thread::scope(|scope| {
        let (uuid, over) = (&*uuid, &over);
        let others = cluster.members.iter().filter(|member| member.address.to_string() != old);
        let direct: Vec<_> =
            others.map(|member| scope.spawn(move || write_until_taken(member.address, over))).collect();
        let through = scope.spawn(move || write_anew_until_taken(listener, uuid));
        goes();
        let direct = direct.into_iter().filter_map(|thread| thread.join().unwrap()).min();
        (direct.expect("a server takes writes again"), through.join().unwrap().expect("Weir does, too"))
    });
    let receipt = until_within(LONG, "a receipt", || receipts(weir).into_iter().rev().nth(before));
    let after = through.at.saturating_duration_since(direct.at);
    println!(
        "{how}: the database took writes after {:.3} s (unix {} ms), Weir {:.3} s later; {receipt}",
        (direct.at - begun).as_secs_f64(),
        direct.unix_ms,
        after.as_secs_f64()
    );
    assert_eq!(direct.uuid, through.uuid, "the same server");
    assert!(after < BOUND, "{how}: {after:?} after the database");
    let now = primary(weir);
    assert_eq!((receipt["from"].as_str(), receipt["to"].as_str()), (Some(&*old), Some(&*now)));
    now
}

/// What `/v1/status` says of the cluster.
fn seen(weir: &Weir) -> Value {
    weir.admin().reads("/v1/status").json()["pools"][0]["cluster"].clone()
}

fn receipts(weir: &Weir) -> Vec<Value> {
    seen(weir)["failovers"].as_array().cloned().unwrap_or_default()
}

fn primary(weir: &Weir) -> String {
    until_within(LONG, "a primary", || seen(weir)["primary"].as_str().map(str::to_owned))
}

/// The backend that no config names and that has a role.
fn found(weir: &Weir) -> Option<String> {
    let status = weir.admin().reads("/v1/status").json();
    let backends = status["pools"][0]["backends"].as_array()?;
    let found = backends.iter().find(|backend| backend["found"] == true && backend["role"].is_string())?;
    found["address"].as_str().map(str::to_owned)
}

fn has_found(weir: &Weir, address: &str) {
    let joined = until_within(LONG, "the third member joins", || found(weir));
    assert_eq!(joined, address);
}

/// Has a new process take over.
fn upgrade(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(LONG, "a new process serves", || {
        let pid = weir.admin().tries_to_read("/v1/status")?.json()["pid"].as_u64()?;
        (pid != u64::from(old)).then_some(())
    });
}

/// A file that nobody else may read; removed when dropped.
pub struct OwnFile(pub PathBuf);

impl OwnFile {
    pub fn of(name: &str, content: &str) -> OwnFile {
        let path = std::env::temp_dir().join(format!("weir-e2e-{}-{name}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(content.as_bytes())).expect("a file of our own");
        OwnFile(path)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
