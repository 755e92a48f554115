//! The path that routes see is the path the backend sees (threat A25).

use weir_tests::dialogue::{After, Backend, NO_PROBES, Setup, Weir, one_pool};

/// Denies `/admin` and forwards everything else, as an access rule in a proxy does.
fn guarded(backend: &Backend) -> Weir {
    Setup::of(&one_pool(
        r#"
        [[listener.web.route]]
        path = ["/admin", "/admin/*"]
        respond = { status = 403, body = "denied\n" }
        "#,
        NO_PROBES,
    ))
    .with("app", backend.address())
    .start()
}

/// How a lenient backend reads a path: escapes undone, backslashes turned, parameters cut off, dot segments
/// removed.
///
/// Two readings are left out because Weir documents that it keeps them apart: an encoded slash is data, and
/// an empty segment is a segment.
fn as_a_lenient_backend_reads_it(target: &str) -> String {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = (byte == b'%' && !tail.starts_with(b"2f") && !tail.starts_with(b"2F"))
            .then(|| {
                tail.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok())
            })
            .flatten();
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    let text = String::from_utf8_lossy(&bytes).replace('\\', "/");
    let mut segments: Vec<&str> = Vec::new();
    for segment in text.split('/').skip(1) {
        match segment.split(';').next().unwrap_or_default() {
            "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    format!("/{}", segments.join("/"))
}

#[test]
fn no_spelling_of_a_denied_path_reaches_the_backend() {
    let backend = Backend::saying("reached");
    let weir = guarded(&backend);
    let spellings = [
        "/admin",
        "/admin/",
        "/admin/users",
        "/./admin/users",
        "/a/../admin/users",
        "/a/b/../../admin/users",
        "/%61dmin/users",
        "/%61%64%6d%69%6e/users",
        "/admin%2fusers",
        "/admin%2Fusers",
        "/a/%2e%2e/admin/users",
        "/a/%2E%2e/admin/users",
        "/a/.%2e/admin/users",
        "/%2e/admin/users",
        "/..%2fadmin/users",
        "/a%2f..%2fadmin/users",
        "//admin/users",
        "/a/..//admin/users",
        "///admin",
        "/\\admin",
        "\\admin",
        "/a/..\\admin",
        "/%5cadmin",
        "/a/..%5cadmin",
        "/admin\\..\\admin",
        "/../admin/users",
        "/../../../admin",
        "/%2e%2e/admin",
        "/admin/x/..",
        "/admin/%2e",
        "/admin%00/users",
        "/%00admin",
        "/admin%0d%0ausers",
        "/admin%",
        "/admin%2",
        "/admin%zz",
        "/admin/?x=/../../public",
    ];
    let mut problems = Vec::new();
    for spelling in spellings {
        backend.forgets();
        let mut client = weir.client("web");
        client.sends(format!("GET {spelling} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
        let status = client.receives_response().status;
        let reached = backend.requests().pop().map(|request| request.target);
        let read_as = reached.as_deref().map(as_a_lenient_backend_reads_it);
        let harmless = match &read_as {
            None => matches!(status, 400 | 403),
            // A form that Weir passes on unchanged must not mean the denied path to anybody.
            Some(path) => !(path == "/admin" || path.starts_with("/admin/")),
        };
        if !harmless {
            problems.push(format!(
                "{spelling}: answered {status}, the backend saw {reached:?} (read as {read_as:?})"
            ));
        }
    }
    assert!(problems.is_empty(), "{}\n{}", problems.join("\n"), weir.story());
}

#[test]
fn a_path_that_only_resembles_a_denied_one_is_forwarded() {
    let backend = Backend::saying("reached");
    let weir = guarded(&backend);
    for path in [
        "/administrator",
        "/a/admin",
        "/admin2",
        "/ADMIN",
        "/public?next=/admin",
        "/a%20b",
        "/a;b=c/d",
        "/~user/x",
        "/caf%C3%A9",
    ] {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.receives_status(200);
        assert_eq!(backend.requests().pop().map(|request| request.target).as_deref(), Some(path));
    }
}

#[test]
fn the_forwarded_path_is_the_one_the_routes_matched() {
    // Whichever route took the request, the backend must see a path that this same route would take again.
    let echo = |name: &'static str| {
        Backend::serving(move |request, wire| {
            wire.answers(200, &[("x-pool", name)], &request.target);
            After::Keep
        })
    };
    let (api, rest) = (echo("api"), echo("rest"));
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "rest"
        [[listener.web.route]]
        path = "/api/*"
        pool = "api"
        [pool.api]
        backends = ["@api"]
        health = { check = "off" }
        [pool.rest]
        backends = ["@rest"]
        health = { check = "off" }
        "#,
    )
    .with("api", api.address())
    .with("rest", rest.address())
    .start();
    for path in [
        "/api/x",
        "/x/../api/y",
        "/api/../x",
        "/api/..;/x",
        "/api;v=1/x",
        "/..;/api/x",
        "/%61pi/x",
        "/api/a%2f..%2f..%2fx",
    ] {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        let response = client.receives_response();
        if response.status == 400 {
            continue;
        }
        let (pool, seen) =
            (response.fields.one("x-pool").expect("from a backend").to_owned(), response.text());
        assert_eq!(pool == "api", seen.starts_with("/api/"), "{path}: pool {pool} saw {seen}");
        assert!(!seen.contains("/../") && !seen.ends_with("/.."), "{path}: dot segments were left in {seen}");
    }
}

#[test]
fn with_slashes_merged_a_denied_path_is_denied_however_many_it_has_and_the_backend_sees_what_was_compared() {
    let backend = Backend::saying("reached");
    let weir = Setup::of(&one_pool(
        r#"
        merge_slashes = true
        [[listener.web.route]]
        path = ["/admin", "/admin/*"]
        respond = { status = 403, body = "no" }
        "#,
        NO_PROBES,
    ))
    .with("app", backend.address())
    .start();
    let mut client = weir.client("web");
    for denied in ["//admin", "///admin//users", "/admin//", "/a/..//admin", "/%61dmin//x", "//%2e//admin/x"]
    {
        client.sends(format!("GET {denied} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.receives_status(403);
    }
    for (sent, seen) in
        [("/a//b?c=//d", "/a/b?c=//d"), ("/plain", "/plain"), ("//", "/"), ("/x/%2f/", "/x/%2F/")]
    {
        client.sends(format!("GET {sent} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.receives_status(200);
        let request = backend.requests().pop().expect("a request");
        assert_eq!(request.target, seen, "for {sent}");
    }
    let url = format!("http://{}//admin//x", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    assert!(explained.succeeded().contains("respond 403"), "{explained:?}");
}
