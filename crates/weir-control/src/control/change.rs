//! Changes that operators make to single backends while Weir runs.

use std::fmt;
use std::sync::Arc;

use weir_balance::{AdminState, MAX_WEIGHT};
use weir_config::meant;
use weir_io::clock;
use weir_state::{Origin, Pool, Snapshot};

use super::Control;
use crate::events::What;
use crate::publish::PublishError;

/// Most backends of a pool that one can be added to at run time; a config file may have more.
const MOST_BACKENDS: usize = 4096;

/// Why a change to a backend was not made.
#[derive(Debug)]
pub enum ChangeError {
    /// No pool has that name.
    NoPool {
        /// The name that was asked for.
        name: String,
        /// A suggestion for what may have been meant.
        meant: String,
    },
    /// The pool has no such backend.
    NoBackend {
        /// The address that was asked for.
        address: String,
        /// A suggestion for what may have been meant.
        meant: String,
    },
    /// The pool already has that backend.
    Exists(String),
    /// The requested change is invalid.
    Invalid(String),
    /// The pool would be empty.
    Last(String),
    /// It could not be put in force.
    Publish(PublishError),
}

impl From<PublishError> for ChangeError {
    fn from(error: PublishError) -> ChangeError {
        ChangeError::Publish(error)
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::NoPool { name, meant } => write!(out, "no pool is named `{name}`: {meant}"),
            ChangeError::NoBackend { address, meant } => {
                write!(out, "the pool has no backend `{address}`: {meant}")
            }
            ChangeError::Exists(backend) => write!(out, "the pool has backend `{backend}` already"),
            ChangeError::Invalid(message) => write!(out, "{message}"),
            ChangeError::Last(backend) => {
                write!(
                    out,
                    "`{backend}` is the pool's last backend: drain it instead (`weir drain`), or set its state to `maintenance` (PATCH)"
                )
            }
            ChangeError::Publish(error) => write!(out, "{error}"),
        }
    }
}

impl std::error::Error for ChangeError {}

impl ChangeError {
    /// For a name that no pool of the snapshot has.
    pub fn no_pool(name: &str, snapshot: &Snapshot) -> ChangeError {
        let names: Vec<&str> = snapshot.pools.iter().map(|pool| pool.config.name.as_str()).collect();
        ChangeError::NoPool { name: name.to_owned(), meant: meant(name, &names) }
    }

    /// For an address that no backend of the pool has.
    pub(super) fn no_backend(address: &str, pool: &Pool) -> ChangeError {
        let addresses: Vec<&str> = pool.backends.iter().map(|backend| &*backend.address).collect();
        ChangeError::NoBackend { address: address.to_owned(), meant: meant(address, &addresses) }
    }
}

impl Control {
    /// Changes a backend's administrative state, its weight, or both. In force when it returns. Returns its
    /// pool, and its index there.
    pub async fn tune(
        &self,
        pool: &str,
        backend: &str,
        state: Option<AdminState>,
        weight: Option<u32>,
    ) -> Result<(Arc<Pool>, usize), ChangeError> {
        let snapshot = self.snapshot();
        let pool = snapshot.pool(pool).cloned().ok_or_else(|| ChangeError::no_pool(pool, &snapshot))?;
        let index = pool.backends.iter().position(|it| it.address == backend);
        let index = index.ok_or_else(|| ChangeError::no_backend(backend, &pool))?;
        let now = clock::now();
        // The weight is checked before anything is set: a refused change changes nothing.
        if let Some(weight) = weight {
            pool.balance
                .set_weight(index, weight)
                .map_err(|error| ChangeError::Invalid(error.to_string()))?;
            self.tell_change(&pool.config.name, backend, format!("weight {weight}"));
        }
        if let Some(state) = state {
            pool.balance.set_admin_state(index, state, now);
            self.tell_change(&pool.config.name, backend, format!("state {}", state.word()));
        }
        pool.refresh(now);
        if state.is_some() && pool.config.mysql.is_some() {
            // Idle sessions may hold connections to it.
            self.proxy.wake_sessions();
        }
        if pool.bell.load().is_some() {
            self.kernel.follows().await;
        }
        Ok((pool, index))
    }

    /// Adds a backend: either until the next reload of the file, or permanently, so that it survives reloads
    /// and upgrades.
    pub async fn add_backend(
        &self,
        pool: &str,
        backend: weir_config::Backend,
        is_lasting: bool,
    ) -> Result<Arc<Snapshot>, ChangeError> {
        let others = self.snapshot().pool(pool).map_or_else(Vec::new, |pool| pool.backends.clone());
        check_backend(&backend, others.iter().map(|it| &*it.address))?;
        let lastingly = if is_lasting { " lastingly" } else { "" };
        let change = format!("added{lastingly}, weight {}", backend.weight);
        let address = backend.address.clone();
        let snapshot = self.publisher.change_pool(|before| {
            let (index, pool) = pool_of(before, pool)?;
            if pool.backends.iter().any(|it| it.address == backend.address) {
                return Err(ChangeError::Exists(backend.address));
            }
            if pool.backends.len() >= MOST_BACKENDS {
                return Err(ChangeError::Invalid(format!(
                    "the pool has {MOST_BACKENDS} backends, the most it can get at run time"
                )));
            }
            let change = match is_lasting {
                true => before.with_lasting(index, backend),
                false => before.with_backend(index, backend),
            };
            change.map_err(|error| ChangeError::Publish(PublishError::Tls(vec![error])))
        });
        let snapshot = snapshot.await?;
        self.tell_change(pool, &address, change);
        Ok(snapshot)
    }

    /// Removes a backend: one from the file until the next reload, one that was added through the API
    /// permanently. Its requests in progress continue.
    pub async fn remove_backend(&self, pool: &str, address: &str) -> Result<Arc<Snapshot>, ChangeError> {
        let snapshot = self.publisher.change_pool(|before| {
            let (index, pool) = pool_of(before, pool)?;
            let backend = pool.backends.iter().position(|it| it.address == address);
            let backend = backend.ok_or_else(|| ChangeError::no_backend(address, pool))?;
            if pool.backends.len() == 1 {
                return Err(ChangeError::Last(address.to_owned()));
            }
            let whose = match &pool.backends[backend].origin {
                Origin::Group => Some("was found in its group and".to_owned()),
                Origin::Name(name) => Some(format!("is what `{name}` stands for and")),
                Origin::Config | Origin::Api => None,
            };
            if let Some(whose) = whose {
                return Err(ChangeError::Invalid(format!(
                    "`{address}` {whose} would be found again: drain it instead (`weir drain`), or set its state to `maintenance` (PATCH)"
                )));
            }
            Ok(before.without_backend(index, backend))
        });
        let snapshot = snapshot.await?;
        self.tell_change(pool, address, "removed".to_owned());
        Ok(snapshot)
    }

    fn tell_change(&self, pool: &str, backend: &str, change: String) {
        tracing::info!(pool, backend, "operator: {change}");
        self.bus.tell(What::Backend { pool: pool.to_owned(), backend: backend.to_owned(), change });
    }
}

/// The pool with that name, and its index.
pub(super) fn pool_of<'s>(snapshot: &'s Snapshot, name: &str) -> Result<(usize, &'s Arc<Pool>), ChangeError> {
    let mut numbered = snapshot.pools.iter().enumerate();
    let found = numbered.find(|(_, pool)| pool.config.name == name);
    found.ok_or_else(|| ChangeError::no_pool(name, snapshot))
}

/// Whether a backend is given by an address without a port, so that clients reach it at the port that they
/// asked for.
fn has_no_port(address: &str) -> bool {
    weir_config::backend_at(address)
        .is_some_and(|at| at.port() == 0 && weir_config::show_backend(at) == address)
}

/// The checks of the config for a backend that does not come from a file. What they found for the `others` of
/// the pool also holds for this one: if one has no port, only the kernel plane uses the pool; if one is a
/// Unix socket, nothing needs an IP address.
pub(super) fn check_backend<'o>(
    backend: &weir_config::Backend,
    others: impl Iterator<Item = &'o str> + Clone,
) -> Result<(), ChangeError> {
    let invalid = |message: String| Err(ChangeError::Invalid(message));
    let named = backend.address.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let host_is_good = !host.is_empty() && host.len() <= 253 && host.bytes().all(plain);
        host_is_good && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let is_unix = |address: &str| weir_config::unix_name(address).is_some();
    let is_good_unix = is_unix(&backend.address) && weir_config::is_backend(&backend.address);
    let literal = backend.address.parse::<std::net::SocketAddr>().is_ok_and(|address| address.port() > 0);
    if is_good_unix && !others.clone().any(is_unix) {
        return invalid(format!(
            "address {:?} is a Unix socket, and no other backend of the pool is one: say it in the file",
            backend.address
        ));
    }
    if has_no_port(&backend.address) && !others.clone().any(has_no_port) {
        return invalid(format!(
            "address {:?} has no port, and no other backend of the pool lacks one: write host:port",
            backend.address
        ));
    }
    if !named && !literal && !is_good_unix && !has_no_port(&backend.address) {
        return invalid(format!(
            "address {:?} is not expected: write host:port or unix:/path",
            backend.address
        ));
    }
    if backend.weight > MAX_WEIGHT {
        return invalid(format!("weight {} is too large, expected 0 to {MAX_WEIGHT}", backend.weight));
    }
    if backend.max_connections == Some(0) {
        return invalid("max_connections 0 would take nothing, expected at least 1".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(address: &str) -> weir_config::Backend {
        weir_config::Backend { address: address.to_owned(), weight: 1, ..weir_config::Backend::default() }
    }

    #[test]
    fn only_an_address_with_host_and_port_can_be_added_or_one_like_another() {
        let check = |backend: &_, others: &[&str]| check_backend(backend, others.iter().copied());
        for good in ["127.0.0.1:80", "[::1]:8080", "app-1.internal:9000"] {
            assert!(check(&backend(good), &["10.0.0.1:80"]).is_ok(), "{good}");
        }
        for (kind, like) in [
            ("127.0.0.1", "10.0.0.1"),
            ("[::1]", "10.0.0.1"),
            ("unix:/run/b", "unix:@a"),
            ("unix:@b", "unix:@a"),
        ] {
            assert!(check(&backend(kind), &["10.0.0.1:80", like]).is_ok(), "{kind}");
            assert!(check(&backend(kind), &["10.0.0.1:80"]).is_err(), "{kind}");
        }
        for bad in [
            "",
            "unix:app.sock",
            "unix:/a b",
            "127.0.0.1",
            "127.0.0.1:0",
            "::1:80x",
            "a b:80",
            "host\r\nx: y:80",
            ":80",
            "host:99999",
        ] {
            assert!(check(&backend(bad), &["unix:@a"]).is_err(), "{bad}");
        }
        assert!(check(&weir_config::Backend { weight: 257, ..backend("a:1") }, &[]).is_err());
        assert!(check(&weir_config::Backend { max_connections: Some(0), ..backend("a:1") }, &[]).is_err());
    }
}
