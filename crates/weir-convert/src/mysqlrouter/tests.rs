//! Tests the conversion of MySQL Router's files.

use std::hash::{BuildHasher, Hasher};

use super::ini::RouterFile;
use crate::{Converted, Directive, DirectiveVerdict, NoFiles, SourceFiles, convert, convert_with};
use weir_config::{Config, MysqlAccess, MysqlTopology, Reads, Speaks, TlsMode, check_text};

/// As `mysqlrouter --bootstrap` of version 9 writes it.
const BOOTSTRAPPED: &str = include_str!("bootstrapped.conf");
/// The state file beside it.
const STATE: &str = r#"{"metadata-cache": {"group-replication-id": "57656972-6c61-4273-8273-000000000002",
    "cluster-metadata-servers": ["mysql://10.0.0.1:3306", "mysql://db2.example:3307", "mysql://[fd00::3]:3306"]},
    "version": "1.0.0"}"#;

/// A single other file: whatever is asked for, this is its text.
struct OneFile<'t>(&'t str);

impl SourceFiles for OneFile<'_> {
    fn matching(&self, pattern: &str) -> Vec<String> {
        vec![pattern.to_owned()]
    }

    fn read(&self, path: &str) -> Result<String, String> {
        assert_eq!(path, "/var/lib/mysqlrouter/state.json");
        Ok(self.0.to_owned())
    }

    fn folder(&self) -> &str {
        "/etc/mysqlrouter"
    }
}

fn checked(converted: Converted) -> (Converted, Config) {
    let file = converted.to_toml("mysqlrouter.conf");
    let checked = check_text("weir.toml", &file).unwrap_or_else(|report| panic!("{report}\n{file}"));
    assert!(checked.warnings.problems.is_empty(), "{}\n{file}", checked.warnings);
    (converted, checked.config)
}

fn converted(text: &str) -> (Converted, Config) {
    checked(convert(text).unwrap_or_else(|error| panic!("{error}\n{text}")))
}

fn of<'c>(converted: &'c Converted, name: &str) -> &'c Directive {
    let found = converted.directives.iter().find(|directive| directive.name.ends_with(name));
    found.unwrap_or_else(|| panic!("{name} is not in {:#?}", converted.directives))
}

/// An endpoint before two listed servers, with further lines.
fn listed(more: &str) -> String {
    format!("[routing:listed]\nbind_port = 7001\ndestinations = 10.0.0.1, 10.0.0.2:3307\n{more}\n")
}

/// An endpoint before a cluster, with further lines.
fn clustered(role: &str, more: &str) -> String {
    format!(
        "[metadata_cache:c]\nuser = x\n[routing:one]\nbind_port = 7001\ndestinations = metadata-cache://c/?role={role}\n{more}\n"
    )
}

/// Makes sure that each option of the text has one verdict, at its line.
fn each_has_one_verdict(converted: &Converted, text: &str) {
    let file = RouterFile::parse(text).unwrap();
    let options = file.sections.iter().chain([&file.defaults]).flat_map(|section| {
        section.options.iter().map(|option| (option.line, format!("{}.{}", section.title(), option.name)))
    });
    let mut expected: Vec<_> = options.collect();
    expected.sort();
    let given = converted.directives.iter().filter(|directive| directive.line > 0);
    let given = given.filter(|directive| !directive.name.starts_with('['));
    let mut given: Vec<_> = given.map(|directive| (directive.line, directive.name.clone())).collect();
    given.sort();
    assert_eq!(given, expected);
    assert!(converted.directives.iter().all(|directive| !directive.note.is_empty()));
}

#[test]
fn a_bootstrapped_file_is_three_listeners_before_one_pool() {
    let converted = convert_with(BOOTSTRAPPED, &OneFile(STATE)).unwrap();
    each_has_one_verdict(&converted, BOOTSTRAPPED);
    let (converted, config) = checked(converted);
    let listeners: Vec<_> =
        config.listeners.iter().map(|it| (it.name.as_str(), it.pool.as_deref())).collect();
    let pool = Some("prodCluster");
    assert_eq!(listeners, [("bootstrap_rw", pool), ("bootstrap_ro", pool), ("bootstrap_rw_split", pool)]);
    for (at, access) in
        [MysqlAccess::ReadWrite, MysqlAccess::ReadOnly, MysqlAccess::Auto].into_iter().enumerate()
    {
        let listener = &config.listeners[at];
        let Speaks::Mysql(mysql) = &listener.speaks else { panic!("{listener:?}") };
        assert_eq!(mysql.access, access);
        assert_eq!(listener.timeout.connect.as_secs(), 5);
        assert_eq!(listener.timeout.handshake.as_secs(), 9);
        assert_eq!(listener.tls.as_ref().unwrap().mode, TlsMode::Preferred);
        assert_eq!(listener.max_connections, 512);
    }
    let [pool] = config.pools.as_slice() else { panic!("{:?}", config.pools) };
    let addresses: Vec<_> = pool.backends.iter().map(|backend| backend.address.as_str()).collect();
    assert_eq!(addresses, ["10.0.0.1:3306", "db2.example:3307", "[fd00::3]:3306"]);
    assert_eq!(pool.balance.word(), "round-robin");
    let mysql = pool.mysql.as_ref().unwrap();
    assert_eq!((mysql.topology, mysql.reads), (MysqlTopology::GroupReplication, Reads::Secondaries));
    assert_eq!(mysql.interval.as_millis(), 500);
    assert_eq!(pool.keep_alive.max, 64);
    assert_eq!(of(&converted, "dynamic_state").verdict, DirectiveVerdict::Exact);
    let account = of(&converted, "metadata_cache:bootstrap.user");
    assert!(account.note.contains("CREATE USER 'weir'") && account.note.contains("/etc/weir/mysql.password"));
    for refused in ["bootstrap_x_rw.bind_address", "bootstrap_x_ro.protocol", "http_server.port", "router_id"]
    {
        assert_eq!(of(&converted, refused).verdict, DirectiveVerdict::Unsupported, "{refused}");
    }
}

#[test]
fn without_the_state_file_the_members_are_left_to_be_filled_in() {
    let (converted, config) = converted(BOOTSTRAPPED);
    let told = of(&converted, "dynamic_state");
    assert_eq!(told.verdict, DirectiveVerdict::Unsupported);
    assert!(told.note.contains("`backends`") && told.note.contains("no other file is read here"), "{told}");
    assert_eq!(config.pools[0].backends[0].address, "cluster-member.invalid:3306");
    assert!(
        converted.body.contains("# Put the addresses of the cluster's members here"),
        "{}",
        converted.body
    );
    for (state, problem) in [
        ("[", "it is not JSON"),
        ("{}", "no `metadata-cache`"),
        (r#"{"metadata-cache": {}}"#, "names no member"),
    ] {
        let converted = convert_with(BOOTSTRAPPED, &OneFile(state)).unwrap();
        assert!(of(&converted, "dynamic_state").note.contains(problem), "{state}");
    }
}

#[test]
fn a_cluster_of_a_set_is_followed_alone_and_that_is_said() {
    let state = STATE.replace("\"cluster-", "\"clusterset-id\": \"57656972-6c61\", \"cluster-");
    let converted = convert_with(BOOTSTRAPPED, &OneFile(&state)).unwrap();
    let told = of(&converted, "dynamic_state");
    assert!(told.verdict == DirectiveVerdict::Approximate && told.note.contains("ClusterSet"), "{told}");
}

#[test]
fn listed_servers_are_relayed_to_so_that_each_may_serve_any_client() {
    for (strategy, balance) in
        [("first-available", "first"), ("next-available", "first"), ("round-robin", "round-robin")]
    {
        let text = listed(&format!("routing_strategy = {strategy}\nsocket = /run/router.sock"));
        let (converted, config) = converted(&text);
        each_has_one_verdict(&converted, &text);
        assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{:#?}", converted.directives);
        let listener = &config.listeners[0];
        assert!(matches!(listener.speaks, Speaks::Tcp), "{listener:?}");
        assert_eq!(
            listener.bind,
            ["127.0.0.1:7001".parse().unwrap(), "unix:/run/router.sock".parse().unwrap()]
        );
        let addresses: Vec<_> = config.pools[0].backends.iter().map(|it| it.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.1:3306", "10.0.0.2:3307"]);
        assert_eq!(config.pools[0].balance.word(), balance);
    }
}

#[test]
fn one_listed_server_is_spoken_to_so_that_tls_can_end_here() {
    let text = "[routing:one]\nbind_address = 10.0.0.9:7001\ndestinations = db.example\nrouting_strategy = first-available\n\
                client_ssl_mode = REQUIRED\nclient_ssl_cert = c.pem\nclient_ssl_key = k.pem\nserver_ssl_mode = REQUIRED\n\
                server_ssl_verify = VERIFY_CA\nserver_ssl_ca = ca.pem\n";
    let (converted, config) = converted(text);
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{:#?}", converted.directives);
    assert!(matches!(config.listeners[0].speaks, Speaks::Mysql(_)), "{:?}", config.listeners);
    assert_eq!(config.listeners[0].tls.as_ref().unwrap().mode, TlsMode::Required);
    let pool = &config.pools[0];
    assert_eq!(pool.mysql.as_ref().unwrap().topology, MysqlTopology::Static);
    assert_eq!(pool.tls.as_ref().unwrap().ca.as_deref(), Some(std::path::Path::new("ca.pem")));
}

#[test]
fn what_cannot_be_kept_of_tls_is_said_where_servers_are_listed() {
    let with = |mode: &str| {
        listed(&format!(
            "routing_strategy = round-robin\nclient_ssl_mode = {mode}\nclient_ssl_cert = c.pem\nclient_ssl_key = k.pem"
        ))
    };
    let (required, _) = converted(&with("REQUIRED"));
    let told = of(&required, "client_ssl_mode");
    assert!(told.verdict == DirectiveVerdict::Unsupported && told.note.contains("not refused"), "{told}");
    let (preferred, _) = converted(&with("PREFERRED"));
    assert_eq!(of(&preferred, "client_ssl_mode").verdict, DirectiveVerdict::Approximate);
}

#[test]
fn what_is_for_a_cluster_means_nothing_without_one() {
    let text = format!(
        "[DEFAULT]\ndynamic_state = /no/such/file\nmax_idle_server_connections = 4\n{}access_mode =\n[connection_pool]\nidle_timeout = 5\n",
        listed("routing_strategy = round-robin")
    );
    let (converted, _) = converted(&text);
    each_has_one_verdict(&converted, &text);
    for name in ["dynamic_state", "max_idle_server_connections", "access_mode", "idle_timeout"] {
        assert_eq!(of(&converted, name).verdict, DirectiveVerdict::Exact, "{name}");
    }
    assert!(!converted.body.contains("keep_alive"), "{}", converted.body);
}

#[test]
fn the_primary_of_a_replica_set_is_the_server_that_takes_writes() {
    let text = clustered("PRIMARY", "routing_strategy = first-available").replace(
        "user = x",
        "user = x\ncluster_type = rs\nbootstrap_server_addresses = mysql://10.0.0.1:3306,mysql://10.0.0.2",
    );
    let (converted, config) = converted(&text);
    each_has_one_verdict(&converted, &text);
    assert_eq!(config.pools[0].mysql.as_ref().unwrap().topology, MysqlTopology::Replication);
    let addresses: Vec<_> = config.pools[0].backends.iter().map(|it| it.address.as_str()).collect();
    assert_eq!(addresses, ["10.0.0.1:3306", "10.0.0.2:3306"]);
    assert!(of(&converted, "user").note.contains("it needs no rights"));
}

#[test]
fn the_role_and_the_strategy_say_which_servers_get_what() {
    let of_pool = |text: &str| converted(text).1.pools.into_iter().next().unwrap();
    let passes = "client_ssl_mode = PASSTHROUGH\n";
    let first = of_pool(&clustered("SECONDARY", &format!("{passes}routing_strategy = first-available")));
    assert_eq!(first.balance.word(), "first");
    let all =
        of_pool(&clustered("PRIMARY_AND_SECONDARY", &format!("{passes}routing_strategy = round-robin")));
    assert_eq!(all.mysql.as_ref().unwrap().reads, Reads::All);
    let (converted, config) =
        converted(&clustered("SECONDARY", "routing_strategy = round-robin-with-fallback"));
    assert_eq!(config.listeners[0].tls.as_ref().unwrap().mode, TlsMode::Passthrough);
    assert_eq!(of(&converted, "routing_strategy").verdict, DirectiveVerdict::Exact);
    let told = of(&converted, "client_ssl_mode");
    assert_eq!((told.line, told.verdict), (0, DirectiveVerdict::Exact), "Router's default is said");
}

#[test]
fn endpoints_that_want_different_things_have_pools_of_their_own() {
    let text = "[metadata_cache]\nuser = x\n[routing:ro]\nbind_port = 7001\ndestinations = metadata-cache://c/?role=SECONDARY\n\
                routing_strategy = round-robin-with-fallback\n[routing:rw]\nbind_port = 7002\ndestinations = metadata-cache://c/?role=PRIMARY\n\
                routing_strategy = first-available\n[routing:first]\nbind_port = 7003\ndestinations = metadata-cache://c/?role=SECONDARY\n\
                routing_strategy = first-available\n";
    let (_, config) = converted(text);
    let pools: Vec<_> = config.listeners.iter().map(|it| it.pool.as_deref().unwrap().to_owned()).collect();
    assert_eq!(pools, ["c", "c", "c-2"]);
}

#[test]
fn options_of_default_hold_where_the_section_does_not_say_them() {
    let text = format!(
        "[DEFAULT]\nconnect_timeout = 7\nhome = 10.0.0.7\nclient_connect_timeout = 5\n{}[routing:own]\nbind_address = {{home}}\nbind_port = 7002\nconnect_timeout = 8\n\
         destinations = 10.0.0.3\nrouting_strategy = first-available\n",
        listed("routing_strategy = round-robin")
    );
    let (converted, config) = converted(&text);
    let timeouts: Vec<_> = config.listeners.iter().map(|it| it.timeout.connect.as_secs()).collect();
    assert_eq!(timeouts, [7, 8]);
    assert_eq!(config.listeners[1].bind, ["10.0.0.7:7002".parse().unwrap()]);
    each_has_one_verdict(&converted, &text);
    let told = of(&converted, "DEFAULT.home");
    assert!(told.verdict == DirectiveVerdict::Unsupported && told.note.contains("no such option"), "{told}");
}

#[test]
fn what_router_refuses_is_one_error_with_its_line() {
    for (text, line, what) in [
        ("bind_port = 1\n[routing:a]\n", 1, "before the first section"),
        ("[routing:a\n", 1, "does not end with `]`"),
        ("[routing:a b]\n", 1, "the key of a section's header"),
        ("[DEFAULT:x]\n[routing:a]\n", 1, "`[DEFAULT]` has a key"),
        ("[routing:a]\nhello\n", 2, "neither a section's header nor an option"),
        ("[routing:a]\nbind-port = 1\n", 2, "the name of an option"),
        ("[routing:a]\nbind_port = 1\nBIND_PORT = 2\n", 3, "said twice"),
        ("[routing:a]\n[routing:a]\n", 2, "stands there twice"),
    ] {
        let refused = convert(text).map(|_| ()).expect_err(text);
        assert!(refused.message.starts_with(&format!("line {line}: ")), "{refused}");
        assert!(refused.message.contains(what) && !refused.hint.is_empty(), "{refused}");
    }
}

#[test]
fn a_file_without_an_endpoint_that_can_be_converted_says_why() {
    for (more, why) in [
        ("", "routing_strategy"),
        ("routing_strategy = fastest", "fastest"),
        ("routing_strategy = round-robin\naccess_mode = auto", "PRIMARY_AND_SECONDARY"),
        ("routing_strategy = round-robin\nclient_ssl_mode = PREFERRED", "client_ssl_cert"),
        ("routing_strategy = round-robin\nclient_ssl_cert = c.pem", "client_ssl_key"),
        ("routing_strategy = round-robin\nprotocol = z", "protocol"),
        ("routing_strategy = round-robin\nbind_address = a b", "bind_address"),
    ] {
        let refused = convert(&listed(more)).map(|_| ()).expect_err(more);
        assert!(refused.hint.contains(why) && refused.hint.contains("[routing:listed]"), "{refused}");
    }
    let none = convert("[metadata_cache]\nuser = x\n").map(|_| ()).unwrap_err();
    assert!(none.message.contains("[routing:NAME]"), "{none}");
}

#[test]
fn a_value_never_leaves_its_place_in_the_converted_file() {
    let text = "[routing:a]\nbind_port = 7001\ndestinations = 10.0.0.1\nrouting_strategy = first-available\nclient_ssl_mode = PREFERRED\n\
                client_ssl_cert = c\"]\nclient_ssl_key = ${file:/etc/shadow}\n";
    let (converted, config) = converted(text);
    assert!(converted.body.contains("$${file:/etc/shadow}"), "{}", converted.body);
    let certificate = &config.listeners[0].tls.as_ref().unwrap().certificates[0];
    assert_eq!(certificate.key, std::path::Path::new("${file:/etc/shadow}"));
    assert_eq!(certificate.cert, std::path::Path::new("c\"]"));
}

#[test]
fn references_that_never_end_are_left_as_they_are() {
    let many = "{a}{b}".repeat(2000);
    let text = format!(
        "[DEFAULT]\na = {many}\nb = {many}\n{}",
        listed("routing_strategy = round-robin\nsocket = {a}")
    );
    let file = RouterFile::parse(&text).unwrap();
    let value = file.value(&file.sections[0], "socket").unwrap();
    assert!(value.len() < 4 << 20, "{}", value.len());
}

/// Draws numbers from a seed (xorshift64*).
struct Draws(u64);

impl Draws {
    #[expect(clippy::disallowed_methods, reason = "a run without a seed makes one")]
    fn seeded() -> Draws {
        let given = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
        let fresh = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        let seed: u64 = given.unwrap_or_else(fresh);
        println!("WEIR_SEED={seed}");
        Draws(seed | 1)
    }

    /// A number below the bound, or 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or_default() % bound.max(1)
    }
}

#[test]
fn mutated_files_never_panic_and_give_each_option_one_verdict() {
    const PIECES: [&str; 14] = [
        "[",
        "]",
        ":",
        "=",
        "\n",
        "{data_folder}",
        "[routing:x]\n",
        "[DEFAULT]\n",
        ",",
        "\"",
        "é",
        "0",
        "local:/a",
        "x",
    ];
    let mut draws = Draws::seeded();
    let mut taken = 0;
    for _ in 0..3000 {
        let mut text: Vec<char> = BOOTSTRAPPED.chars().collect();
        for _ in 0..=draws.below(6) {
            let at = draws.below(text.len());
            match draws.below(4) {
                0 if at < text.len() => {
                    text.remove(at);
                }
                1 => {
                    let end = (at + draws.below(40)).min(text.len());
                    let moved: Vec<char> = text.drain(at..end).collect();
                    let to = draws.below(text.len());
                    text.splice(to..to, moved);
                }
                2 => text.truncate(at),
                _ => {
                    let piece = PIECES[draws.below(PIECES.len())];
                    text.splice(at..at, piece.chars());
                }
            }
        }
        let text: String = text.into_iter().collect();
        let Ok(converted) = super::convert(&text, &NoFiles) else { continue };
        taken += 1;
        each_has_one_verdict(&converted, &text);
        // What comes out may be refused, such as a path that is none; to look at it must not fail.
        let _ = check_text("weir.toml", &converted.to_toml("mysqlrouter.conf"));
    }
    assert!(taken > 300, "{taken} of 3000 were converted");
}
