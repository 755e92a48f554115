//! Explains a TCP connection or a UDP flow on the proxy plane.

use std::net::SocketAddr;

use weir_config::Protocol;
use weir_io::clock;
use weir_proxy::compiled::CompiledSnapshot;
use weir_proxy::http::route::{RouteTable, TakenConnection};
use weir_proxy::timers::in_force;
use weir_state::key::{Transport, flow_key};
use weir_state::maintenance::Scope;
use weir_state::{Listener, Pool, Snapshot};

use super::{
    Answer, ExplainedRoute, Screened, by_interfaces, choose, listener_at, of_client, refuse_by_screens,
    timers, tls,
};

/// Explains a connection whose client asks for the server `asked_name` in its TLS client hello, or for none.
pub(super) fn of_connection(
    compiled: &CompiledSnapshot,
    source: SocketAddr,
    destination: SocketAddr,
    asked_name: Option<&str>,
) -> Result<Answer, String> {
    let name = asked_name.map_or(Ok(None), tls::asked_for)?;
    let listener = listener_at(&compiled.snapshot, Protocol::Tcp, destination)?;
    let mut answer = accepted(compiled, listener, source, destination);
    if refuse_by_screens(&mut answer) {
        return Ok(answer);
    }
    if let Some(server) = listener.tls.as_deref() {
        tls::tell(&mut answer, server, name.as_deref());
    }
    let client = source.ip();
    let routes = routes_of(compiled, listener)?;
    if !routes.is_empty() {
        let verdicts = routes.explain_connection(name.as_deref(), client);
        answer.routes = verdicts.into_iter().map(ExplainedRoute::from).collect();
        let nameless = outcome(&compiled.snapshot, routes.decide_connection(None, client).as_ref());
        answer.server_name = Some(match &name {
            Some(name) => format!("{name}; a client that asks for none: {nameless}"),
            None => "none, as of a client that speaks no TLS; `--server-name` asks for one".to_owned(),
        });
    }
    let taken = routes.decide_connection(name.as_deref(), client);
    answer.action = outcome(&compiled.snapshot, taken.as_ref());
    let Some(TakenConnection { pool, route }) = taken else {
        answer.refusal = Some("no_route".to_owned());
        return Ok(answer);
    };
    let pool = &compiled.snapshot.pools[pool];
    let of_route = route.and_then(|route| route.timeout.as_ref());
    let told = timers(in_force(&listener.config.timeout, pool.config.timeout.if_any(), of_route));
    answer.timers = told.into_iter().filter(|it| matches!(&*it.name, "connect" | "tunnel")).collect();
    let key = flow_key(&pool.config, Transport::Tcp, source, || Some(destination));
    answer.pool = Some(choose(pool, key, None));
    Ok(answer)
}

/// Explains a flow of datagrams.
pub(super) fn of_flow(
    compiled: &CompiledSnapshot,
    source: SocketAddr,
    destination: SocketAddr,
) -> Result<Answer, String> {
    let listener = listener_at(&compiled.snapshot, Protocol::Udp, destination)?;
    let mut answer = accepted(compiled, listener, source, destination);
    if refuse_by_screens(&mut answer) {
        return Ok(answer);
    }
    let name = &listener.config.name;
    let pool = listener.config.pool.as_deref().and_then(|pool| compiled.snapshot.pool(pool));
    let pool = pool.ok_or_else(|| format!("listener `{name}` has no pool"))?;
    answer.action = forwarded(&compiled.snapshot, pool);
    let key = flow_key(&pool.config, Transport::Udp, source, || Some(destination));
    answer.pool = Some(choose(pool, key, None));
    Ok(answer)
}

/// What is known before the client sends anything.
fn accepted(
    compiled: &CompiledSnapshot,
    listener: &Listener,
    source: SocketAddr,
    destination: SocketAddr,
) -> Answer {
    let by = by_interfaces(&listener.config);
    let mut answer = Answer::of(listener, format!("accepts at {destination}{by}"));
    answer.screens = of_client(compiled, listener, source.ip());
    answer.screens.extend(bandwidth(listener));
    answer
}

fn routes_of<'c>(compiled: &'c CompiledSnapshot, listener: &Listener) -> Result<&'c RouteTable, String> {
    let name = &listener.config.name;
    let compiled = compiled.listener(name).ok_or_else(|| format!("listener {name} is not served"))?;
    Ok(&compiled.routes)
}

/// The result for a connection.
fn outcome(snapshot: &Snapshot, taken: Option<&TakenConnection<'_>>) -> String {
    match taken {
        Some(taken) => forwarded(snapshot, &snapshot.pools[taken.pool]),
        None => "refuse, no_route".to_owned(),
    }
}

fn forwarded(snapshot: &Snapshot, pool: &Pool) -> String {
    let name = &pool.config.name;
    match snapshot.maintenance.scopes().contains(&Scope::Pool(name.clone())) {
        true => format!("forward to pool {name}, whose maintenance is for requests alone"),
        false => format!("forward to pool {name}"),
    }
}

/// The bandwidth limits of a connection or flow, and how much of the shared budget is left now.
fn bandwidth(listener: &Listener) -> Option<Screened> {
    let config = listener.config.bandwidth.as_ref()?;
    let (now, mut parts) = (clock::now(), Vec::new());
    let shared = &listener.bandwidth;
    for (way, own, all, meter) in [
        ("to the client", config.to_client, config.total_to_client, &shared.to_client),
        ("from the client", config.from_client, config.total_from_client, &shared.from_client),
    ] {
        let rate = weir_config::units::show_byte_rate;
        let own = own.map(|own| format!("{} each", rate(own)));
        let all = all.zip(meter.as_ref()).map(|(all, meter)| {
            format!("{} all together, {} % of their burst left", rate(all), meter.percent_left(now))
        });
        let said: Vec<String> = own.into_iter().chain(all).collect();
        if !said.is_empty() {
            parts.push(format!("{way} {}", said.join(", ")));
        }
    }
    let (of, name) = ("listener".to_owned(), "bandwidth".to_owned());
    Some(Screened { of, name, passes: true, reason: parts.join("; ") })
}
