//! The configuration in force as JSON, under the names of the config file, every default filled in. Secrets are not in it: a
//! token or password is only ever named by its file.

use std::time::Duration;

use serde_json::{Value, json};
use weir_config::{
    AccessFormat, AccessTarget, Check, Compress, HashKey, Health, HostPattern, Level, Listener, Pool,
    ProxyVersion, RetryOn, Route, RouteAction,
};
use weir_proxy::snapshot::Snapshot;

use crate::status::protocol_word;

/// All of it.
pub(super) fn config(snapshot: &Snapshot) -> Value {
    let config = &snapshot.config;
    let log = &config.log;
    json!({
        "generation": snapshot.generation,
        "runtime": {
            "workers": config.runtime.workers,
            "drain": duration(config.runtime.drain),
            "memory_bytes": config.runtime.memory_bytes,
        },
        "admin": config.admin.as_ref().map(|admin| json!({ "bind": admin.bind, "token_file": admin.token_file })),
        "log": { "access": target(&log.access), "format": format_word(log.format), "level": level_word(log.level) },
        "listener": config.listeners.iter().map(|it| (it.name.clone(), listener(it))).collect::<serde_json::Map<_, _>>(),
        "pool": config.pools.iter().map(|it| (it.name.clone(), pool(it))).collect::<serde_json::Map<_, _>>(),
    })
}

/// As in the file: a whole number of the largest unit that fits.
fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0 => "0s".to_owned(),
        ms if ms % 1000 != 0 => format!("{ms}ms"),
        ms if ms % 60_000 != 0 => format!("{}s", ms / 1000),
        ms if ms % 3_600_000 != 0 => format!("{}m", ms / 60_000),
        ms => format!("{}h", ms / 3_600_000),
    }
}

fn target(target: &AccessTarget) -> String {
    match target {
        AccessTarget::Off => "off".to_owned(),
        AccessTarget::Stdout => "stdout".to_owned(),
        AccessTarget::Stderr => "stderr".to_owned(),
        AccessTarget::File(path) => path.display().to_string(),
    }
}

fn format_word(format: AccessFormat) -> &'static str {
    match format {
        AccessFormat::Json => "json",
        AccessFormat::Combined => "combined",
        AccessFormat::Haproxy => "haproxy",
    }
}

fn level_word(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

fn listener(listener: &Listener) -> Value {
    let (timeout, limits) = (&listener.timeout, &listener.limits);
    json!({
        "protocol": protocol_word(listener.protocol),
        "bind": listener.bind,
        "pool": listener.pool,
        "accept_proxy": listener.accept_proxy.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "trusted_proxies": listener.trusted_proxies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "max_connections": listener.max_connections,
        "max_connections_per_client": listener.max_connections_per_client,
        "merge_slashes": listener.merge_slashes,
        "abort_on_close": listener.abort_on_close,
        "compress": listener.compress.as_ref().map(compress),
        "timeout": {
            "client_idle": duration(timeout.client_idle),
            "header": duration(timeout.header),
            "connect": duration(timeout.connect),
            "backend": duration(timeout.backend),
            "client_body": duration(timeout.client_body),
        },
        "limits": {
            "request_line_bytes": limits.request_line_bytes,
            "header_bytes": limits.header_bytes,
            "header_count": limits.header_count,
            "min_body_rate": limits.min_body_rate,
            "streams": limits.streams,
            "control_frames": limits.control_frames,
        },
        "screen": screen(&listener.screen),
        "sqli": listener.sqli.mode.word(),
        "sqli_body_bytes": listener.sqli.body_bytes,
        "route": listener.routes.iter().map(route).collect::<Vec<_>>(),
    })
}

/// What is asked of requests, by the key of the config; what asks nothing is left out.
fn screen(screen: &weir_config::Screen) -> Value {
    let mut shown = serde_json::Map::new();
    let mut put = |name: &str, list: Vec<Value>| {
        if !list.is_empty() {
            shown.insert(name.to_owned(), Value::Array(list));
        }
    };
    for (name, written) in screen.lists() {
        put(name, written.into_iter().map(Value::String).collect());
    }
    let rates = screen.rate_limit.iter().map(|limit| {
        json!({
            "rate": limit.rate.to_string(),
            "burst": limit.burst,
            "key": limit.key.to_string(),
            "at": limit.at.word(),
            "dry_run": limit.dry_run,
            "status": limit.status,
            "keys": limit.keys,
        })
    });
    put("rate_limit", rates.collect());
    let concurrencies = screen.concurrency_limit.iter().map(|limit| {
        json!({
            "max": limit.max,
            "key": limit.key.to_string(),
            "at": limit.at.word(),
            "dry_run": limit.dry_run,
            "status": limit.status,
        })
    });
    put("concurrency_limit", concurrencies.collect());
    Value::Object(shown)
}

fn route(route: &Route) -> Value {
    let host = |pattern: &HostPattern| match pattern {
        HostPattern::Exact(host) => host.clone(),
        HostPattern::Suffix(suffix) => format!("*{suffix}"),
    };
    let mut shown = json!({
        "name": route.name,
        "host": route.host.iter().map(host).collect::<Vec<_>>(),
        "path": route.path.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "method": route.method,
        "header": route.header,
        "add_request_header": route.add_request_header,
        "add_response_header": route.add_response_header,
        "rewrite_prefix": route.rewrite_prefix,
        "body_limit_bytes": route.body_limit_bytes,
        "screen": screen(&route.screen),
        "sqli": route.sqli.mode.word(),
        "sqli_body_bytes": route.sqli.body_bytes,
        "compress": route.compress.as_ref().map(compress),
    });
    match &route.action {
        RouteAction::Pool(pool) => shown["pool"] = json!(pool),
        RouteAction::Redirect { to, status } => shown["redirect"] = json!({ "to": to, "status": status }),
        RouteAction::Respond { status, body, content_type } => {
            shown["respond"] = json!({ "status": status, "body": body, "content_type": content_type });
        }
    }
    shown
}

fn compress(compress: &Compress) -> Value {
    let levels =
        compress.codings.iter().map(|coding| (coding.word().to_owned(), json!(compress.level.of(*coding))));
    json!({
        "codings": compress.codings.iter().map(|coding| coding.word()).collect::<Vec<_>>(),
        "types": compress.types.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "min_bytes": compress.min_bytes,
        "level": levels.collect::<serde_json::Map<_, _>>(),
    })
}

fn pool(pool: &Pool) -> Value {
    let backend = |it: &weir_config::Backend| json!({ "address": it.address, "weight": it.weight, "max_connections": it.max_connections, "backup": it.backup });
    let version = |version| match version {
        ProxyVersion::V1 => "v1",
        ProxyVersion::V2 => "v2",
    };
    json!({
        "backends": pool.backends.iter().map(backend).collect::<Vec<_>>(),
        "balance": pool.balance.word(),
        "hash": { "key": hash_key(&pool.hash.key), "bounded": pool.hash.bounded },
        "send_proxy": pool.send_proxy.map(version),
        "retry": {
            "attempts": pool.retry.attempts,
            "on": pool.retry.on.iter().map(retry_on).collect::<Vec<_>>(),
            "non_idempotent": pool.retry.non_idempotent,
        },
        "queue": { "max": pool.queue.max, "timeout": duration(pool.queue.timeout) },
        "sticky": pool.sticky_cookie.as_ref().map(|cookie| json!({ "cookie": cookie })),
        "slow_start": pool.slow_start.map(duration),
        "keep_alive": { "max": pool.keep_alive.max, "idle": duration(pool.keep_alive.idle) },
        "health": health(&pool.health),
    })
}

fn hash_key(key: &HashKey) -> String {
    match key {
        HashKey::Uri => "uri".to_owned(),
        HashKey::Path => "path".to_owned(),
        HashKey::Header(name) => format!("header:{name}"),
        HashKey::Cookie(name) => format!("cookie:{name}"),
        HashKey::ClientIp => "client_ip".to_owned(),
    }
}

fn retry_on(failure: &RetryOn) -> String {
    match failure {
        RetryOn::Connect => "connect".to_owned(),
        RetryOn::Empty => "empty".to_owned(),
        RetryOn::Timeout => "timeout".to_owned(),
        RetryOn::Status(status) => status.to_string(),
    }
}

fn health(health: &Health) -> Value {
    let mut shown = json!({
        "interval": duration(health.interval),
        "fast_interval": duration(health.fast_interval),
        "timeout": duration(health.timeout),
        "rise": health.rise,
        "fall": health.fall,
        "last_resort": health.last_resort.word(),
        "passive": health.passive.map_or(json!("off"), |passive| json!({
            "errors": passive.errors,
            "within": duration(passive.within),
            "eject": duration(passive.eject),
            "max_ejected": passive.max_ejected,
        })),
    });
    match &health.check {
        Check::Off => shown["check"] = json!("off"),
        Check::Tcp => shown["check"] = json!("tcp"),
        Check::Http { path, host, expect_status } => {
            shown["check"] = json!("http");
            shown["path"] = json!(path);
            shown["host"] = json!(host);
            let range =
                |&(from, to): &(u16, u16)| if from == to { from.to_string() } else { format!("{from}-{to}") };
            shown["expect_status"] = json!(expect_status.iter().map(range).collect::<Vec<_>>());
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn durations_read_as_the_file_writes_them() {
        for (ms, text) in
            [(0, "0s"), (200, "200ms"), (1500, "1500ms"), (30_000, "30s"), (120_000, "2m"), (7_200_000, "2h")]
        {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn the_configuration_shows_names_defaults_and_no_secret() {
        let path = std::env::temp_dir().join(format!("weir-secret-{}", std::process::id()));
        std::fs::write(&path, "a-very-secret-token").unwrap();
        let text = format!(
            "[admin]\nbind = '127.0.0.1:9900'\ntoken_file = '{}'\n[listener.web]\nbind = '127.0.0.1:8080'\npool = 'app'\n\
             [[listener.web.route]]\npath = '/a/*'\nrespond = {{ status = 204 }}\n[pool.app]\nbackends = ['127.0.0.1:9001']\n",
            path.display()
        );
        let config_read = weir_config::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        let shown = config(&Snapshot::compile(Arc::new(config_read), &Default::default(), None, 1));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(shown["listener"]["web"]["route"][0]["path"][0], "/a/*");
        assert_eq!(shown["listener"]["web"]["timeout"]["header"], "10s");
        assert_eq!(shown["pool"]["app"]["health"]["check"], "http");
        assert_eq!(shown["pool"]["app"]["balance"], "round-robin");
        assert!(!shown.to_string().contains("a-very-secret-token"));
    }
}
