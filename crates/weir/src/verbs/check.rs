//! `weir check`

use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use weir_config::Config;
use weir_control::reload::Source;
use weir_control::this_host;

use crate::arguments::ConfigArgument;
use crate::client::{block_on, config_paths};
use crate::exit::Exit;

/// For one name and one connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says whether the files would be taken, and those that they name; with `online`, what its certificates are
/// and whether its backends can be reached from here. That it is good is said last.
pub fn check(config: &ConfigArgument, online: bool) -> Result<Exit, Exit> {
    let paths = config_paths(config);
    if paths.is_empty() {
        let why = "no config file: looked for $WEIR_CONFIG, ./weir.toml and /etc/weir/weir.toml";
        return Err(Exit::Refused.saying(why));
    }
    let name = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    let checked = Source::Files(paths).read().map_err(|error| Exit::refusing(&error))?;
    if !checked.warnings.is_empty() {
        tell!("{}", checked.warnings.to_string().trim_end());
    }
    warn_of_this_host(&checked.config);
    let failed = if online { look_around(&checked.config)? } else { 0 };
    let Config { listeners, pools, .. } = &checked.config;
    let backends: usize = pools.iter().map(|pool| pool.backends.len()).sum();
    let (listeners, pools) = (count(listeners.len(), "listener"), count(pools.len(), "pool"));
    let has = format!("{listeners}, {pools}, {}", count(backends, "backend"));
    if failed > 0 {
        let why = format!("{name}: would be taken ({has}), and {} as said above", count(failed, "failure"));
        return Err(Exit::Failed.saying(why));
    }
    say!("{name}: good, {has}");
    Ok(Exit::Done)
}

/// Prints what its certificates are and whether its backends can be reached from here; how many are out of
/// date or can't be (count).
fn look_around(config: &Config) -> Result<usize, Exit> {
    let found = weir_control::certificates::look(config);
    let bad = found.into_iter().filter(|found| !said(&found.what, &found.said)).count();
    Ok(bad + block_on(reach_all(config))?)
}

/// Says where it does not go together with the interfaces and routes of this host, its ports and what this
/// process may do: it may be meant for another machine, so that this is no mistake.
fn warn_of_this_host(config: &Config) {
    for doubt in this_host::missing_rights(config).into_iter().chain(this_host::short_of_ports(config)) {
        tell!("warning: {doubt}");
    }
    // On a machine that does not say which it has there is nothing to compare with.
    for (listener, what) in weir_control::kernel::look_at_interfaces(config).unwrap_or_default() {
        tell!("warning: listener `{listener}`: {what}");
    }
}

fn count(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// Prints what was found; whether that is good.
fn said(what: &str, found: &Result<String, String>) -> bool {
    match found {
        Ok(found) => say!("  {what}: {found}"),
        Err(error) => say!("  {what}: FAILED, {error}"),
    }
    found.is_ok()
}

/// Resolves and connects to every backend, all at once; prints them in the order of the file, and gives how
/// many can't be reached (count).
async fn reach_all(config: &Config) -> usize {
    let udp: Vec<&str> = config
        .listeners
        .iter()
        .filter(|listener| listener.protocol() == weir_config::Protocol::Udp)
        .filter_map(|listener| listener.pool.as_deref())
        .collect();
    let mut tries = Vec::new();
    for pool in &config.pools {
        for backend in &pool.backends {
            let connects = !udp.contains(&pool.name.as_str());
            tries.push((
                &pool.name,
                &backend.address,
                tokio::spawn(reach(backend.address.clone(), pool.health.port, connects)),
            ));
        }
    }
    let mut failed = 0;
    for (pool, address, trying) in tries {
        let reached = trying.await.unwrap_or_else(|panicked| Err(panicked.to_string()));
        failed += usize::from(!said(&format!("{pool}/{address}"), &reached));
    }
    failed
}

async fn reach(address: String, probed: Option<u32>, connects: bool) -> Result<String, String> {
    if weir_config::is_service(&address) {
        return Ok("not tried, its hosts are asked for when Weir runs".to_owned());
    }
    let probed = probed.and_then(|port| u16::try_from(port).ok());
    // One without a port of its own is tried where probes ask it.
    let without_port = weir_config::backend_at(&address).filter(|at| at.port() == 0);
    let address = match (without_port, probed) {
        (None, _) => address,
        (Some(at), Some(port)) => std::net::SocketAddr::new(at.ip(), port).to_string(),
        (Some(_), None) => return Ok("not tried, it has no port of its own".to_owned()),
    };
    let late = |what: &str| format!("{what} within {PATIENCE:?}");
    if let Some(name) = weir_config::unix_name(&address) {
        // tokio's would take the `@` of an abstract name for a path of two bytes.
        let name = name.strip_prefix('@').map_or_else(|| name.to_owned(), |name| format!("\0{name}"));
        let connected = tokio::time::timeout(PATIENCE, UnixStream::connect(name)).await;
        connected.map_err(|_| late("did not accept"))?.map_err(|error| error.to_string())?;
        return Ok("accepts".to_owned());
    }
    let looked_up = tokio::time::timeout(PATIENCE, tokio::net::lookup_host(&address)).await;
    let mut found =
        looked_up.map_err(|_| late("not resolved"))?.map_err(|error| format!("not resolved: {error}"))?;
    let first = found.next().ok_or("the name has no address")?;
    let named = if first.to_string() == address { String::new() } else { format!("{first}, ") };
    if !connects {
        return Ok(format!("{named}not tried, UDP has no connections"));
    }
    let connected = tokio::time::timeout(PATIENCE, TcpStream::connect(first)).await;
    connected.map_err(|_| late("did not accept"))?.map_err(|error| format!("{named}{error}"))?;
    Ok(format!("{named}accepts"))
}
