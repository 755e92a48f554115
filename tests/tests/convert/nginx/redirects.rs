//! Addresses of backends in their answers: `proxy_redirect`, and the attributes of cookies.

use weir_tests::dialogue::{After, Backend, Wire};

use super::Both;

/// A backend that answers with the fields that it is asked for: `x-say-location` is its `location`.
fn repeating() -> Backend {
    Backend::serving(|request, wire| {
        let said = request.fields.0.iter().filter_map(|(name, value)| {
            Some((name.to_ascii_lowercase().strip_prefix("x-say-")?.to_owned(), value.clone()))
        });
        let said: Vec<(String, String)> = said.collect();
        let fields: Vec<(&str, &str)> =
            said.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        wire.answers(302, &fields, "");
        After::Keep
    })
}

/// What both say in a field when the backend says this; addresses that are paths are made whole, as clients
/// make them.
fn told(both: &Both, path: &str, name: &str, value: &str) -> [String; 2] {
    [both.nginx_at, both.weir_at].map(|at| {
        let mut wire = Wire::connect(at);
        wire.sends(format!("GET {path} HTTP/1.1\r\nhost: site.example\r\nx-say-{name}: {value}\r\n\r\n"));
        let response = wire.receives_response();
        assert_eq!(response.status, 302, "{path} {value}");
        let told = response.fields.all(name).join(" | ");
        let own = format!("http://site.example:{}/", at.port());
        match told.strip_prefix(&own) {
            Some(rest) => format!("/{rest}"),
            None => told,
        }
    })
}

fn agree(both: &Both, path: &str, name: &str, value: &str) -> String {
    let [nginx, weir] = told(both, path, name, value);
    assert_eq!(nginx, weir, "by nginx, and by Weir, of {name}: {value} at {path}\n{}", both.said);
    weir
}

#[test]
fn the_address_in_proxy_pass_becomes_that_of_the_site_unasked() {
    let backend = repeating();
    let both = Both::of(
        "upstream app { server @app; }
        server { listen @web;
            location /def/ { proxy_pass http://app/inner/; }
            location /exact { proxy_pass http://@app; }
            location = /one { proxy_pass http://app/other; }
            location ~ ^/(x)/ { proxy_pass http://app; }
            location /off/ { proxy_pass http://app; proxy_redirect off; }
            location / { proxy_pass http://app; }
        }",
        &[("app", &backend)],
    );
    for (path, value, expected) in [
        ("/def/", "http://app/inner/a?b=c", "/def/a?b=c"),
        ("/def/", "http://app/other", "http://app/other"),
        ("/def/", "/inner/a", "/inner/a"),
        ("/def/", "HTTP://APP/inner/a", "HTTP://APP/inner/a"),
        ("/one", "http://app/other", "/one"),
        ("/x/", "http://app/q", "/q"),
        ("/off/", "http://app/q", "http://app/q"),
        ("/", "http://app/q", "/q"),
        ("/", "http://app", "http://app"),
        ("/", "https://app/q", "https://app/q"),
    ] {
        assert_eq!(agree(&both, path, "location", value), expected, "{value} at {path}");
    }
    let own = format!("http://{}/z", backend.address());
    assert_eq!(agree(&both, "/exact", "location", &own), "/z");
    for (path, value, expected) in [
        ("/def/", "5; url=http://app/inner/a", "5; url=/def/a"),
        ("/def/", "5; URL=http://app/inner/a", "5; URL=/def/a"),
        ("/", "7", "7"),
        ("/off/", "0;url=http://app/", "0;url=http://app/"),
    ] {
        assert_eq!(agree(&both, path, "refresh", value), expected, "{value} at {path}");
    }
    // nginx leads to another path of the site, and so does Weir: none leads to another site.
    let [nginx, weir] = told(&both, "/", "location", "http://app//evil.example/");
    assert_eq!((nginx.as_str(), weir.as_str()), ("//evil.example/", "/evil.example/"));
    assert!(!both.said.lines().any(|line| line.starts_with("unsupported")), "{}", both.said);
}

#[test]
fn addresses_that_proxy_redirect_names_are_replaced_the_first_that_matches() {
    let backend = repeating();
    let both = Both::of(
        r"upstream app { server @app; }
        server { listen @web; set $out outside;
            location / { proxy_pass http://app;
                proxy_redirect http://in.example:8080/ https://$host/;
                proxy_redirect ~^http://([a-z]+)\.in/(.*)$ http://$1.$out/$2;
                proxy_redirect ~*^HTTP://up/(?<rest>.*) /u/$rest;
                proxy_redirect default;
                proxy_redirect /rel/ /abs/;
                proxy_redirect ~/old/([0-9]+) /new/$1;
                proxy_redirect ~^http://root\.in2/(.*)$ /$1;
                proxy_redirect ~^http://deep\.in2(/.*)$ $1;
                proxy_redirect http://in.example:8080/never /never/;
            }
        }",
        &[("app", &backend)],
    );
    for (value, expected) in [
        ("http://in.example:8080/a", "https://site.example/a"),
        ("http://in.example:8080/never", "https://site.example/never"),
        ("http://img.in/b/c", "http://img.outside/b/c"),
        ("http://UP/b/c", "/u/b/c"),
        ("http://app/b", "/b"),
        ("/rel/b", "/abs/b"),
        ("zzz http://img.in/b/c", "zzz http://img.in/b/c"),
        ("http://elsewhere/", "http://elsewhere/"),
    ] {
        assert_eq!(agree(&both, "/", "location", value), expected, "{value}");
    }
    for (value, expected) in [
        ("0;URL=http://in.example:8080/a", "0;URL=https://site.example/a"),
        ("5; url=http://img.in/b/c", "5; url=http://img.outside/b/c"),
        ("0;url=zzz http://img.in/b/c", "0;url=zzz http://img.in/b/c"),
        ("0;Url=http://UP/b/c", "0;Url=/u/b/c"),
        ("0;url=/old/12/x", "0;url=/new/12"),
        ("0;url=http://elsewhere/old/7", "0;url=/new/7"),
        ("0;url=/login?url=http://img.in/b/c", "0;url=/login?url=http://img.in/b/c"),
        ("0;url=/login?url=http://app/b", "0;url=/login?url=http://app/b"),
        ("http://img.in/b/c", "http://img.in/b/c"),
    ] {
        assert_eq!(agree(&both, "/", "refresh", value), expected, "{value}");
    }
    assert_eq!(agree(&both, "/", "location", "http://elsewhere/old/7"), "/new/7");
    for host in ["root.in2", "deep.in2"] {
        assert_eq!(agree(&both, "/", "refresh", &format!("0;url=http://{host}/b")), "0;url=/b");
        // nginx leads to another site here, and Weir to a path of this one.
        let [nginx, weir] = told(&both, "/", "refresh", &format!("0;url=http://{host}//evil.example/"));
        assert_eq!((nginx.as_str(), weir.as_str()), ("0;url=//evil.example/", "0;url=/evil.example/"));
    }
}

#[test]
fn attributes_of_cookies_are_changed_as_by_nginx() {
    let backend = repeating();
    let both = Both::of(
        r"upstream app { server @app; }
        proxy_cookie_path /outer/ /;
        server { listen @web;
            location /inherited { proxy_pass http://app; }
            location /hidden { proxy_pass http://app; proxy_hide_header Set-Cookie; }
            location / { proxy_pass http://app;
                proxy_cookie_domain app.in shop.example;
                proxy_cookie_domain ~\.(\w+)\.in$ $1.out;
                proxy_cookie_path /two/ /;
                proxy_cookie_path ~*^/X/(.*) /y/$1;
                proxy_cookie_flags one httponly;
                proxy_cookie_flags ~^t secure nohttponly samesite=strict;
                proxy_cookie_flags ~ nosecure nosamesite;
            }
        }",
        &[("app", &backend)],
    );
    for value in [
        "one=1; Domain=.App.in; Path=/two/a; Secure; SameSite=Lax",
        "two=1; domain=a.b.in; path=/x/q; HttpOnly",
        "three=1; HttpOnly; samesite=none; expires=Wed, 01 Jan 2031 00:00:00 GMT",
        "oth=1; Secure; SameSite=None; path=\"/two/\"",
        "One=1; Secure",
        "oth=1; path=/twoX; domain=xapp.in",
        "oth=a=b; max-age=5",
    ] {
        agree(&both, "/", "set-cookie", value);
    }
    assert_eq!(agree(&both, "/inherited", "set-cookie", "a=1; path=/outer/x"), "a=1; path=/x");
    assert_eq!(agree(&both, "/hidden", "set-cookie", "a=1; path=/outer/x"), "");
}
