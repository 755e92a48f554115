//! Tests the conversion of nginx's files.

use std::collections::BTreeMap;

use weir_config::{Config, check_text};

use crate::{Converted, Directive, DirectiveVerdict, NotConverted, SourceFiles, convert_with};

/// The configuration with which seed 001 was measured.
const SEED: &str = include_str!("seed.conf");

/// The page of the guide about a site, whose nginx.conf stands in it.
const SITE: &str = include_str!("../../../../docs/guide/site-from-nginx.md");

/// Files by path.
#[derive(Default)]
struct Given(BTreeMap<String, String>);

impl SourceFiles for Given {
    fn matching(&self, pattern: &str) -> Vec<String> {
        let whole =
            if pattern.starts_with('/') { pattern.to_owned() } else { format!("/etc/nginx/{pattern}") };
        self.0.keys().filter(|path| crate::paths::path_matches(&whole, path)).cloned().collect()
    }

    fn read(&self, path: &str) -> Result<String, String> {
        self.0.get(path).cloned().ok_or_else(|| "no such file".to_owned())
    }

    fn folder(&self) -> &str {
        "/etc/nginx"
    }
}

fn attempt(text: &str) -> Result<Converted, NotConverted> {
    convert_with(text, &Given::default())
}

/// Converts, and has what comes out checked.
fn converted(text: &str) -> (Converted, Config) {
    let converted = attempt(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let file = converted.to_toml("nginx.conf");
    let checked = check_text("weir.toml", &file).unwrap_or_else(|report| panic!("{report}\n{file}"));
    (converted, checked.config)
}

/// A server with these directives, before an upstream `app`.
fn server(text: &str) -> String {
    format!(
        "http {{ upstream app {{ server 10.0.0.1:80; server 10.0.0.2:80; }}\nserver {{ listen 80;\n{text}\n}} }}"
    )
}

fn of<'c>(converted: &'c Converted, name: &str) -> &'c Directive {
    let found = converted.directives.iter().find(|directive| directive.name.starts_with(name));
    found.unwrap_or_else(|| panic!("{name} is not in {:#?}", converted.directives))
}

fn verdict(text: &str, name: &str) -> (DirectiveVerdict, String) {
    let (converted, _) = converted(text);
    let found = of(&converted, name);
    (found.verdict, found.note.clone())
}

#[test]
fn the_file_of_the_seed_converts_with_nothing_unsupported() {
    let (converted, config) = converted(SEED);
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{:#?}", converted.directives);
    let said = SEED.lines().filter(|line| line.ends_with(';') || line.ends_with('{')).count();
    let named = converted.directives.iter().filter(|directive| directive.line > 0).count();
    assert_eq!(named, said, "each directive has one verdict");
    let [listener] = config.listeners.as_slice() else { panic!("{:?}", config.listeners) };
    assert_eq!(listener.bind, ["0.0.0.0:79".parse().unwrap()]);
    assert_eq!(listener.timeout.client_idle.as_secs(), 65);
    let route = &listener.routes[0];
    let cache = route.cache.as_ref().expect("answers are kept");
    assert_eq!(cache.ttl, Some(std::time::Duration::from_secs(3600)));
    assert_eq!(config.pools[0].backends[0].address, "127.0.0.1:81");
}

#[test]
fn the_site_of_the_guide_converts_with_nothing_unsupported_but_what_is_not_there() {
    let (_, block) = SITE.split_once("```nginx\n").expect("a block");
    let block = block.split_once("\n```").expect("its end").0;
    let mut files = Given::default();
    files.0.insert("/etc/nginx/pages/sorry.html".to_owned(), "<p>Sorry.</p>".to_owned());
    files.0.insert("/etc/nginx/users".to_owned(), "ann:$2y$04$abcdefghijklmnopqrstuv\n".to_owned());
    let converted = convert_with(&format!("http {{\n{block}\n}}\n"), &files).unwrap();
    let unsupported: Vec<&Directive> =
        converted.directives.iter().filter(|it| it.verdict == DirectiveVerdict::Unsupported).collect();
    assert!(unsupported.is_empty(), "{unsupported:#?}");
    let file = converted.to_toml("nginx.conf");
    let checked = check_text("weir.toml", &file).unwrap_or_else(|report| panic!("{report}\n{file}"));
    assert_eq!(checked.config.listeners.len(), 2, "{file}");
}

#[test]
fn each_directive_has_exactly_one_verdict() {
    let text = server(
        "server_name a b;\nproxy_set_header X-A 1;\nlocation / { proxy_pass http://app; }\nlocation /x { proxy_pass http://app; }",
    );
    let (converted, _) = converted(&text);
    let count = |name: &str| converted.directives.iter().filter(|it| it.name == name && it.line > 0).count();
    assert_eq!(
        (count("proxy_set_header"), count("proxy_pass"), count("server_name"), count("listen")),
        (1, 2, 1, 1)
    );
}

#[test]
fn verdicts_say_whether_weir_does_the_same() {
    use DirectiveVerdict::{Approximate, Exact, Unsupported};
    for (text, name, expected) in [
        ("location / { proxy_pass http://app; proxy_read_timeout 5s; }", "proxy_read_timeout", Exact),
        ("location / { proxy_pass http://app; proxy_send_timeout 5s; }", "proxy_send_timeout", Approximate),
        ("location / { proxy_pass http://app; proxy_redirect default; }", "proxy_redirect", Exact),
        ("location / { proxy_pass http://app; proxy_redirect http://a/ /; }", "proxy_redirect", Exact),
        (
            "location / { proxy_pass http://app; proxy_redirect http://$host:81/ /; }",
            "proxy_redirect",
            Approximate,
        ),
        (
            "location / { proxy_pass http://app; proxy_redirect ~^http://a/(?<b>.*) /$b; }",
            "proxy_redirect",
            Exact,
        ),
        (
            "location ~ ^/(.) { proxy_pass http://app; proxy_redirect http://a/ /$1/; }",
            "proxy_redirect",
            Unsupported,
        ),
        ("location / { proxy_pass http://app; proxy_cookie_path /a/ /; }", "proxy_cookie_path", Exact),
        (
            "location / { proxy_pass http://app; proxy_cookie_domain a.b $host; }",
            "proxy_cookie_domain",
            Exact,
        ),
        (
            "location / { proxy_pass http://app; proxy_cookie_flags ~ secure nosamesite; }",
            "proxy_cookie_flags",
            Exact,
        ),
        ("location / { proxy_pass http://app; proxy_cookie_flags a $b; }", "proxy_cookie_flags", Unsupported),
        ("location / { proxy_pass http://app; add_header X y always; }", "add_header", Exact),
        ("location / { proxy_pass http://app; add_header X y; }", "add_header", Approximate),
        ("location / { proxy_pass http://app; limit_rate 1k; }", "limit_rate", Approximate),
        ("location / { proxy_pass http://app; limit_rate 1m; limit_rate_after 500k; }", "limit_rate", Exact),
        (
            "location / { proxy_pass http://app; limit_rate 1m; limit_rate_after 500k; }",
            "limit_rate_after",
            Exact,
        ),
        ("location / { proxy_pass http://app; limit_rate $rate; }", "limit_rate", Unsupported),
        (
            "location / { proxy_pass http://app; proxy_set_header X $upstream_addr; }",
            "proxy_set_header",
            Unsupported,
        ),
        ("location / { root /srv; }", "root", Unsupported),
        ("location / { fastcgi_pass 127.0.0.1:9000; }", "fastcgi_pass", Unsupported),
        ("location / { proxy_pass http://$host; }", "proxy_pass", Unsupported),
        ("location / { proxy_pass http://app; sub_filter a b; }", "sub_filter", Unsupported),
        ("location / { proxy_pass http://app; made_up 1; }", "made_up", Unsupported),
        ("tcp_nodelay on; location / { proxy_pass http://app; }", "tcp_nodelay", Exact),
        ("location / { if (-f /x) { return 503; } proxy_pass http://app; }", "if", Unsupported),
        ("location / { return 444; }", "return", Approximate),
        ("location / { return 200 \"${host} ${env:HOME}\"; }", "return", Unsupported),
        (
            "location / { if ($request_uri ~ union) { return 403; } proxy_pass http://app; }",
            "if",
            Unsupported,
        ),
        (
            "location / { if ($request_uri ~ union) { return 301 /; } proxy_pass http://app; }",
            "if",
            Approximate,
        ),
    ] {
        let (found, note) = verdict(&server(text), name);
        assert_eq!(found, expected, "{text}: {note}");
    }
}

#[test]
fn what_refuses_clients_is_never_lost() {
    let (converted, config) = converted(&server(
        "location /a/ { deny all; proxy_pass http://app; }\nlocation /b/ { auth_basic x; proxy_pass http://app; }\n\
         location /c/ { auth_request /ask$uri; proxy_pass http://app; }\nlocation ~ (?<=x)y$ { return 403; }\n\
         location /d/ { if ($upstream_addr) { return 403; } proxy_pass http://app; }\n\
         location /e/ { access_by_lua_file /a.lua; proxy_pass http://app; }\nlocation / { proxy_pass http://app; }",
    ));
    let shown: Vec<String> = config.listeners[0]
        .routes
        .iter()
        .map(|route| {
            let paths: String = route.path.iter().map(ToString::to_string).collect();
            match &route.action {
                weir_config::RouteAction::Respond(respond) => format!("{paths} {}", respond.status),
                weir_config::RouteAction::Redirect(redirect) => format!("{paths} {}", redirect.status),
                weir_config::RouteAction::Pool(pool) => format!("{paths} {pool}"),
            }
        })
        .filter(|shown| !shown.ends_with("301"))
        .collect();
    assert_eq!(shown, ["~y$ 403", "/a/* 403", "/b/* 403", "/c/* 403", "/d/* 403", "/e/* 403", "/* app"]);
    assert!(of(&converted, "auth_basic").note.contains("ANSWERED WITH 403"));
    assert!(of(&converted, "auth_request").note.contains("ANSWERED WITH 403"));
    assert!(of(&converted, "if").note.contains("CLOSED"));
}

#[test]
fn defaults_that_differ_are_said() {
    let (converted, _) = converted(&server("location / { proxy_pass http://app; }"));
    for name in [
        "client_max_body_size",
        "proxy_set_header Host",
        "proxy_next_upstream",
        "keepalive",
        "merge_slashes",
        "server",
        "access_log",
    ] {
        let found = converted.directives.iter().find(|it| it.name == name && it.line == 0);
        assert!(found.is_some(), "{name} is not said in {:#?}", converted.directives);
    }
}

/// Rules may not change these, so a route with one was refused by the check and answered with 501.
#[test]
fn a_location_that_sets_a_field_of_the_connection_still_reaches_its_pool() {
    for (field, expected) in [
        ("Proxy \"\"", DirectiveVerdict::Exact),
        ("Early-Data $ssl_early_data", DirectiveVerdict::Approximate),
        ("Proxy-Authorization \"\"", DirectiveVerdict::Approximate),
        ("Sec-WebSocket-Key $http_sec_websocket_key", DirectiveVerdict::Approximate),
    ] {
        let text = server(&format!("location / {{ proxy_set_header {field}; proxy_pass http://app; }}"));
        let (converted, config) = converted(&text);
        assert_eq!(of(&converted, "proxy_set_header").verdict, expected, "{field}");
        assert_eq!(config.pools.len(), 1, "{}", converted.body);
        assert!(!converted.body.contains("501"), "{}", converted.body);
    }
}

#[test]
fn upstreams_are_pools() {
    let (_, config) = converted(
        "http { upstream app { least_conn; server 10.0.0.1:8080 weight=2 max_fails=3 fail_timeout=20s; server 10.0.0.2:8080 backup; \
         server 10.0.0.3:8080 down; keepalive 16; }\nserver { listen 80; location / { proxy_pass http://app; \
         proxy_next_upstream error timeout http_503 non_idempotent; proxy_next_upstream_tries 2; } } }",
    );
    let pool = &config.pools[0];
    let backends: Vec<(&str, u32, bool)> = pool
        .backends
        .iter()
        .map(|backend| (backend.address.as_str(), backend.weight, backend.backup))
        .collect();
    assert_eq!(
        backends,
        [("10.0.0.1:8080", 2, false), ("10.0.0.2:8080", 1, true), ("10.0.0.3:8080", 0, false)]
    );
    assert_eq!(pool.balance.word(), "least-connections");
    assert_eq!(pool.keep_alive.max, 16);
    let passive = pool.health.passive.as_ref().expect("it is on");
    assert_eq!((passive.errors, passive.within.as_secs(), passive.eject.as_secs()), (3, 20, 20));
    let retry = &config.listeners[0].routes[0].retry;
    assert_eq!((retry.attempts, retry.non_idempotent), (Some(1), Some(true)));
}

#[test]
fn a_listener_has_the_tls_of_its_servers() {
    let text = "http { ssl_protocols TLSv1.3; server { listen 443 ssl http2 default_server; listen [::]:443 ssl http2; server_name a; \
                ssl_certificate a.pem; ssl_certificate_key a.key; location / { return 200 a; } }\n\
                server { listen 443 ssl; listen [::]:443 ssl; server_name b; ssl_certificate b.pem; ssl_certificate_key b.key; \
                ssl_client_certificate ca.pem; ssl_verify_client on; location / { return 200 b; } } }";
    let (converted, config) = converted(text);
    let [listener] = config.listeners.as_slice() else { panic!("{:?}", config.listeners) };
    assert_eq!((listener.name.as_str(), listener.bind.len()), ("https", 2));
    let tls = listener.tls.as_ref().expect("it is on");
    assert_eq!(tls.certificates.len(), 2);
    assert_eq!(tls.client_auth, weir_config::ClientAuth::Optional, "the other server asks for none");
    assert_eq!(tls.min_version, weir_config::TlsVersion::V13);
    assert!(converted.body.contains("respond = { status = 400 }"), "{}", converted.body);
    assert_eq!(converted.files.len(), 1, "a map says who has shown a certificate");
}

#[test]
fn mail_and_what_is_not_known_are_told_with_all_that_is_in_them() {
    let text = format!(
        "mail {{ server {{ listen 25; protocol smtp; }} }}\n{}",
        server("location / { proxy_pass http://app; }")
    );
    let (converted, _) = converted(&text);
    let unsupported =
        converted.directives.iter().filter(|it| it.line == 1 && it.verdict == DirectiveVerdict::Unsupported);
    assert_eq!(unsupported.count(), 4, "{:#?}", converted.directives);
}

#[test]
fn a_file_without_a_server_is_refused() {
    let refused = attempt("events { }\nhttp { gzip on; }\n").unwrap_err();
    assert!(refused.message.contains("no server") && refused.hint.contains("nginx -T"), "{refused}");
}

#[test]
fn a_file_that_can_not_be_read_is_told_loudly() {
    let (found, note) = verdict(
        &server("include /etc/nginx/blocked-addresses;\nlocation / { proxy_pass http://app; }"),
        "include",
    );
    assert_eq!(found, DirectiveVerdict::Unsupported);
    assert!(note.contains("LEFT OUT"), "{note}");
}

/// A long file with some of everything.
const LARGE: &str = r#"
worker_processes auto;
events { worker_connections 1024; }
http {
    map $http_upgrade $connection_upgrade { default upgrade; '' close; }
    map $host $backend { hostnames; default app; *.x.example other; ~^y(?<n>\d+)\. app; }
    geo $near { default 0; 10.0.0.0/8 1; }
    limit_req_zone $binary_remote_addr zone=z:1m rate=10r/s;
    limit_conn_zone $binary_remote_addr zone=c:1m;
    log_format main '$remote_addr - $remote_user [$time_local] "$request" $status';
    access_log /var/log/nginx/access.log main;
    proxy_cache_path /tmp/c keys_zone=k:1m max_size=1g;
    upstream app { zone a 64k; hash $cookie_s consistent; server 10.0.0.1; server unix:/run/a.sock weight=3 backup; keepalive 8; }
    upstream other { ip_hash; server b.example:80 resolve; server 10.0.0.3:80 max_conns=5 down; }
    server { listen 80 default_server; listen [::]:80; server_name _; return 444; }
    server {
        listen 443 ssl http2; server_name shop.example *.x.example ~^y\d+\.example$;
        ssl_certificate a.pem; ssl_certificate_key a.key; ssl_client_certificate ca.pem; ssl_verify_client optional;
        set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on;
        if ($ssl_client_verify != SUCCESS) { return 403; }
        rewrite ^/old/(.*)$ /img/$1 last;
        error_page 404 /404.html;
        location = / { return 301 /start; }
        location ^~ /img/ { proxy_pass https://10.0.0.9:8443/i/; proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem; }
        location ~* \.(png|jpg)$ { expires 30d; proxy_cache k; proxy_cache_valid 200 1h; proxy_pass http://$backend; }
        location /api/ { limit_req zone=z burst=5; limit_conn c 3; rewrite ^/api/(.*)$ /$1 break; proxy_pass http://app; }
        location /grpc/ { grpc_pass grpc://10.0.0.8:50051; }
        location /ws { proxy_pass http://other; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; }
        location / { satisfy any; allow 10.0.0.0/8; deny all; auth_basic "x"; auth_basic_user_file users; proxy_pass http://app; }
        location @named { proxy_pass http://app; }
    }
}
stream { map $ssl_preread_server_name $n { a.example 10.0.0.1:443; default 10.0.0.2:443; } server { listen 8443; ssl_preread on; proxy_pass $n; } }
"#;

#[test]
fn a_large_file_converts_into_what_weir_takes() {
    let (converted, config) = converted(LARGE);
    let bad: Vec<&Directive> = converted
        .directives
        .iter()
        .filter(|it| it.verdict == DirectiveVerdict::Unsupported && it.name != "error_page")
        .collect();
    assert!(bad.is_empty(), "{bad:#?}\n{}", converted.body);
    assert_eq!(config.listeners.len(), 3);
}

/// Random numbers that are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(most.max(1)).unwrap_or(1)).unwrap_or(0)
    }
}

/// A text with something in it changed.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.below(chars.len());
        match random.below(6) {
            0 => chars.truncate(at),
            1 => drop(chars.drain(at..(at + random.below(40)).min(chars.len()))),
            2 => {
                let odd = [
                    '{', '}', ';', '"', '\'', '\\', '$', '(', ')', '[', '*', '~', '\0', 'ü', '\n', '%', ':',
                    '/',
                ];
                chars.insert(at, odd[random.below(odd.len())]);
            }
            3 => {
                let from = random.below(chars.len());
                let piece: Vec<char> = chars[from..(from + random.below(60)).min(chars.len())].to_vec();
                chars.splice(at..at, piece);
            }
            4 => {
                let other = random.below(chars.len());
                if at < chars.len() && other < chars.len() {
                    chars.swap(at, other);
                }
            }
            _ => {
                if let Some(c) = chars.get_mut(at) {
                    *c = char::from(u8::try_from(32 + random.below(95)).unwrap_or(b' '));
                }
            }
        }
        if chars.is_empty() {
            break;
        }
    }
    chars.into_iter().collect()
}

#[test]
fn whatever_a_file_says_it_is_converted_or_refused() {
    // The environment is not read by this crate; its tests may.
    #[expect(clippy::disallowed_methods)]
    let seed: u64 = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x9E37_79B9);
    println!("WEIR_SEED={seed}");
    let mut random = Random(seed | 1);
    let (_, block) = SITE.split_once("```nginx\n").expect("a block");
    let site = format!("http {{\n{}\n}}\n", block.split_once("\n```").expect("its end").0);
    for round in 0..150 {
        let base = [LARGE, SEED, &site][round % 3];
        let text = mutated(base, &mut random);
        let Ok(converted) = attempt(&text) else { continue };
        let file = converted.to_toml("nginx.conf");
        if let Err(report) = check_text("weir.toml", &file) {
            panic!("round {round} of WEIR_SEED={seed}: Weir does not take what came out\n{report}\n{text}");
        }
    }
}

#[test]
fn a_group_with_the_slash_of_the_path_is_rewritten() {
    for text in [
        "location /api/ { rewrite ^/api(/.*)$ $1 break; proxy_pass http://app; }",
        "location /api { rewrite ^/api(/.*)$ $1 break; proxy_pass http://app; }",
    ] {
        let (converted, _) = converted(&server(text));
        assert!(!converted.body.contains("501"), "{}", converted.body);
        assert!(converted.body.contains("rewrite = { "), "{}", converted.body);
    }
    let (other, _) = converted(&server("location / { rewrite ^/a(/b|/c) $1 break; proxy_pass http://app; }"));
    assert!(of(&other, "location").note.contains("501"), "{:#?}", other.directives);
}

#[test]
fn what_stands_in_a_location_that_is_refused_has_no_effect() {
    let text = server(
        "location / { rewrite ^/a(/b|/c) $1 break; add_header X-A b; proxy_read_timeout 5s; proxy_pass http://app; }",
    );
    let (converted, _) = converted(&text);
    for name in ["add_header", "proxy_read_timeout", "proxy_pass"] {
        let told = of(&converted, name);
        assert!(told.verdict == DirectiveVerdict::Unsupported && told.note.contains("501"), "{name}: {told}");
    }
}

#[test]
fn fields_that_weir_writes_itself_are_not_taken_out() {
    let text =
        server("location / { proxy_set_header X-Forwarded-Proto $nobody_knows; proxy_pass http://app; }");
    let (converted, _) = converted(&text);
    assert!(!converted.body.contains("remove_request_header"), "{}", converted.body);
    assert!(of(&converted, "proxy_set_header").note.contains("what Weir writes itself"));
}

#[test]
fn values_with_variables_divide_routes() {
    let (converted, config) = converted(
        "map $http_x_forwarded_proto $proto { default $scheme; HTTPS https; ~^ws ws; }\n\
         map $http_accept $chosen { default http://10.0.0.1; application/json http://10.0.0.2; }\n\
         map $request_method $target { default $chosen; POST http://10.0.0.3; }\n\
         server { listen 80; location / { proxy_set_header X-Proto $proto; proxy_pass http://10.0.0.9; }\n\
         location /by/ { proxy_pass $target; } }",
    );
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{}", converted.to_toml("nginx.conf"));
    assert!(!converted.body.contains("501"), "{}", converted.body);
    let proto = "header = { x-forwarded-proto = \"~(?i)^HTTPS$\" }\npool = \"10.0.0.9\"";
    assert!(converted.body.contains(proto), "{}", converted.body);
    assert!(converted.body.contains("x-proto = \"$scheme\""), "{}", converted.body);
    assert!(config.listeners[0].routes.len() > 6, "{}", converted.body);
}

#[test]
fn a_server_with_ssl_on_has_tls_at_all_of_its_addresses() {
    let (converted, _) = converted(
        "server { listen 443; ssl on; ssl_certificate /c.pem; ssl_certificate_key /c.key; location / { proxy_pass http://10.0.0.9; } }",
    );
    assert!(converted.body.contains("[listener.https.tls]"), "{}", converted.body);
}

#[test]
fn a_field_without_always_is_not_on_errors_of_the_config() {
    let (converted, _) = converted(&server(
        "add_header X-A a; add_header X-B b always; location /a/ { return 404; } location /b/ { return 200 x; }",
    ));
    assert_eq!(converted.body.matches("x-a").count(), 1, "{}", converted.body);
    assert!(converted.body.matches("x-b").count() > 2, "{}", converted.body);
}

#[test]
fn an_expression_of_proxy_redirect_holds_behind_the_url_of_refresh_too() {
    for (rule, expected, written) in [
        (
            "~^http://([a-z]+)\\.in/(.*)$ https://$1.out/$2",
            DirectiveVerdict::Exact,
            r#"{ name = "refresh", match = "~^((?i:[^=]*url=))(?:http://([a-z]+)\\.in/(.*)$)", to = "$1https://$2.out/$3" }"#,
        ),
        (
            "~*/old/(?<rest>.*) /new/$rest",
            DirectiveVerdict::Exact,
            r#"{ name = "refresh", match = "~^((?i:[^=]*url=)).*?(?i:/old/(.*))", to = "$1/new/$2" }"#,
        ),
        (
            "~^http://app/(.*) /$1",
            DirectiveVerdict::Exact,
            r#"match = "~^((?i:[^=]*url=))(?:http://app//*(.*))", to = "$1/$2" }"#,
        ),
        ("~^http://a|^http://b /", DirectiveVerdict::Approximate, ""),
        ("~(^|x)/a /b", DirectiveVerdict::Approximate, ""),
    ] {
        let text = server(&format!("location / {{ proxy_pass http://app; proxy_redirect {rule}; }}"));
        let (converted, _) = converted(&text);
        let told = of(&converted, "proxy_redirect");
        assert_eq!(told.verdict, expected, "{rule}: {told}");
        assert!(converted.body.contains(written), "{rule}: {}", converted.body);
        assert_eq!(converted.body.contains("\"refresh\""), !written.is_empty(), "{}", converted.body);
    }
}
