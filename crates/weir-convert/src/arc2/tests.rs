//! Tests the conversion of ARC2's files.

use crate::{Converted, Directive, DirectiveVerdict, convert};
use weir_config::{AccessTarget, Config, HostPattern, PathPattern, Respond, RouteAction, check_text};

/// The configuration with which seed 001 was measured.
const SEED: &str = include_str!("seed.toml");

fn converted(text: &str) -> (Converted, Config) {
    let converted = convert(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let file = converted.to_toml("arc2.toml");
    let checked = check_text("weir.toml", &file).unwrap_or_else(|report| panic!("{report}\n{file}"));
    assert!(checked.warnings.problems.is_empty(), "{}\n{file}", checked.warnings);
    (converted, checked.config)
}

fn rule(keys: &str) -> String {
    format!(
        "add_rate_limiting = false\nadd_logging = false\n[[proxy_rules]]\ndomain = \"shop.example\"\nmax_age_seconds = 60\n\
         forward_addr = \"app.internal\"\nforward_port_http = 8080\nrule_type = \"Blacklist\"\n{keys}\n"
    )
}

fn of<'c>(converted: &'c Converted, name: &str) -> &'c Directive {
    let found = converted.directives.iter().find(|directive| directive.name.ends_with(name));
    found.unwrap_or_else(|| panic!("{name} is not in {:#?}", converted.directives))
}

#[test]
fn the_file_of_the_seed_converts_with_nothing_unsupported() {
    let (converted, config) = converted(SEED);
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{:#?}", converted.directives);
    let said = SEED.lines().filter(|line| line.contains(" = ")).count();
    let named = converted.directives.iter().filter(|directive| directive.line > 0).count();
    assert_eq!(named, said, "each directive has one verdict");
    assert_eq!(of(&converted, "max_age_seconds").line, 12);
    let [listener] = config.listeners.as_slice() else { panic!("{:?}", config.listeners) };
    assert_eq!(listener.bind, ["0.0.0.0:80".parse().unwrap()]);
    let [route] = listener.routes.as_slice() else { panic!("{:?}", listener.routes) };
    assert_eq!(route.host, [HostPattern::Exact("localhost".to_owned())]);
    assert!(route.path.is_empty(), "every path begins with a slash: {:?}", route.path);
    assert_eq!(route.action, RouteAction::Pool("localhost".to_owned()));
    let cache = route.cache.as_ref().expect("answers are kept");
    assert_eq!(cache.ttl, Some(std::time::Duration::from_secs(3600)));
    assert!(!cache.ignore_query);
    assert_eq!(config.pools[0].backends[0].address, "127.0.0.1:81");
}

#[test]
fn domains_that_are_not_logged_leave_no_line_beside_those_that_are() {
    let text = |quiet: bool| {
        let rule = |domain: &str, is_logged: bool| {
            format!(
                "[[proxy_rules]]\ndomain = \"{domain}\"\nmax_age_seconds = 60\nforward_addr = \"app.internal\"\n\
                 forward_port_http = 8080\nrule_type = \"Blacklist\"\nenable_logging = {is_logged}\n"
            )
        };
        format!(
            "add_rate_limiting = false\nadd_logging = true\n{}{}",
            rule("said.example", !quiet),
            rule("quiet.example", false)
        )
    };
    let (_, config) = converted(&text(false));
    assert_eq!(config.log.access, AccessTarget::Stdout);
    let logged: Vec<bool> = config.listeners[0].routes.iter().map(|route| route.access_log).collect();
    assert_eq!(logged, [true, false]);
    let (all_quiet, config) = converted(&text(true));
    assert_eq!(config.log.access, AccessTarget::Off);
    assert!(!all_quiet.body.contains("access_log"), "{}", all_quiet.body);
}

#[test]
fn a_feature_needs_its_master_switch_and_that_of_the_domain() {
    for (master, own) in [(true, true), (true, false), (false, true), (false, false)] {
        let text = format!(
            "add_caching = {master}\nadd_sql_injection_protection = {master}\nenable_compression = {master}\n{}",
            rule(&format!("enable_sql_injection_protection = {own}\nenable_compression = {own}"))
        );
        let body = convert(&text).unwrap().body;
        assert_eq!(body.contains("compress = "), master && own);
        assert_eq!(body.contains("sqli = \"block\""), master && own);
        assert_eq!(body.contains("cache = "), master);
    }
}

#[test]
fn an_allow_list_refuses_the_rest_and_a_deny_list_what_it_names() {
    let (_, config) = converted(&rule("paths = [\"/admin\", \"private\"]"));
    let [refused, served] = config.listeners[0].routes.as_slice() else {
        panic!("{:?}", config.listeners[0].routes)
    };
    let prefix = |text: &str| PathPattern::Prefix(text.to_owned());
    assert_eq!(refused.path, [prefix("/admin"), prefix("/private")]);
    assert!(matches!(refused.action, RouteAction::Respond(Respond { status: 403, .. })));
    assert!(served.path.is_empty() && served.cache.is_some());
    let allow = rule("paths = [\"/shop/\"]").replace("Blacklist", "Whitelist");
    let (_, config) = converted(&allow);
    let [served, refused] = config.listeners[0].routes.as_slice() else {
        panic!("{:?}", config.listeners[0].routes)
    };
    assert_eq!(served.path, [prefix("/shop/")]);
    assert!(served.cache.is_some());
    assert!(
        matches!(refused.action, RouteAction::Respond(Respond { status: 403, .. }))
            && refused.path.is_empty()
    );
}

fn path_rule(path: &str, kind: &str, of: &str, seconds: u64) -> String {
    format!(
        "[[proxy_rules.path_rules]]\npath = \"{path}\"\nmatch_type = \"{kind}\"\nrule_type = \"{of}\"\nmax_age_seconds = {seconds}\n"
    )
}

#[test]
fn path_rules_are_routes_in_their_order_with_every_match_type() {
    let rules = [
        path_rule("/a", "Equals", "Whitelist", 5),
        path_rule("/static/", "StartsWith", "Whitelist", 0),
        path_rule(".php", "EndsWith", "Blacklist", 5),
        path_rule("/api/", "Contains", "Whitelist", 7),
    ];
    let (converted, config) = converted(&rule(&rules.concat()));
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{:#?}", converted.directives);
    let routes = &config.listeners[0].routes;
    let shown: Vec<String> =
        routes.iter().map(|route| route.path.iter().map(ToString::to_string).collect()).collect();
    assert_eq!(shown, ["/a", "/static/*", "*.php", "*/api/*", ""]);
    let ttl =
        |index: usize| routes[index].cache.as_ref().and_then(|cache| cache.ttl).map(|ttl| ttl.as_secs());
    assert_eq!([ttl(0), ttl(1), ttl(3), ttl(4)], [Some(5), None, Some(7), Some(60)]);
    assert!(matches!(routes[2].action, RouteAction::Respond(Respond { status: 403, .. })));
}

#[test]
fn a_rule_for_everything_but_one_path_leaves_that_path_to_what_follows() {
    let rules =
        [path_rule("/open", "DoesNotEqual", "Blacklist", 0), path_rule("/o", "StartsWith", "Whitelist", 9)];
    let (_, config) = converted(&rule(&rules.concat()));
    let [open, rest] = config.listeners[0].routes.as_slice() else {
        panic!("{:?}", config.listeners[0].routes)
    };
    assert_eq!(open.path, [PathPattern::Exact("/open".to_owned())]);
    assert_eq!(open.cache.as_ref().and_then(|cache| cache.ttl).map(|ttl| ttl.as_secs()), Some(9));
    assert!(matches!(rest.action, RouteAction::Respond(Respond { status: 403, .. })) && rest.path.is_empty());
    let (converted, config) = converted(&rule(&path_rule("/open/", "DoesNotContain", "Blacklist", 0)));
    assert_eq!(config.listeners[0].routes[0].path, [PathPattern::Contains("/open/".to_owned())]);
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0);
}

#[test]
fn user_agents_are_refused_by_every_match_type() {
    let agents: String = ["Equals", "StartsWith", "EndsWith", "Contains", "DoesNotEqual", "DoesNotContain"]
        .map(|kind| {
            format!("[[proxy_rules.disallowed_user_agents]]\nuser_agent = \"Bot\"\nmatch_type = \"{kind}\"\n")
        })
        .concat();
    let converted = convert(&rule(&agents)).unwrap();
    let list = "deny_user_agent = [\"Bot\", \"Bot*\", \"*Bot\", \"*Bot*\", \"!Bot\", \"!*Bot*\"]\n";
    assert!(converted.body.contains(list), "{}", converted.body);
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0);
}

#[test]
fn locations_are_chosen_by_priority_weight_or_speed() {
    let locations = "[[proxy_rules.routing_rules.routing_locations]]\nforward_ipv4 = \"10.0.0.2\"\nforward_port_http = 80\npriority = 20\n\
                     [[proxy_rules.routing_rules.routing_locations]]\nforward_ipv6 = \"fd00::1\"\nforward_port_https = 443\nprimary = true\npriority = 30\n";
    for (method, balance) in
        [("Priority", "first"), ("Weighted", "round-robin"), ("Performance", "least-time")]
    {
        let routing = format!(
            "[proxy_rules.routing_rules]\nrouting_method = \"{method}\"\nhttps_only = false\nenable_health_checks = true\n\
             health_check_interval = 5\nhealth_check_path = \"/healthz\"\n{locations}"
        );
        let (converted, config) = converted(&rule(&routing));
        assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{:#?}", converted.directives);
        let pool = &config.pools[0];
        assert_eq!(pool.balance.word(), balance);
        let addresses: Vec<_> =
            pool.backends.iter().map(|backend| (backend.address.as_str(), backend.weight)).collect();
        let expected = match method {
            "Priority" => [("[fd00::1]:443", 1), ("10.0.0.2:80", 1)],
            "Weighted" => [("10.0.0.2:80", 20), ("[fd00::1]:443", 30)],
            _ => [("10.0.0.2:80", 1), ("[fd00::1]:443", 1)],
        };
        assert_eq!(addresses, expected);
        assert!(pool.tls.is_some(), "one of them is spoken to with TLS");
        assert_eq!(pool.health.interval.as_secs(), 5);
        assert!(matches!(&pool.health.check, weir_config::Check::Http(probe) if probe.path == "/healthz"));
    }
}

#[test]
fn certificates_are_got_where_somebody_is_named_for_them() {
    let text = format!(
        "lets_encrypt_contact_email = \"ops@shop.example\"\nlistening_port_https = 8443\n{}",
        rule(
            "[proxy_rules.routing_rules]\nrouting_method = \"Priority\"\nrouting_locations = []\nhttps_only = true\nenable_health_checks = false\nhealth_check_interval = 5\n"
        )
    );
    let (_, config) = converted(&text);
    let [web, secure] = config.listeners.as_slice() else { panic!("{:?}", config.listeners) };
    assert!(
        matches!(&web.routes[0].action, RouteAction::Redirect(redirect) if redirect.to.to_string() == "https://$host$path$query")
    );
    assert_eq!(secure.bind, ["0.0.0.0:8443".parse().unwrap()]);
    let acme = secure.tls.as_ref().and_then(|tls| tls.acme.first()).unwrap();
    assert_eq!(acme.domains, ["shop.example"]);
    assert_eq!(secure.routes[0].action, RouteAction::Pool("shop.example".to_owned()));
}

#[test]
fn what_has_no_place_or_is_not_known_is_said_with_its_line() {
    let text = format!(
        "ip_ttl = 64\nrecv_buffer_size = 4096\nmade_up = 1\nlistening_port_http = \"80\"\nproxy_timeout = 7\nproxy_keepalive_sec = 9\n{}",
        rule("enable_minification = true\nenable_webp_transformation = false")
    );
    let (converted, config) = converted(&text);
    for (name, line) in [
        ("ip_ttl", 1),
        ("recv_buffer_size", 2),
        ("made_up", 3),
        ("listening_port_http", 4),
        ("enable_minification", 15),
    ] {
        let directive = of(&converted, name);
        assert_eq!((directive.verdict, directive.line), (DirectiveVerdict::Unsupported, line), "{directive}");
    }
    assert_eq!(of(&converted, "enable_webp_transformation").verdict, DirectiveVerdict::Exact);
    assert_eq!(config.listeners[0].timeout.backend.as_secs(), 7);
    assert_eq!(config.pools[0].keep_alive.idle.as_secs(), 9);
    let file = converted.to_toml("arc2.toml");
    assert!(file.contains("#   unsupported   line 3  made_up: "), "{file}");
}

#[test]
fn a_file_that_is_no_toml_is_refused_with_its_line() {
    let refused = convert("listening_port_http = 80\n[[proxy_rules]\n").unwrap_err();
    assert!(refused.message.starts_with("line 2 is not TOML"), "{refused}");
}

#[test]
fn a_value_of_another_kind_says_what_was_expected_and_what_was_found() {
    let (converted, _) = converted(&rule("enable_logging = \"yes\"\npaths = \"/\"\nenable_loging = true\n"));
    for (name, note) in [
        (
            "enable_logging",
            "this is a text, expected `true` or `false`: left out, as if the file did not have the key",
        ),
        (
            "].paths",
            "this is a text, expected a list of texts: left out, as if the file did not have the key",
        ),
        ("enable_loging", "no key of ARC2's: left out"),
    ] {
        let directive = of(&converted, name);
        assert_eq!(
            (directive.verdict, directive.note.as_str()),
            (DirectiveVerdict::Unsupported, note),
            "{name}"
        );
    }
}

#[test]
fn the_name_of_the_source_can_not_end_its_comment() {
    let converted = convert(SEED).unwrap();
    let file = converted.to_toml("arc2.toml\nlistener = 1");
    assert!(check_text("weir.toml", &file).is_ok(), "{file}");
}
