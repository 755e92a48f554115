//! Maps from files: in values, conditions and the choice of a pool, and what happens when files change
//! (threats J12 and J13).

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use serde_json::Value;
use weir_tests::dialogue::{
    After, Backend, NO_HEALTH, Setup, Signal, Weir, one_pool, run_tool, until, weir_binary,
};

/// Says its name, what it was asked for, and the field of the map.
fn named(name: &'static str) -> Backend {
    Backend::serving(move |request, wire| {
        let tier = request.fields.one("x-tier").unwrap_or("none").to_owned();
        wire.answers(200, &[("x-tier-seen", &tier)], format!("{name} {}", request.target));
        After::Keep
    })
}

const CONFIG: &str = r#"
[map.tenants]
file = "@dir/tenants.map"
key = "$host"
default = "none"

[map.moved]
file = "@dir/moved.map"
kind = "prefix"
key = "$path"

[map.places]
file = "@dir/places.map"
kind = "network"
key = "$client_ip"

[listener.web]
bind = "@web"
accept_proxy = ["127.0.0.0/8"]
set_request_header = { x-tier = "$map.places" }

[[listener.web.route]]
name = "moved"
map = { moved = "*" }
redirect = { to = "$map.moved", status = 301 }

[[listener.web.route]]
name = "guests"
path = "/admin/*"
not = { map = { places = "office*" } }
respond = { status = 403 }

[[listener.web.route]]
name = "tenants"
pool = "app"
pool_map = { map = "tenants", pools = ["gold", "silver"] }
rate_limit = { rate = "1000/s", burst = 1000, key = "$map.tenants" }

[pool.app]
backends = ["@app"]
health = "off"
[pool.gold]
backends = ["@gold"]
health = "off"
[pool.silver]
backends = ["@silver"]
health = "off"
fallback_pool = "gold"
"#;

const TENANTS: &str = "# who pays for what\nshop.test gold\nCafe.Test  silver\nodd.test platinum\n";
const MOVED: &str = "/old https://new.test/\n/old/blog https://blog.test/start?a=b\n";
const PLACES: &str = "10.0.0.0/8 office\n10.66.0.0/16 guests\n2001:db8::/32 office-six\n";

struct House {
    weir: Weir,
    _backends: [Backend; 3],
}

fn start() -> House {
    let backends = [named("app"), named("gold"), named("silver")];
    let weir = Setup::of(CONFIG)
        .with("app", backends[0].address())
        .with("gold", backends[1].address())
        .with("silver", backends[2].address())
        .with_file("tenants.map", TENANTS)
        .with_file("moved.map", MOVED)
        .with_file("places.map", PLACES)
        .start();
    House { weir, _backends: backends }
}

impl House {
    /// Status, `location`, the tier that the backend was told, and the body.
    fn asks(&self, client: &str, host: &str, path: &str) -> (u16, String, String, String) {
        let mut wire = self.weir.client("web");
        let (family, own) =
            if client.contains(':') { ("TCP6", "2001:db8::80") } else { ("TCP4", "192.0.2.80") };
        wire.sends(format!(
            "PROXY {family} {client} {own} 5555 80\r\nGET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        ));
        let answer = wire.receives_response();
        let field = |name| answer.fields.one(name).unwrap_or_default().to_owned();
        (answer.status, field("location"), field("x-tier-seen"), answer.text())
    }

    fn served_by(&self, host: &str) -> String {
        let body = self.asks("192.0.2.1", host, "/").3;
        body.split(' ').next().unwrap_or_default().to_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.weir.dir().join(name)
    }

    /// Waits until the backend of a host is this one.
    fn comes_to_serve(&self, host: &str, pool: &str) {
        until(&format!("{host} to go to {pool}\n{}", self.weir.story()), || {
            (self.served_by(host) == pool).then_some(())
        });
    }

    fn versions(&self, map: &str, result: &str) -> f64 {
        self.weir.metric("weir_map_versions_total", &[("map", map), ("result", result)])
    }
}

#[test]
fn a_map_says_the_pool_a_field_a_redirect_and_who_is_kept_out() {
    let house = start();
    for (host, pool) in [
        ("shop.test", "gold"),
        ("SHOP.test:80", "gold"),
        ("cafe.test", "silver"),
        ("odd.test", "app"),
        ("nobody.test", "app"),
    ] {
        assert_eq!(house.served_by(host), pool, "{host}");
    }
    let moved =
        |path: &str| (house.asks("192.0.2.1", "a.test", path).0, house.asks("192.0.2.1", "a.test", path).1);
    assert_eq!(moved("/old"), (301, "https://new.test/".to_owned()));
    assert_eq!(moved("/old/blog/1"), (301, "https://blog.test/start?a=b".to_owned()));
    assert_eq!(moved("/new").0, 200);
    let tier = |client: &str, path: &str| {
        let (status, _, tier, _) = house.asks(client, "a.test", path);
        (status, tier)
    };
    assert_eq!(tier("10.1.2.3", "/admin/"), (200, "office".to_owned()));
    assert_eq!(tier("2001:db8::7", "/admin/"), (200, "office-six".to_owned()));
    assert_eq!(tier("10.66.1.1", "/admin/").0, 403);
    assert_eq!(tier("192.0.2.1", "/admin/").0, 403);
    // No field is added for a client that no line covers.
    assert_eq!(tier("192.0.2.1", "/"), (200, "none".to_owned()));
}

#[test]
fn explain_and_the_api_show_what_was_looked_up_and_the_line_that_has_it() {
    let house = start();
    let url = format!("http://{}/a", house.weir.address("web"));
    let words = ["explain", "http", "--header", "host: Shop.test", "--from", "10.66.0.9", "GET", &url];
    let explained = house.weir.command(&words).succeeded().to_owned();
    let dir = house.weir.dir().display().to_string();
    for expected in [
        format!("map      tenants of `Shop.test`: `gold`, by `shop.test` ({dir}/tenants.map:2)"),
        "map      moved of `/a`: ``, no line has it".to_owned(),
        format!("map      places of `10.66.0.9`: `guests`, by `10.66.0.0/16` ({dir}/places.map:2)"),
        "moved: a map says nothing of it".to_owned(),
        "forward to pool gold".to_owned(),
        "split    by map tenants: gold, silver, the rest as the route says".to_owned(),
        "x-tier: guests".to_owned(),
    ] {
        assert!(explained.contains(&expected), "{expected}\n{explained}");
    }
    let admin = house.weir.admin();
    let maps = admin.reads("/v1/maps").json();
    assert_eq!(maps["maps"][0]["line_count"], 3, "{maps}");
    let said = admin.reads("/v1/maps/tenants?key=CAFE.TEST").json();
    assert_eq!((said["value"].as_str(), said["key"].as_str()), (Some("silver"), Some("cafe.test")), "{said}");
    let said = admin.reads("/v1/maps/tenants?key=x").json();
    assert_eq!((said["value"].as_str(), &said["line"]), (Some("none"), &Value::Null));
    let said = admin.reads("/v1/maps/places?limit=1").json();
    assert_eq!(said["lines"].as_array().map(Vec::len), Some(1), "{said}");
    assert_eq!(admin.reads("/v1/maps/nothing").status(), 404);
}

#[test]
fn when_a_pool_that_a_map_names_can_not_serve_its_own_fallback_does() {
    let house = start();
    assert_eq!(house.served_by("cafe.test"), "silver");
    let silver = house.weir.address("silver").to_string();
    assert_eq!(house.weir.command(&["drain", "silver", &silver]).code, 0);
    assert_eq!(house.served_by("cafe.test"), "gold");
}

#[test]
fn a_file_that_changes_is_taken_over_by_itself_however_it_is_changed() {
    let house = start();
    let path = house.file("tenants.map");
    assert_eq!(house.served_by("shop.test"), "gold");
    // The file is rewritten in place.
    fs::write(&path, TENANTS.replace("shop.test gold", "shop.test silver")).expect("written");
    house.comes_to_serve("shop.test", "silver");
    // Another file takes its place.
    fs::write(house.file("next"), TENANTS.replace("odd.test platinum", "odd.test gold")).expect("written");
    fs::rename(house.file("next"), &path).expect("renamed");
    house.comes_to_serve("odd.test", "gold");
    assert_eq!(house.served_by("shop.test"), "gold");
    // As Kubernetes does: the file is a link into a folder that is a link.
    for (folder, pool) in [("v1", "silver"), ("v2", "gold")] {
        fs::create_dir(house.file(folder)).expect("made");
        fs::write(house.file(folder).join("tenants.map"), format!("new.test {pool}\n")).expect("written");
    }
    symlink("v1", house.file("..data")).expect("linked");
    symlink("..data/tenants.map", house.file("linked")).expect("linked");
    fs::rename(house.file("linked"), &path).expect("renamed");
    house.comes_to_serve("new.test", "silver");
    symlink("v2", house.file("..data_tmp")).expect("linked");
    fs::rename(house.file("..data_tmp"), house.file("..data")).expect("renamed");
    house.comes_to_serve("new.test", "gold");
    assert_eq!(house.versions("tenants", "applied"), 4.0);
    assert_eq!(house.versions("tenants", "refused"), 0.0);
    // A changed map is not a reload.
    assert_eq!(house.weir.metric("weir_config_generation", &[]), 1.0);
}

#[test]
fn j12_a_bad_version_of_a_file_or_none_keeps_the_lines_before_and_is_told() {
    let house = start();
    let path = house.file("tenants.map");
    for (times, content) in
        [(1.0, Some("shop.test\nshop.test silver\n\u{1}x y\n")), (2.0, None), (3.0, Some("\u{0}"))]
    {
        match content {
            Some(content) => fs::write(&path, content).expect("written"),
            None => fs::remove_file(&path).expect("removed"),
        }
        let labels = [("map", "tenants"), ("result", "refused")];
        house.weir.reaches("weir_map_versions_total", &labels, times);
        assert_eq!(house.served_by("shop.test"), "gold");
        assert_eq!(house.weir.metric("weir_map_stale", &[("map", "tenants")]), 1.0);
    }
    let log = house.weir.stderr();
    assert!(log.contains("tenants.map:1: `shop.test` has no value"), "{log}");
    assert!(log.contains("tenants.map:3: it has"), "{log}");
    let status = house.weir.admin().reads("/v1/status").json();
    assert!(status["maps"][0]["error"].as_str().is_some_and(|it| it.contains("tenants.map")), "{status}");
    assert!(house.weir.command(&["status"]).succeeded().contains("lines of before stay in force"));
    // A return to the lines that stayed in force is not an applied change, and clears the error.
    fs::write(&path, TENANTS).expect("written");
    until("the map to be whole again", || {
        (house.weir.metric("weir_map_stale", &[("map", "tenants")]) == 0.0).then_some(())
    });
    assert_eq!(house.versions("tenants", "applied"), 0.0);
}

#[test]
fn all_mistakes_of_all_files_are_told_at_once_and_a_reload_with_one_changes_nothing() {
    let house = start();
    fs::write(house.file("tenants.map"), "a gold\nb\na silver\n").expect("written");
    fs::write(house.file("places.map"), "10.0.0.1/8 office\nhere there\n").expect("written");
    let config = house.weir.config_path();
    let checked = run_tool(&weir_binary(), &["check", &config], b"", weir_tests::dialogue::PATIENCE);
    let told = checked.stdout + &checked.stderr;
    for expected in [
        "tenants.map:2: `b` has no value",
        "tenants.map:3: `a` is there twice",
        "places.map:1: `10.0.0.1/8` is not a network",
        "did you mean \"10.0.0.0/8\"?",
        "places.map:2: `here` is not a network",
    ] {
        assert!(told.contains(expected), "{expected}\n{told}");
    }
    assert_ne!(house.weir.command(&["reload"]).code, 0);
    assert_eq!(house.served_by("shop.test"), "gold");
}

#[test]
fn reload_and_upgrade_have_what_the_file_says_by_then() {
    let mut house = start();
    let path = house.file("tenants.map");
    fs::write(&path, "shop.test silver\n").expect("written");
    house.weir.reloads(&CONFIG.replace("default = \"none\"", "default = \"gold\""));
    assert_eq!(house.served_by("shop.test"), "silver");
    assert_eq!(house.served_by("nobody.test"), "gold");
    fs::write(&path, "shop.test gold\n").expect("written");
    let old = house.weir.pid();
    house.weir.signals_pid(old, Signal::USR2);
    until("the old process to be gone", || (!house.weir.is_running(old)).then_some(()));
    assert_eq!(house.served_by("shop.test"), "gold");
    // The next process looks, too.
    fs::write(&path, "shop.test silver\n").expect("written");
    house.comes_to_serve("shop.test", "silver");
}

#[test]
fn j13_what_a_client_writes_finds_no_line_but_its_own() {
    let house = start();
    // A prefix is compared with the path in its normal form.
    for path in ["/%6fld", "/x/../old", "/./old"] {
        assert_eq!(house.asks("192.0.2.1", "a.test", path).0, 301, "{path}");
    }
    assert_eq!(house.asks("10.66.1.1", "a.test", "/%61dmin/").0, 403);
    // No key begins with `#`, is empty, or has spaces.
    for host in ["shop.test.", "shop.test:443"] {
        assert_eq!(house.served_by(host), "gold", "{host}");
    }
    for host in ["xshop.test", "shop.test.evil.test", "shop", "%23"] {
        assert_ne!(house.served_by(host), "gold", "{host}");
    }
}

/// Answers with the values of these request fields.
fn telling(names: [&'static str; 4]) -> Backend {
    Backend::serving(move |request, wire| {
        let told = |name| request.fields.one(name).unwrap_or("none").to_owned();
        wire.answers(200, &[], names.map(told).join(" "));
        After::Keep
    })
}

/// The table of a map that is asked for `key`, and whose file has its name.
fn map(name: &str, key: &str, more: &str) -> String {
    format!("[map.{name}]\nfile = \"@dir/{name}.map\"\nkey = \"{key}\"\n{more}\n")
}

#[test]
fn capitals_count_in_paths_and_not_in_hosts_unless_the_map_says_otherwise() {
    let backend = telling(["x-host", "x-strict", "x-path", "x-loose"]);
    let config = [
        map("host", "$host", ""),
        map("strict", "$host", "ignore_case = false"),
        map("path", "$path", ""),
        map("loose", "$path", "ignore_case = true"),
        one_pool(
            r#"set_request_header = { x-host = "$map.host", x-strict = "$map.strict", x-path = "$map.path", x-loose = "$map.loose" }"#,
            NO_HEALTH,
        ),
    ];
    let weir = Setup::of(&config.concat())
        .with("app", backend.address())
        .with_file("host.map", "Shop.test yes\n")
        .with_file("strict.map", "Shop.test yes\n")
        .with_file("path.map", "/Old yes\n")
        .with_file("loose.map", "/Old yes\n")
        .start();
    for (host, path, expected) in [
        ("Shop.test", "/Old", "yes yes yes yes"),
        ("SHOP.TEST", "/OLD", "yes none none yes"),
        ("shop.test", "/old", "yes none none yes"),
    ] {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        assert_eq!(client.receives_response().text(), expected, "{host}{path}");
    }
}

#[test]
fn a_line_that_is_set_or_removed_is_in_force_at_once_and_stands_in_the_file() {
    let house = start();
    let file = house.file("tenants.map");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("permissions");
    let weir = &house.weir;
    let map = |words: &[&str]| weir.command(&[&["map"], words].concat());
    assert_eq!(house.served_by("new.test"), "app");
    let said = map(&["set", "tenants", "new.test", "gold"]);
    assert_eq!(said.succeeded(), format!("`new.test` added in {}, and in force\n", file.display()));
    // All workers have it when the call returns.
    assert!((0..20).all(|_| house.served_by("new.test") == "gold"));
    map(&["set", "tenants", "CAFE.test", "gold"]).succeeded();
    assert_eq!(house.served_by("cafe.test"), "gold");
    assert!(map(&["set", "tenants", "new.test", "gold"]).succeeded().contains("says so already"));
    let text = "# who pays for what\nshop.test gold\nCafe.Test  gold\nodd.test platinum\nnew.test gold\n";
    assert_eq!(fs::read_to_string(&file).expect("the file"), text);
    assert_eq!(fs::metadata(&file).expect("the file").permissions().mode() & 0o777, 0o640);
    assert!(map(&["show", "tenants", "new.test"]).succeeded().starts_with("gold\n  by `new.test`"));
    assert!(map(&["show", "tenants"]).succeeded().contains("new.test   gold\n"));
    // It outlives a reload, which reads the file.
    assert_eq!(weir.command(&["reload"]).code, 0);
    assert_eq!(house.served_by("new.test"), "gold");
    map(&["remove", "tenants", "new.test"]).succeeded();
    assert!(map(&["remove", "tenants", "new.test"]).succeeded().contains("has no such line"));
    assert_eq!(house.served_by("new.test"), "app");
    // A key with slashes, of a prefix and of a network.
    map(&["set", "moved", "/old/ä&b=c+d", "https://x.test/"]).succeeded();
    let moved = fs::read_to_string(house.file("moved.map")).expect("the file");
    assert_eq!(moved, format!("{MOVED}/old/ä&b=c+d https://x.test/\n"));
    map(&["remove", "places", "10.66.0.0/16"]).succeeded();
    assert_eq!(house.asks("10.66.0.9", "shop.test", "/admin/x").0, 200, "it is of the office now");
    assert_eq!(house.versions("tenants", "applied"), 3.0);
}

#[test]
fn a_line_that_cannot_be_is_refused_and_nothing_changes() {
    let house = start();
    let map = |words: &[&str]| house.weir.command(&[&["map"], words].concat());
    for (words, said) in [
        (["set", "tenants", "two words", "gold"], "is no line of a map"),
        (["set", "tenants", "a.test", "x\ny z"], "is no line of a map"),
        (["set", "tenants", "#a.test", "gold"], "is no line of a map"),
        (["set", "places", "10.0.0.1/8", "office"], "did you mean \"10.0.0.0/8\""),
        (["set", "nothing", "a", "b"], "no map is named `nothing`"),
    ] {
        let refused = map(&words);
        assert!(refused.code == 1 && refused.stderr.contains(said), "{words:?}: {refused:?}");
    }
    assert_eq!(fs::read_to_string(house.file("tenants.map")).expect("the file"), TENANTS);
    // A file with a mistake in it is not made whole by this.
    fs::write(house.file("tenants.map"), "half\n").expect("written");
    let refused = map(&["set", "tenants", "a.test", "gold"]);
    assert!(refused.code == 1 && refused.stderr.contains("tenants.map:1"), "{refused:?}");
    assert_eq!(house.served_by("shop.test"), "gold", "the lines before");
    fs::remove_file(house.file("tenants.map")).expect("removed");
    assert!(map(&["set", "tenants", "a.test", "gold"]).stderr.contains("can't be read"));
    // A change needs the same permission as others.
    let status = house.weir.admin().calls("PUT", "/v1/maps/places?key=10.9.9.9", &[], "{}").status();
    assert_eq!(status, 400, "without a value");
}

#[test]
fn every_kind_of_map_finds_its_line_and_groups_stand_in_redirects_and_fields_unharmed() {
    let backend = telling(["x-suffix", "x-domain", "x-contains", "x-group"]);
    let config = [
        map("suffix", "$path", "kind = \"suffix\""),
        map("domain", "$host", "kind = \"domain\""),
        map("contains", "$header.user-agent", "kind = \"contains\""),
        map("group", "$query.name", "kind = \"expression\""),
        map("go", "$path", "kind = \"expression\""),
        r#"
        [listener.web]
        bind = "@web"
        set_request_header = { x-suffix = "$map.suffix", x-domain = "$map.domain", x-contains = "$map.contains", x-group = "$map.group" }
        [[listener.web.route]]
        map = { go = "*" }
        redirect = { to = "$map.go", status = 302 }
        [[listener.web.route]]
        pool = "app"
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#
        .to_owned(),
    ];
    let weir = Setup::of(&config.concat())
        .with("app", backend.address())
        .with_file("suffix.map", ".js script\n.min.js small\n")
        .with_file("domain.map", "shop.test shop\ntest all\n")
        .with_file("contains.map", "bot robot\n")
        .with_file("group.map", "^(.)(.*)$ $2-$1\n")
        .with_file("go.map", "^/go/([a-z]+)/(.*)$ https://$1.test/of/$2\n^/go/ https://test/\n")
        .start();
    let asks = |host: &str, target: &str, agent: &str| {
        let mut client = weir.client("web");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {agent}\r\n\r\n"));
        let answer = client.receives_response();
        (answer.fields.one("location").unwrap_or_default().to_owned(), answer.text())
    };
    for (host, target, agent, expected) in [
        ("a.SHOP.test", "/x.min.js", "Googlebot", "small shop robot none"),
        ("ashop.test", "/x.js?name=abc", "curl", "script all none bc-a"),
        // A group holds the client's bytes as they were sent, and can't inject a field.
        ("other", "/?name=a%0d%0ax-evil:1", "curl", "none none none %0d%0ax-evil:1-a"),
    ] {
        assert_eq!(asks(host, target, agent).1, expected, "{host}{target}");
    }
    for (target, location) in [
        ("/go/shop/a/b", "https://shop.test/of/a/b"),
        ("/go/Shop/a", "https://test/"),
        ("/go/shop/a%20b%3Fc", "https://shop.test/of/a%20b%3Fc"),
        ("/go/shop/a%22%3E", "https://shop.test/of/a%22%3E"),
    ] {
        assert_eq!(asks("test", target, "curl").0, location, "{target}");
    }
    let explained = weir.command(&["explain", "http", "GET", "http://a.test/go/shop/a"]);
    let explained = explained.succeeded();
    assert!(explained.contains("`https://shop.test/of/a`"), "{explained}");
}
