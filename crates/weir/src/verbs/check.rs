//! `weir check`

use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use weir_config::Config;
use weir_control::reload::Source;
use weir_control::this_host;

use crate::arguments::ConfigArgument;
use crate::client::{block_on, config_paths};
use crate::exit::Exit;

/// Time for one name lookup and one connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks whether Weir would accept the config files and the files that they name. With `online`, also shows
/// the certificates and tries to reach the backends from here. The final message says whether all is good.
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

/// Prints the certificates and whether the backends can be reached from here. Returns how many are out of
/// date or can't be reached (count).
fn look_around(config: &Config) -> Result<usize, Exit> {
    let found = weir_control::certificates::look(config);
    let bad = found.into_iter().filter(|found| !said(&found.what, &found.said)).count();
    Ok(bad + block_on(reach_all(config))?)
}

/// Warns where the config does not fit this host's interfaces, routes and ports, or this process's rights.
/// These are not errors, because the config may be for another machine.
fn warn_of_this_host(config: &Config) {
    for doubt in this_host::missing_rights(config).into_iter().chain(this_host::short_of_ports(config)) {
        tell!("warning: {doubt}");
    }
    // If this machine does not list its interfaces, there is nothing to compare with.
    for (listener, what) in weir_control::kernel::look_at_interfaces(config).unwrap_or_default() {
        tell!("warning: listener `{listener}`: {what}");
    }
}

fn count(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// Prints what was found and returns whether it is good.
fn said(what: &str, found: &Result<String, String>) -> bool {
    match found {
        Ok(found) => say!("  {what}: {found}"),
        Err(error) => say!("  {what}: FAILED, {error}"),
    }
    found.is_ok()
}

/// Resolves every backend's name and connects to it unless it is used for UDP, all concurrently. Prints the
/// results in the order of the file and returns how many can't be reached (count).
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
    // A backend without a port of its own is tried at the port of its probes.
    let without_port = weir_config::backend_at(&address).filter(|at| at.port() == 0);
    let address = match (without_port, probed) {
        (None, _) => address,
        (Some(at), Some(port)) => std::net::SocketAddr::new(at.ip(), port).to_string(),
        (Some(_), None) => return Ok("not tried, it has no port of its own".to_owned()),
    };
    let late = |what: &str| format!("{what} within {PATIENCE:?}");
    if let Some(name) = weir_config::unix_name(&address) {
        // tokio would take the `@` of an abstract name for the first character of a path.
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
