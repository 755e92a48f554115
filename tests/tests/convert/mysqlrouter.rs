//! MySQL Router and the Weir that its file was converted to, before the same servers: a client sees the same
//! member by each port.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use mysql::prelude::Queryable as _;
use weir_tests::dialogue::{Finished, PATIENCE, Program, Setup, Weir, free_address, run_tool, weir_binary};
use weir_tests::mysql::{Mysqld, words_of};

use crate::mysql::cluster::{ACCOUNT, Cluster, PASSWORD, connect};

/// The lab's own files for Router: an endpoint for each role, and one that splits.
const BY_ROLE: &str = include_str!("../../../lab/contenders/router/s2-published.conf");
const SPLIT: &str = include_str!("../../../lab/contenders/router/s2-split.conf");

/// A folder for the files of one test; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let name = format!("weir-router-{}-{}", std::process::id(), free_address().port());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program of `lab/peers` to its end.
fn peer(name: &str, arguments: &[&str], input: &str) -> Finished {
    let words = words_of(name);
    let all: Vec<&str> = words[1..].iter().map(String::as_str).chain(arguments.iter().copied()).collect();
    run_tool(Path::new(&words[0]), &all, input.as_bytes(), PATIENCE)
}

/// Starts Router, and waits until it takes connections at these addresses.
fn router(folder: &Folder, config: &str, ports: &[SocketAddr]) -> Program {
    let words = words_of("mysqlrouter");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("-c").arg(folder.file("mysqlrouter.conf", config));
    let is_open = |address: &SocketAddr| std::net::TcpStream::connect(address).is_ok();
    Program::start_until(&mut command, || ports.iter().all(is_open))
}

/// What `weir convert` makes of a file, and what it says.
fn converts(folder: &Folder, config: &str) -> (String, String) {
    let file = folder.file("to-convert.conf", config);
    let finished = run_tool(&weir_binary(), &["convert", &file], b"", PATIENCE);
    let said = finished.stderr.clone();
    (finished.succeeded().to_owned(), said)
}

/// What the `mysql` client is told at an address, a line for each row.
fn told(address: SocketAddr, user: &str, password: &str, sql: &str) -> Vec<String> {
    let (host, port) = (format!("--host={}", address.ip()), format!("--port={}", address.port()));
    let (user, password) = (format!("--user={user}"), format!("--password={password}"));
    let options = ["--no-defaults", &*host, &*port, &*user, &*password, "--skip-column-names", "--commands"];
    let finished = peer("mysql", &options, sql);
    finished.succeeded().lines().map(str::to_owned).collect()
}

/// The member that answers, and whether it takes no writes.
const WHO: &str = "SELECT @@server_uuid, @@super_read_only;";

/// The lab's file at two ports of ours.
fn of_lab(template: &str, folder: &Folder, cluster: &Cluster, ports: [SocketAddr; 2]) -> String {
    let sid = words_of("mysqlrouter")
        .last()
        .and_then(|path| path.strip_suffix("/usr/bin/mysqlrouter"))
        .map(str::to_owned);
    let data = &cluster.members[0].data;
    [
        ("{peers_root}", sid.expect("Router is in the root of the peers")),
        ("{directory}", folder.0.display().to_string()),
        ("{certificate}", data.join("server-cert.pem").display().to_string()),
        ("{certificate_key}", data.join("server-key.pem").display().to_string()),
        ("{account}", ACCOUNT.to_owned()),
        ("{listen_port}", ports[0].port().to_string()),
        ("{read_port}", ports[1].port().to_string()),
    ]
    .iter()
    .fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// The files beside Router's own: where the members are, and the password of its account.
fn beside(folder: &Folder, cluster: &Cluster) {
    let members: Vec<String> =
        cluster.members.iter().map(|member| format!("\"mysql://{}\"", member.address)).collect();
    let mut first = connect(cluster.members[0].address).unwrap();
    let group: Option<String> = first.query_first("SELECT @@group_replication_group_name").unwrap();
    folder.file(
        "state.json",
        &format!(
            "{{\"version\": \"1.0.0\", \"metadata-cache\": {{\"group-replication-id\": \"{}\", \"cluster-metadata-servers\": [{}]}}}}",
            group.expect("a group has a name"),
            members.join(", ")
        ),
    );
    let (key, keyring) =
        (folder.0.join("key").display().to_string(), folder.0.join("keyring").display().to_string());
    let key = format!("--master-key-file={key}");
    peer("mysqlrouter_keyring", &["init", &key, &keyring], "").succeeded();
    peer("mysqlrouter_keyring", &["set", &key, &keyring, ACCOUNT, "password", PASSWORD], "").succeeded();
}

/// Makes the account that the notes of the conversion ask for, as the administrator.
fn makes_account(cluster: &Cluster) {
    let socket = format!("--socket={}", cluster.members[0].data.with_file_name("socket").display());
    let sql = format!(
        "CREATE USER 'weir'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
         GRANT SELECT ON performance_schema.replication_group_members TO 'weir'@'127.0.0.1';"
    );
    peer("mysql", &["--no-defaults", &socket, "--user=root"], &sql).succeeded();
}

/// Puts the account's password where the file expects it, and starts Weir.
fn starts(folder: &Folder, converted: &str) -> Weir {
    use std::os::unix::fs::PermissionsExt as _;
    let password = folder.file("password", PASSWORD);
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).expect("for nobody else");
    let expected = "password_file = \"/etc/weir/mysql.password\"";
    assert!(converted.contains(expected), "{converted}");
    Setup::of(&converted.replace(expected, &format!("password_file = {password:?}"))).start()
}

#[test]
fn a_cluster_behind_router_and_behind_weir_shows_the_same_member_by_each_port() {
    let cluster = Cluster::bring_up();
    let folder = Folder::new();
    beside(&folder, &cluster);
    makes_account(&cluster);
    let primary = cluster.members[0].uuid();
    let secondaries: Vec<String> = cluster.members[1..].iter().map(|member| member.uuid()).collect();
    let is_primary = |row: &str| row == format!("{primary}\t0");
    let is_secondary = |row: &str| secondaries.iter().any(|uuid| row == format!("{uuid}\t1"));

    for (template, splits) in [(BY_ROLE, false), (SPLIT, true)] {
        let (of_router, of_weir) = ([free_address(), free_address()], [free_address(), free_address()]);
        let _router = router(&folder, &of_lab(template, &folder, &cluster, of_router), &of_router);
        let (converted, said) = converts(&folder, &of_lab(template, &folder, &cluster, of_weir));
        assert!(said.contains("DEFAULT.dynamic_state: `backends` of the pool: 3 members"), "{said}");
        let weir = starts(&folder, &converted);
        for [first, reads] in [of_router, of_weir] {
            let at = |address, sql: &str| told(address, ACCOUNT, PASSWORD, sql);
            let row = at(reads, WHO);
            assert!(
                matches!(row.as_slice(), [row] if is_secondary(row)),
                "{reads}: {row:?}\n{}",
                weir.story()
            );
            if splits {
                let asked = format!(
                    "query_attributes router.access_mode read_only\n{WHO}\nquery_attributes router.access_mode read_write\n{WHO}\n"
                );
                let rows = at(first, &asked);
                let right =
                    matches!(rows.as_slice(), [read, write] if is_secondary(read) && is_primary(write));
                assert!(right, "{first}: {rows:?}\n{}", weir.story());
                let rows = at(first, &format!("START TRANSACTION; {WHO} COMMIT;\n"));
                assert!(matches!(rows.as_slice(), [row] if is_primary(row)), "{first}: {rows:?}");
            } else {
                let row = at(first, WHO);
                assert!(
                    matches!(row.as_slice(), [row] if is_primary(row)),
                    "{first}: {row:?}\n{}",
                    weir.story()
                );
            }
        }
    }
}

/// A file with listed servers, at ports of ours: the first that is up, and each in turn.
fn of_lists(folder: &Folder, servers: [SocketAddr; 2], ports: [SocketAddr; 2]) -> String {
    let sid = words_of("mysqlrouter")
        .last()
        .and_then(|path| path.strip_suffix("/usr/bin/mysqlrouter"))
        .map(str::to_owned);
    let (root, [one, two]) = (sid.expect("Router is in the root of the peers"), servers);
    let folder = folder.0.display();
    format!(
        "[DEFAULT]\nplugin_folder = {root}/usr/lib/mysqlrouter/plugin\nlogging_folder =\nruntime_folder = {folder}\ndata_folder = {folder}\n\
         [logger]\nlevel = INFO\n\
         [routing:failover]\nbind_port = {}\ndestinations = {one}, {two}\nrouting_strategy = first-available\n\
         [routing:spread]\nbind_port = {}\ndestinations = {one}, {two}\nrouting_strategy = round-robin\n",
        ports[0].port(),
        ports[1].port(),
    )
}

#[test]
fn listed_servers_are_chosen_by_weir_as_by_the_router_that_it_replaces() {
    let (one, two) = (Mysqld::start("router-one", ""), Mysqld::start("router-two", ""));
    let folder = Folder::new();
    let servers = [one.address, two.address];
    let (of_router, of_weir) = ([free_address(), free_address()], [free_address(), free_address()]);
    let _router = router(&folder, &of_lists(&folder, servers, of_router), &of_router);
    let (converted, said) = converts(&folder, &of_lists(&folder, servers, of_weir));
    assert!(said.contains(" 0 unsupported"), "{said}");
    let weir = Setup::of(&converted).start();
    let at = |address: SocketAddr| told(address, "root", "", "SELECT @@server_uuid;").concat();
    let [first, second] = servers.map(at);
    assert_ne!(first, second);
    for [failover, spread] in [of_router, of_weir] {
        assert_eq!([at(failover), at(failover)], [&*first; 2], "the first that is up\n{}", weir.story());
        let mut both = [at(spread), at(spread)];
        both.sort();
        let mut expected = [first.clone(), second.clone()];
        expected.sort();
        assert_eq!(both, expected, "each in turn\n{}", weir.story());
    }
    one.dies();
    for [failover, spread] in [of_router, of_weir] {
        assert_eq!([at(failover), at(spread)], [&*second; 2], "the one that is left\n{}", weir.story());
    }
}

#[test]
fn a_file_of_routers_with_a_mistake_is_one_error_with_its_line() {
    let folder = Folder::new();
    let file = folder.file("mysqlrouter.conf", "[routing:a]\nbind_port\n");
    let finished = run_tool(&weir_binary(), &["convert", &file], b"", PATIENCE);
    assert_eq!((finished.code, finished.stdout.as_str()), (1, ""));
    assert!(
        finished.stderr.contains("line 2: this is neither a section's header nor an option"),
        "{}",
        finished.stderr
    );
}
