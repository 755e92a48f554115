//! nginx's configuration.
//!
//! An `http` server becomes routes of the listeners at whose addresses it is, in an order in which the first
//! that matches is the location that nginx would take. An `upstream`, and each other address that a
//! `proxy_pass` names, becomes a pool. Where to start reading: `convert`, then `nginx/http.rs` (listeners),
//! `nginx/serve.rs` (a server) and `nginx/content.rs` (a location).
//!
//! Source: the manual at nginx.org, and what nginx does.

mod access;
mod caching;
mod conditions;
mod content;
mod conversion;
mod divided;
mod errors;
mod expression;
mod headers;
mod http;
mod include;
mod known;
mod ledger;
mod lexer;
mod limits;
mod listen;
mod locations;
mod logs;
mod maps;
mod names;
mod networks;
mod pool_settings;
mod pools;
mod proxy_target;
mod redirects;
mod referers;
mod request_test;
mod rewrites;
mod route;
mod scope;
mod serve;
mod stream;
mod timers;
mod tls;
mod tree;
mod units;
mod variables;

use weir_config::quoted;

use self::conversion::Conversion;
use self::ledger::NginxLedger;
use self::maps::NginxMaps;
use self::scope::NginxScope;
use self::tree::NginxDirective;
use self::units::{duration_between, nginx_time, size_text};
use crate::write::{line, texts};
use crate::{Converted, DirectiveVerdict, NotConverted, SourceFiles};

/// Whether a text looks like an nginx.conf, even if it has mistakes.
pub(super) fn looks_like(text: &str) -> bool {
    let blocks = ["http", "events", "server", "upstream", "stream", "location"];
    let begins_block = |line: &str| {
        let line = line.trim();
        let word = line.split([' ', '\t', '{']).next().unwrap_or_default();
        blocks.contains(&word) && (line.contains('{') || line == word)
    };
    text.lines().any(|line| line.starts_with("# configuration file ") || begins_block(line))
        || text.lines().any(|line| {
            let line = line.trim();
            ["worker_processes ", "include ", "user "].iter().any(|front| line.starts_with(front))
                && line.ends_with(';')
        })
}

/// Converts a file, with those that it includes.
pub(super) fn convert(text: &str, files: &dyn SourceFiles) -> Result<Converted, NotConverted> {
    let mut ledger = NginxLedger::default();
    let tree = include::gather(text, files, &mut ledger)?;
    let blocks = |name: &'static str| tree.iter().filter(move |it| it.name == name);
    // A file of `conf.d` has servers without the `http` around them.
    let is_part = blocks("http").next().is_none() && blocks("stream").next().is_none();
    let http: &[NginxDirective] = match is_part {
        true => &tree,
        false => blocks("http").next().map_or(&[], NginxDirective::inner),
    };
    let stream: &[NginxDirective] = blocks("stream").next().map_or(&[], NginxDirective::inner);
    let mut conversion = Conversion::of(http, files);
    conversion.ledger = ledger;
    judge_types(&mut conversion.ledger, &tree);
    let main = NginxScope::default().within(&tree);
    conversion.outer = if is_part { main.clone() } else { main.within(http) };
    for name in ["http", "stream"] {
        for (at, block) in blocks(name).enumerate() {
            match at {
                0 => conversion.ledger.exact(block, "its servers are listeners and routes"),
                _ => {
                    conversion.ledger.unsupported(block, "a second one: left out");
                    conversion.ledger.judge_below(
                        block.inner(),
                        DirectiveVerdict::Unsupported,
                        "left out with its block",
                    );
                }
            }
        }
    }
    for block in blocks("mail") {
        conversion.ledger.unsupported(block, "Weir does not speak mail: left out");
        conversion.ledger.judge_below(
            block.inner(),
            DirectiveVerdict::Unsupported,
            "left out with its block",
        );
    }
    let mut listeners = http::listeners(&mut conversion, http);
    let maps = std::mem::replace(&mut conversion.maps, NginxMaps::of(stream.iter()));
    let streams = stream.iter().filter(|it| it.name == "upstream").map(|it| (it.word(0), it)).collect();
    let https = std::mem::replace(&mut conversion.upstreams, streams);
    stream::add_listeners(&mut conversion, stream, &main, &mut listeners);
    let stream_maps = std::mem::replace(&mut conversion.maps, maps);
    stream_maps.finish(&mut conversion.ledger);
    for upstream in https.values().chain(conversion.upstreams.values()) {
        unused(&mut conversion.ledger, upstream);
    }
    if listeners.is_empty() {
        return Err(NotConverted {
            message: "there is no server in it that can be converted".to_owned(),
            hint: "expected `server` blocks in `http` or `stream` (`nginx -T > all.conf` writes all files into one)".to_owned(),
        });
    }
    Ok(written(conversion, &tree, listeners))
}

/// Judges the lines of `types`, whose names are media types.
fn judge_types(ledger: &mut NginxLedger, directives: &[NginxDirective]) {
    for directive in directives {
        match directive.name.as_str() {
            "types" => ledger.judge_below(
                directive.inner(),
                DirectiveVerdict::Exact,
                "not needed: it is about static files, which Weir does not serve",
            ),
            _ => judge_types(ledger, directive.inner()),
        }
    }
}

/// Notes an upstream that no server uses.
fn unused(ledger: &mut NginxLedger, upstream: &NginxDirective) {
    if !ledger.is_judged(upstream) {
        ledger.exact(upstream, "nothing that was converted uses it");
        ledger.judge_below(upstream.inner(), DirectiveVerdict::Exact, "nothing that was converted uses it");
    }
}

/// Writes everything.
fn written(
    mut conversion: Conversion<'_>,
    tree: &[NginxDirective],
    listeners: Vec<http::NewListener>,
) -> Converted {
    let mut body = String::new();
    runtime(&mut conversion, tree, &mut body);
    let level = logs::level(&mut conversion);
    conversion.logs.write(level, &mut body);
    dns(&mut conversion, &mut body);
    if let Some(memory) = conversion.cache_memory {
        body.push_str("\n[cache]\n");
        line(&mut body, "memory", size_text(memory));
    }
    for listener in listeners {
        listener.write(&conversion, &mut body);
    }
    body.push_str(&conversion.pools.stubs());
    let maps = std::mem::take(&mut conversion.maps);
    let (tables, files) = maps.finish(&mut conversion.ledger);
    body.push_str(&tables);
    let body = body.trim_start_matches('\n').to_owned();
    Converted { from: "nginx", body, files, directives: conversion.ledger.into_directives() }
}

/// What nginx's processes are told.
fn runtime(conversion: &mut Conversion<'_>, tree: &[NginxDirective], body: &mut String) {
    let main = NginxScope::default().within(tree);
    let mut keys = String::new();
    if let Some(directive) = main.one("worker_processes") {
        match directive.word(0).parse::<u64>() {
            Ok(number @ 1..=1024) => {
                line(&mut keys, "workers", number);
                conversion.ledger.exact(directive, "`workers`: threads, each on a CPU");
            }
            _ => conversion.ledger.exact(directive, "one worker for each CPU, as by default"),
        }
    } else {
        let note = "one worker for each CPU; nginx has one";
        conversion.ledger.unsaid("worker_processes", DirectiveVerdict::Approximate, note);
    }
    if let Some(directive) = main.one("worker_shutdown_timeout") {
        if let Some(time) = nginx_time(directive.word(0)) {
            let day = std::time::Duration::from_secs(86_400);
            line(&mut keys, "drain", duration_between(time, std::time::Duration::ZERO, day));
        }
        conversion.ledger.exact(directive, "`drain`");
    }
    for module in tree.iter().filter(|it| it.name == "load_module") {
        if module.word(0).contains("ngx_stream_module") {
            conversion.ledger.exact(module, "not needed: Weir has it");
        }
    }
    for events in tree.iter().filter(|it| it.name == "events") {
        for directive in events.inner().iter().filter(|it| it.name == "worker_connections") {
            let note = "left out: `max_connections` of a listener (100000) counts its clients, over all workers; nginx's counts both sides of one worker";
            conversion.ledger.approximate(directive, note);
        }
    }
    if !keys.is_empty() {
        body.push_str("\n[runtime]\n");
        body.push_str(&keys);
    }
}

/// Who is asked for names of backends, where nginx would ask them while it runs.
fn dns(conversion: &mut Conversion<'_>, body: &mut String) {
    let outer = conversion.outer.clone();
    let Some(directive) = outer.one("resolver") else { return };
    if !conversion.pools.stubs().contains("resolve = \"all\"") {
        return;
    }
    let addresses = directive.words.iter().filter(|word| !word.contains('='));
    let addresses: Vec<String> = addresses.cloned().collect();
    let are_addresses = addresses.iter().all(|address| {
        let host = address
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok())
            .map_or(address.as_str(), |(host, _)| host);
        host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
    });
    if addresses.is_empty() || !are_addresses {
        conversion.ledger.unsupported(directive, "resolvers are addresses: those of the system are asked");
        return;
    }
    let mut lines = String::new();
    line(&mut lines, "resolvers", texts(&addresses));
    if let Some(time) = directive.words.iter().find_map(|word| nginx_time(word.strip_prefix("valid=")?)) {
        let (least, day) = (std::time::Duration::from_millis(100), std::time::Duration::from_secs(86_400));
        line(&mut lines, "max_ttl", duration_between(time, least, day));
    }
    if directive.words.iter().any(|word| word == "ipv6=off") {
        line(&mut lines, "allow_address", quoted("0.0.0.0/0"));
    }
    let around = "[listener.x]\nbind = \"127.0.0.1:1\"\n";
    let (taken, refused) = route::taken_lines(&lines, "[dns]\n", around);
    if let Some(why) = refused.first() {
        let note = format!("Weir would not take all of it ({why}): left out");
        conversion.ledger.unsupported(directive, note);
    }
    body.push_str("\n[dns]\n");
    body.push_str(&taken);
    conversion.ledger.exact(directive, "`[dns]`");
    if let Some(directive) = outer.one("resolver_timeout") {
        conversion.ledger.approximate(directive, "`timeout` of `[dns]`, 2s by default");
    }
}

#[cfg(test)]
mod tests;
