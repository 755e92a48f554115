//! Which location a request is for.

use super::{Both, telling};

/// Locations of every kind, over and in each other; each tells its name in a field.
const TORTURE: &str = r"
upstream app { server @app; }
map $http_x_dummy $unused { default 1; }
server {
    listen @web;
    server_name a.example;
    proxy_set_header Host $http_host;
    location / { proxy_pass http://app; proxy_set_header X-Is root; }
    location = / { proxy_pass http://app; proxy_set_header X-Is exact-root; }
    location /images/ { proxy_pass http://app; proxy_set_header X-Is images; }
    location ^~ /images/fixed/ { proxy_pass http://app; proxy_set_header X-Is fixed; }
    location /images/fixed/deep/ { proxy_pass http://app; proxy_set_header X-Is deep; }
    location ~ \.(gif|jpg)$ { proxy_pass http://app; proxy_set_header X-Is picture; }
    location ~* \.PNG$ { proxy_pass http://app; proxy_set_header X-Is png; }
    location ~ ^/images/a { proxy_pass http://app; proxy_set_header X-Is images-a; }
    location = /images/exact.gif { proxy_pass http://app; proxy_set_header X-Is exact; }
    location /docs { proxy_pass http://app; proxy_set_header X-Is docs; }
    location /docs/api/ {
        proxy_pass http://app; proxy_set_header X-Is api;
        location ~ \.txt$ { proxy_pass http://app; proxy_set_header X-Is api-text; }
        location /docs/api/v2/ { proxy_pass http://app; proxy_set_header X-Is api-v2; }
        location = /docs/api/v2/only { proxy_pass http://app; proxy_set_header X-Is api-only; }
    }
    location ~ ^/docs/.*\.jpg$ { proxy_pass http://app; proxy_set_header X-Is never; }
    location ^~ /static/ { proxy_pass http://app; proxy_set_header X-Is static; }
    location ~ /\.(?!well-known) { return 403; }
    location ~ ^/user/(?<name>[a-z]+)/([0-9]+)$ { proxy_pass http://app; proxy_set_header X-Is user-$name-$2; }
    location /secret/ { deny all; proxy_pass http://app; }
    location /files/ { root /nowhere; }
    location /php/ { location ~ \.php$ { fastcgi_pass 127.0.0.1:9; } proxy_pass http://app; proxy_set_header X-Is php; }
    location /slash/ { proxy_pass http://app; proxy_set_header X-Is slash; }
    location /ünï/ { proxy_pass http://app; proxy_set_header X-Is umlaut; }
}
";

#[test]
fn each_request_goes_to_the_location_that_nginx_takes() {
    let app = telling("app");
    let both = Both::of(TORTURE, &[("app", &app)]);
    for path in [
        "/",
        "/x",
        "/x.gif",
        "/x.png",
        "/x.PnG",
        "/X.GIF",
        "/images/",
        "/images",
        "/images/x",
        "/images/x.gif",
        "/images/a",
        "/images/a.jpg",
        "/images/b.PNG",
        "/images/exact.gif",
        "/images/exact.gif?x=1",
        "/images/fixed/x.gif",
        "/images/fixed/",
        "/images/fixed/a",
        "/images/fixed/deep/x.gif",
        "/images/fixed/deep/x",
        "/docs",
        "/docs/",
        "/docsx",
        "/docs/x.jpg",
        "/docs/api/x",
        "/docs/api/x.txt",
        "/docs/api/x.jpg",
        "/docs/api/v2/x",
        "/docs/api/v2/x.txt",
        "/docs/api/v2/only",
        "/docs/api/v2/only.txt",
        "/static/x.gif",
        "/static/.git",
        "/.git/config",
        "/.well-known/x",
        "/a/.well-known/x",
        "/a/.htaccess",
        "/user/bob/17",
        "/user/Bob/17",
        "/user/bob/x",
        "/slash",
        "/slash?x=1",
        "/slash/",
        "/slashes",
        "/secret/x",
        "/secret",
        "/secretx",
        "/%69mages/x.gif",
        "/images/../docs/x",
        "/images/./x",
        "//images//x",
        "/%C3%BCn%C3%AF/x",
        "/images/fixed/../x.gif",
        "/x%2Egif",
        "/a%20b.gif",
        "/php/x",
        "/php",
    ] {
        both.agree(&format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"), &["x-is"]);
    }
    // There are no files and no FastCGI here: no other location takes their place.
    for (path, by_nginx, by_weir) in
        [("/files/x", 404, 404), ("/files/x.png", 200, 200), ("/php/x.php", 502, 501)]
    {
        let [nginx, weir] = both.ask(&format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
        assert_eq!((nginx.status, weir.status), (by_nginx, by_weir), "{path}");
    }
    both.says(&["unsupported", "fastcgi_pass", "501"]);
    both.says(&["unsupported", "root", "404"]);
}

#[test]
fn an_expression_that_weir_can_not_have_refuses_rather_than_lets_pass() {
    let app = telling("app");
    let config = r"
server {
    listen @web;
    location / { proxy_pass http://@app; }
    location ~ ^/(admin|root)/.*(?<=secret)$ { deny all; }
    location ~ ^/twice/(\w+)/\1$ { proxy_pass http://@app; }
}
";
    let both = Both::of(config, &[("app", &app)]);
    for path in ["/admin/the-secret", "/", "/admins"] {
        both.get("a.example", path);
    }
    for (path, by_weir) in [("/admin/other", 403), ("/twice/a/b", 501), ("/twice/a/a", 501)] {
        let [_, weir] = both.ask(&format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
        assert_eq!(weir.status, by_weir, "{path}");
    }
    both.says(&["approximate", "location ~ ^/(admin|root)"]);
    both.says(&["unsupported", "location ~ ^/twice/", "501"]);
}

#[test]
fn each_request_goes_to_the_server_that_nginx_takes() {
    let app = telling("app");
    let server = |names: &str, is: &str, more: &str| {
        format!(
            "server {{ listen @web {more}; server_name {names}; location / {{ proxy_pass http://@app; proxy_set_header X-Is {is}; \
             proxy_set_header Host $host; proxy_set_header X-Name $server_name; }} }}\n"
        )
    };
    let config = [
        server("first.example", "first", ""),
        server("shop.example www.shop.example", "shop", ""),
        server("*.shop.example", "below", ""),
        server("*.eu.shop.example", "below-eu", ""),
        server("api.*", "api", ""),
        server("~^api\\.(?<x>[a-z]+)\\.example$", "expression", ""),
        server(".dotted.example", "dotted", ""),
        server("default.example", "default", "default_server"),
        server("only.default.example 127.0.0.1", "later", ""),
    ]
    .concat();
    let both = Both::of(&config, &[("app", &app)]);
    for host in [
        "first.example",
        "shop.example",
        "SHOP.example",
        "www.shop.example",
        "a.shop.example",
        "a.b.shop.example",
        "a.eu.shop.example",
        "api.com",
        "api.x.example",
        "api.shop.example",
        "dotted.example",
        "a.dotted.example",
        "default.example",
        "unknown.example",
        "only.default.example",
        "127.0.0.1",
        "shop.example:8080",
        "xshop.example",
    ] {
        both.agree(&format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"), &["x-is", "host", "x-name"]);
    }
}
