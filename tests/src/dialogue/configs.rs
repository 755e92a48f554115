//! Configs that many tests begin with. Each ends with the pool `app`, so that text appended to it belongs to
//! that pool.

/// An HTTP listener in front of a pool with one backend, `app`.
pub const ONE_POOL: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@app"]
"#;

/// Two HTTP listeners in front of a pool with one backend, `app`. Between them, `plain` and `secure` speak
/// every version; `secure` shows the certificate `shop` of the test's authority.
pub const EVERY_VERSION: &str = r#"
[listener.plain]
bind = "@plain"
http = ["h1", "h2"]
pool = "app"
[listener.secure]
bind = "@secure"
http = ["h1", "h2", "h3"]
pool = "app"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[pool.app]
backends = ["@app"]
"#;

/// A listener of each protocol: `web` (HTTP) and `relay` (TCP) in front of a pool with one backend, `app`;
/// `dns` (UDP) in front of a pool with one backend, `names`, which is not probed.
pub const EVERY_PROTOCOL: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[listener.relay]
protocol = "tcp"
bind = "@relay"
pool = "app"
[listener.dns]
protocol = "udp"
bind = "@dns"
pool = "names"
[pool.names]
backends = ["@names"]
health = { check = "off" }
[pool.app]
backends = ["@app"]
"#;

/// To be used as a backend: a listener, `inner`, over TLS with the certificate `inner`, in front of a pool
/// with one backend, `app`, without health checks. Tests replace `VERSIONS` with the versions of HTTP that it
/// speaks.
pub const INNER: &str = r#"
[listener.inner]
bind = "@inner"
http = [VERSIONS]
pool = "app"
[listener.inner.tls]
certificates = [{ cert = "@dir/inner.pem", key = "@dir/inner.key" }]
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// Switches off a pool's probes.
pub const NO_PROBES: &str = r#"health = { check = "off" }"#;

/// Switches off a pool's probes and the ejection of backends.
pub const NO_HEALTH: &str = r#"health = "off""#;

/// [`ONE_POOL`] with these additional lines for the listener, which may end with its routes, and for the
/// pool.
pub fn one_pool(of_listener: &str, of_pool: &str) -> String {
    let listener = ONE_POOL.replace("[pool.app]\n", &format!("{of_listener}\n[pool.app]\n"));
    format!("{listener}{of_pool}\n")
}
