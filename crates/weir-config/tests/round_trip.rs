//! Any config that can be said at all is written and read back as the same config.

mod screens;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use weir_balance::{Algorithm, LastResort};
use weir_config::*;

fn millis(least: u64, most: u64) -> impl Strategy<Value = Duration> {
    (least..=most).prop_map(Duration::from_millis)
}

fn networks() -> impl Strategy<Value = Vec<ipnet::IpNet>> {
    let network = (any::<std::net::IpAddr>(), 0..=32u8)
        .prop_map(|(address, prefix)| ipnet::IpNet::new(address, prefix).unwrap().trunc());
    vec(network, 0..3)
}

/// Field values with everything that has to be escaped in TOML and may stand in a header.
fn field_value() -> impl Strategy<Value = String> {
    "[!-~é\u{80}-\u{9f}]{0,3}([ \t\"\\\\]{0,2}[!-~é])?".prop_map(|text| {
        text.chars()
            .filter(|c| !c.is_control() || *c == '\t')
            .collect::<String>()
            .trim_matches([' ', '\t'])
            .to_owned()
    })
}

fn fields() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("x-[a-z0-9!#$%&'*+.^_`|~-]{1,6}", field_value(), 0..3)
}

fn timeouts(protocol: Protocol) -> impl Strategy<Value = Timeouts> {
    let day = 86_400_000;
    let hour = 3_600_000;
    let heads = (millis(10, hour), millis(10, hour));
    (millis(10, day), heads, millis(1, 300_000), millis(10, day), millis(10, day)).prop_map(
        move |(client_idle, (header, handshake), connect, backend, client_body)| {
            let default = parse("d", "[listener.a]\nbind = \"127.0.0.1:0\"").unwrap().listeners[0].timeout;
            match protocol {
                Protocol::Http => Timeouts { client_idle, header, handshake, connect, backend, client_body },
                Protocol::Tcp => Timeouts { client_idle, header, handshake, connect, ..default },
                Protocol::Udp => Timeouts { client_idle, ..default },
            }
        },
    )
}

fn host() -> impl Strategy<Value = HostPattern> {
    prop_oneof![
        "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?\\.example".prop_map(HostPattern::Exact),
        "[a-z]{1,8}".prop_map(|name| HostPattern::Suffix(format!(".{name}.example"))),
        any::<std::net::Ipv4Addr>().prop_map(|address| HostPattern::Exact(address.to_string())),
        any::<std::net::Ipv6Addr>().prop_map(|address| HostPattern::Exact(format!("[{address}]"))),
    ]
}

fn path() -> impl Strategy<Value = PathPattern> {
    prop_oneof![
        "(/[a-z0-9~!$&'()+,;=:@_-]{1,5}){1,3}".prop_map(PathPattern::Exact),
        "(/[a-z0-9%25]{1,5}){0,2}/".prop_map(|path| PathPattern::Prefix(path.replace('%', "%2F"))),
        "[a-z0-9./]{1,5}".prop_map(PathPattern::Suffix),
        "[a-z0-9./]{1,5}".prop_map(PathPattern::Contains),
    ]
}

fn compress() -> impl Strategy<Value = Compress> {
    let types = vec(select(vec!["text/*", "text/html", "application/a+json"]).prop_map(MediaRange::of), 1..4);
    let codings = subsequence(Coding::ALL.to_vec(), 1..=3).prop_shuffle();
    (codings, types, 0..=1u64 << 40, (1..=12u32, 0..=6u32, 1..=9u32)).prop_map(
        |(codings, types, min_bytes, levels)| {
            // What is not offered has no level of its own.
            let level = |coding, level, default| if codings.contains(&coding) { level } else { default };
            let level = CodingLevels {
                zstd: level(Coding::Zstd, levels.0, 3),
                brotli: level(Coding::Brotli, levels.1, 4),
                gzip: level(Coding::Gzip, levels.2, 5),
            };
            Compress { codings, types, min_bytes, level }
        },
    )
}

fn action(pools: Vec<String>) -> impl Strategy<Value = RouteAction> {
    let to = select(vec!["https://$host$path$query", "/elsewhere", "https://shop.example/?a=%20b"]);
    prop_oneof![
        3 => select(pools).prop_map(RouteAction::Pool),
        1 => (to, select(vec![301u16, 302, 303, 307, 308])).prop_map(|(to, status)| RouteAction::Redirect { to: to.to_owned(), status }),
        1 => (200..=599u16, any::<String>(), select(vec!["text/plain; charset=utf-8", "application/json"])).prop_map(|(status, body, kind)| {
            let body = if matches!(status, 204 | 205 | 304) { String::new() } else { body };
            RouteAction::Respond { status, body, content_type: kind.to_owned() }
        }),
    ]
}

fn cache() -> impl Strategy<Value = RouteCache> {
    let whole = |least: u64, most: u64| (least..=most).prop_map(Duration::from_secs);
    let times = (of(whole(1, 100)), of(whole(100, 31_536_000)), of(whole(1, 100)));
    let names = || vec("[a-z_]{1,6}\\*?", 0..3);
    let query = prop_oneof![
        Just((true, vec![], vec![], false)),
        (names(), any::<bool>()).prop_map(|(only, sort)| (false, only, vec![], sort)),
        (names(), any::<bool>()).prop_map(|(without, sort)| (false, vec![], without, sort)),
    ];
    let key = (vec("x-[a-z]{1,5}", 0..3), vec("[a-z]{1,5}", 0..3));
    let stale = (of(whole(1, 31_536_000)), of(whole(1, 31_536_000)));
    let set_cookie = select(vec![SetCookie::Refuse, SetCookie::Strip]);
    (times, query, key, set_cookie, stale, (0..=1u64 << 40, millis(1, 3_600_000), any::<bool>())).prop_map(
        |(
            (ttl, ttl_max, negative_ttl),
            (ignore_query, query_only, query_without, query_sort),
            (key_headers, key_cookies),
            set_cookie,
            (stale_while_revalidate, stale_if_error),
            (object_max_bytes, collapse_timeout, honour_client),
        )| RouteCache {
            ttl,
            ttl_max,
            negative_ttl,
            ignore_query,
            query_only,
            query_without,
            query_sort,
            key_headers,
            key_cookies,
            set_cookie,
            stale_while_revalidate,
            stale_if_error,
            object_max_bytes,
            collapse_timeout,
            honour_client,
        },
    )
}

fn sqli() -> impl Strategy<Value = Sqli> {
    (select(vec![SqliMode::Off, SqliMode::Report, SqliMode::Block]), 0..=1u64 << 20)
        .prop_map(|(mode, body_bytes)| Sqli { mode, body_bytes })
}

/// What is asked where nothing is said.
const NO_SQLI: Sqli = Sqli { mode: SqliMode::Off, body_bytes: 64 << 10 };

fn route(pools: Vec<String>) -> impl Strategy<Value = Route> {
    let matching = (
        vec(host(), 0..3),
        vec(path(), 0..3),
        subsequence(vec!["GET", "HEAD", "POST", "PURGE"], 0..3),
        fields(),
    );
    let rest = (of(0..=1u64 << 46), of(cache()), screens::screen(true), sqli(), of(compress()));
    (matching, action(pools), fields(), fields(), of("/[a-z]{0,3}/?"), rest).prop_map(
        |(
            (host, path, method, header),
            action,
            add_request_header,
            add_response_header,
            rewrite,
            (body_limit_bytes, cache, screen, sqli, compress),
        )| {
            let all_prefixes =
                !path.is_empty() && path.iter().all(|path| matches!(path, PathPattern::Prefix(_)));
            let forwards = matches!(action, RouteAction::Pool(_));
            Route {
                name: String::new(),
                host,
                sni: Vec::new(),
                path,
                method: method.into_iter().map(str::to_owned).collect(),
                header,
                action,
                add_request_header,
                add_response_header,
                rewrite_prefix: rewrite.filter(|_| all_prefixes && forwards),
                body_limit_bytes,
                sqli,
                cache: cache.filter(|_| forwards),
                screen,
                compress,
            }
        },
    )
}

/// A route of a tcp listener.
fn sni_route(pools: Vec<String>) -> impl Strategy<Value = Route> {
    (vec(host(), 0..3), select(pools)).prop_map(|(sni, pool)| Route {
        name: String::new(),
        host: Vec::new(),
        sni,
        path: Vec::new(),
        method: Vec::new(),
        header: BTreeMap::new(),
        action: RouteAction::Pool(pool),
        add_request_header: BTreeMap::new(),
        add_response_header: BTreeMap::new(),
        rewrite_prefix: None,
        body_limit_bytes: None,
        sqli: NO_SQLI,
        cache: None,
        screen: Screen::default(),
        compress: None,
    })
}

fn file() -> impl Strategy<Value = PathBuf> {
    "/[ -~é]{1,10}[a-z]\\.pem".prop_map(PathBuf::from)
}

/// Always by a handshake, which needs no other listener.
fn acme() -> impl Strategy<Value = Acme> {
    let domains = proptest::collection::btree_set("[a-z]{1,8}\\.example", 1..4);
    (domains, vec("mailto:[a-z]{1,5}@a\\.example", 0..2), of(file()), file(), 0..1_000_000u32).prop_map(
        |(domains, contact, ca, store, number)| Acme {
            directory: format!("https://ca.example/{number}"),
            domains: domains.into_iter().collect(),
            contact,
            challenges: if number % 2 == 0 {
                AcmeChallenge::ALL.to_vec()
            } else {
                vec![AcmeChallenge::TlsAlpn01]
            },
            ca,
            store,
        },
    )
}

fn listener_tls() -> impl Strategy<Value = ListenerTls> {
    let certificates = vec((file(), of(file())), 1..3).prop_map(|files| {
        let numbered = files.into_iter().enumerate().map(|(number, (key, ocsp))| Certificate {
            cert: PathBuf::from(format!("{number}.pem")),
            key,
            ocsp,
        });
        numbered.collect()
    });
    let auth = select(vec![ClientAuth::Required, ClientAuth::Optional]);
    let version = select(vec![TlsVersion::V12, TlsVersion::V13]);
    let ciphers = select(vec![CipherPolicy::Default, CipherPolicy::Strong, CipherPolicy::Nist]);
    (certificates, of(acme()), of((file(), auth)), version, ciphers, any::<bool>()).prop_map(
        |(certificates, acme, client, min_version, ciphers, tickets)| {
            let (client_ca, client_auth) = client.unzip();
            let client_auth = client_auth.unwrap_or(ClientAuth::Required);
            // Where the listener speaks HTTP/3.
            let early_data = tickets && client_ca.is_none();
            ListenerTls {
                certificates,
                acme,
                client_ca,
                client_auth,
                min_version,
                ciphers,
                tickets,
                early_data,
            }
        },
    )
}

fn pool_tls() -> impl Strategy<Value = PoolTls> {
    let server_name = of("[a-z]{1,8}\\.internal");
    (of(file()), of((file(), file())), server_name, any::<bool>())
        .prop_map(|(ca, client, server_name, verify)| PoolTls { ca, client, server_name, verify })
}

fn limits(protocol: Protocol) -> impl Strategy<Value = HttpLimits> {
    let sizes = (256..=1usize << 20, 1024..=16usize << 20, 8..=10_000usize, 0..=100u64 << 20);
    (sizes, 1..=10_000u32, 50..=1_000_000u32).prop_map(
        move |((request_line_bytes, header_bytes, header_count, min_body_rate), streams, control_frames)| {
            if protocol == Protocol::Http {
                HttpLimits {
                    request_line_bytes,
                    header_bytes,
                    header_count,
                    min_body_rate,
                    streams,
                    control_frames,
                }
            } else {
                HttpLimits {
                    request_line_bytes: 8 << 10,
                    header_bytes: 64 << 10,
                    header_count: 100,
                    min_body_rate: 100,
                    streams: 128,
                    control_frames: 1000,
                }
            }
        },
    )
}

/// A listener that uses pools of its own protocol only. `index` keeps names and ports apart.
fn listener(index: u16, protocol: Protocol, pools: Vec<String>) -> impl Strategy<Value = Listener> {
    let http = protocol == Protocol::Http;
    let bind =
        vec(any::<std::net::Ipv4Addr>().prop_filter("wildcard", |address| !address.is_unspecified()), 1..3);
    let routes = match protocol {
        Protocol::Http => vec(route(pools.clone()), 0..4).boxed(),
        Protocol::Tcp => vec(sni_route(pools.clone()), 0..3).boxed(),
        Protocol::Udp => Just(Vec::new()).boxed(),
    };
    let versions = subsequence(vec![HttpVersion::H1, HttpVersion::H2, HttpVersion::H3], 1..=3);
    let secure = (of(listener_tls()), versions);
    let numbers = (1..=10_000_000u32, of(1..=10_000_000u32), any::<bool>());
    let flags = (any::<bool>(), any::<bool>());
    (
        bind,
        select(pools),
        networks(),
        networks(),
        numbers,
        timeouts(protocol),
        limits(protocol),
        (routes, any::<bool>(), flags, secure, (screens::screen(false), sqli()), of(compress())),
    )
        .prop_map(
            move |(
                bind,
                pool,
                accept_proxy,
                trusted_proxies,
                (max_connections, max_connections_per_client, bare),
                timeout,
                limits,
                (
                    routes,
                    named,
                    (merge_slashes, abort_on_close),
                    (tls, mut versions),
                    (screen, sqli),
                    compress,
                ),
            )| {
                let name = format!("listener{index}{}", if named { ".x" } else { "_x" });
                let routes = routes.into_iter().enumerate().map(|(position, route)| Route {
                    name: if named { format!("r{position}") } else { format!("{name}/{position}") },
                    ..route
                });
                let mut tls = tls.filter(|_| protocol != Protocol::Udp);
                versions.retain(|version| *version != HttpVersion::H3 || tls.is_some());
                if versions.is_empty() {
                    versions.push(HttpVersion::H1);
                }
                if let Some(tls) = &mut tls {
                    tls.early_data &= http && versions.contains(&HttpVersion::H3);
                }
                Listener {
                    http: if http { versions } else { Vec::new() },
                    tls,
                    protocol,
                    bind: bind
                        .into_iter()
                        .enumerate()
                        .map(|(n, ip)| SocketAddr::new(ip.into(), 10_000 + index * 10 + n as u16))
                        .collect(),
                    pool: (!http || bare).then_some(pool),
                    accept_proxy: if protocol == Protocol::Udp { Vec::new() } else { accept_proxy },
                    trusted_proxies: if http { trusted_proxies } else { Vec::new() },
                    max_connections,
                    max_connections_per_client,
                    merge_slashes: merge_slashes && http,
                    abort_on_close: abort_on_close && http,
                    screen: if http { screen } else { Screen::default() },
                    sqli: if http { sqli } else { NO_SQLI },
                    compress: compress.filter(|_| http),
                    timeout,
                    limits,
                    routes: routes.collect(),
                    name,
                }
            },
        )
}

fn backends() -> impl Strategy<Value = Vec<Backend>> {
    let host = prop_oneof![
        "[a-z][a-z0-9_-]{0,5}[a-z]",
        any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()),
        any::<std::net::Ipv6Addr>().prop_map(|ip| format!("[{ip}]"))
    ];
    let backend = (host, 0..=256u32, of(1..=10_000_000u32), any::<bool>());
    vec(backend, 1..5).prop_map(|all| {
        let backends = all.into_iter().enumerate().map(|(index, (host, weight, max_connections, backup))| {
            Backend { address: format!("{host}:{}", 1 + index), weight, max_connections, backup }
        });
        backends.collect()
    })
}

fn health(http: bool) -> impl Strategy<Value = Health> {
    let check = prop_oneof![
        (
            select(vec!["/", "/healthz?full=1"]),
            of(select(vec!["shop.example", "shop.example:8080", "[::1]"])),
            vec((100..=350u16, 0..=249u16), 1..3)
        )
            .prop_map(|(path, host, ranges)| Check::Http {
                path: path.to_owned(),
                host: host.map(str::to_owned),
                expect_status: ranges.into_iter().map(|(first, more)| (first, first + more)).collect(),
            }),
        Just(Check::Tcp),
        Just(Check::Off),
    ];
    let passive = (1..=1_000_000u32, millis(100, 3_600_000), millis(100, 3_600_000), 0.0..=1.0f64);
    let passive = of(passive.prop_map(|(errors, within, eject, max_ejected)| Passive {
        errors,
        within,
        eject,
        max_ejected,
    }));
    let _ = http;
    let last_resort = select(vec![LastResort::Late, LastResort::All, LastResort::Off]);
    let pace = (millis(10, 3_600_000), 0.0..=1.0f64, 0.0..=1.0f64);
    (check, pace, 1..=100u32, 1..=100u32, passive, last_resort).prop_map(
        |(check, (interval, fast, timeout), rise, fall, passive, last_resort)| {
            let part = |share: f64| {
                Duration::from_millis((interval.as_millis() as f64 * share) as u64)
                    .max(Duration::from_millis(10))
            };
            let (fast_interval, timeout) = (part(fast), part(timeout));
            Health { check, interval, fast_interval, timeout, rise, fall, passive, last_resort }
        },
    )
}

fn hash(http: bool) -> impl Strategy<Value = Hash> {
    let key = prop_oneof![
        Just(HashKey::Uri),
        Just(HashKey::Path),
        Just(HashKey::ClientIp),
        "x-[a-z]{1,5}".prop_map(HashKey::Header),
        "[A-Za-z]{1,5}".prop_map(HashKey::Cookie),
    ];
    (key, of(1.01..=10.0f64))
        .prop_map(move |(key, bounded)| Hash { key: if http { key } else { HashKey::ClientIp }, bounded })
}

fn retry() -> impl Strategy<Value = Retry> {
    let all = vec![
        RetryOn::Connect,
        RetryOn::Empty,
        RetryOn::Timeout,
        RetryOn::Status(502),
        RetryOn::Status(503),
        RetryOn::Status(504),
    ];
    (0..=10u32, subsequence(all, 1..=6), any::<bool>()).prop_map(|(attempts, on, non_idempotent)| Retry {
        attempts,
        on,
        non_idempotent,
    })
}

fn pool(name: String, protocol: Protocol) -> impl Strategy<Value = Pool> {
    let http = protocol == Protocol::Http;
    let first = (
        backends(),
        select(Algorithm::ALL.to_vec()),
        hash(http),
        (of(select(vec![ProxyVersion::V1, ProxyVersion::V2])), any::<bool>(), of(pool_tls())),
        retry(),
    );
    let queue = (0..=1_000_000u32, millis(1, 3_600_000)).prop_map(|(max, timeout)| Queue { max, timeout });
    let keep_alive = (0..=65_536u32, millis(100, 86_400_000)).prop_map(|(max, idle)| KeepAlive { max, idle });
    let second = (queue, of("[A-Za-z_-]{1,8}"), of(millis(100, 3_600_000)), keep_alive, health(http));
    (first, second).prop_map(
        move |(
            (backends, balance, hash, (send_proxy, multiplexed, tls), retry),
            (queue, cookie, slow_start, keep_alive, health),
        )| Pool {
            name: name.clone(),
            backends,
            balance,
            hash,
            protocol: if multiplexed && http && send_proxy.is_none() {
                HttpVersion::H2
            } else {
                HttpVersion::H1
            },
            tls: tls.filter(|_| protocol != Protocol::Udp),
            send_proxy: send_proxy.filter(|_| protocol != Protocol::Udp),
            retry,
            queue,
            sticky_cookie: cookie.filter(|_| http),
            slow_start,
            keep_alive,
            health,
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let runtime = (
        of(1..=1024usize),
        (0..=86_400_000u64).prop_map(Duration::from_millis),
        of((16u64 << 20)..=(1 << 46)),
    );
    let admin = of((1..=9999u16, any::<bool>()));
    let target = prop_oneof![
        Just(AccessTarget::Off),
        Just(AccessTarget::Stdout),
        Just(AccessTarget::Stderr),
        "/[ -~é]{1,10}[a-z]".prop_map(|path| AccessTarget::File(PathBuf::from(path))),
    ];
    let format = select(vec![AccessFormat::Json, AccessFormat::Combined, AccessFormat::Haproxy]);
    let level = select(vec![Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace]);
    let log = (target, format, level).prop_map(|(access, format, level)| Log { access, format, level });
    let names = |kind: &str| vec![format!("{kind}-one"), format!("{kind}.two")];
    let kinds =
        [(Protocol::Http, names("http")), (Protocol::Tcp, names("tcp")), (Protocol::Udp, names("udp"))];
    let listeners: Vec<_> = kinds
        .iter()
        .enumerate()
        .map(|(index, (protocol, pools))| listener(index as u16, *protocol, pools.clone()))
        .collect();
    let pools: Vec<_> = kinds
        .iter()
        .flat_map(|(protocol, pools)| pools.iter().map(|name| pool(name.clone(), *protocol)))
        .collect();
    let cache = (of((1u64 << 20)..=(1 << 46)), 1..=1_000_000u32);
    (runtime, admin, log, cache, listeners, pools).prop_map(
        |((workers, drain, memory_bytes), admin, log, cache, listeners, pools)| Config {
            runtime: Runtime { workers, drain, memory_bytes },
            admin: admin.map(|(port, token)| Admin {
                bind: SocketAddr::from(([127, 0, 0, 1], port)),
                token_file: token.then(|| PathBuf::from("/etc/weir/\"quoted\" token")),
            }),
            log,
            cache: Cache { memory_bytes: cache.0, background_fetches: cache.1 },
            listeners: listeners.into_iter().map(Arc::new).collect(),
            pools: pools.into_iter().map(Arc::new).collect(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_config_reads_back_as_the_same_config(config in config()) {
        let text = to_toml(&config);
        let again = parse("written.toml", &text).unwrap_or_else(|report| panic!("{report}\nin\n{text}"));
        // Compared part by part, so that a difference is readable.
        prop_assert_eq!(diff(&config, &again), vec![], "{}", text);
        prop_assert_eq!(config, again);
    }

    #[test]
    fn any_text_is_read_without_panic(text in "\\PC*") {
        let _ = parse("any.toml", &text);
    }
}
