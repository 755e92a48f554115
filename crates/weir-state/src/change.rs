//! Adds, removes or alters one backend of one pool: everything else in the new snapshot is the same `Arc`,
//! not an equal copy.

use std::sync::Arc;

use weir_balance::BackendSettings;
use weir_config::Config;
use weir_io::clock;
use weir_tls::LoadError;

use crate::pool::{Backend, Origin, Pool, settled_role, tls_host};
use crate::snapshot::Snapshot;

/// A snapshot with one backend more, one fewer or one altered, compared to the snapshot it was made from.
pub struct PoolChange {
    /// What to serve.
    pub snapshot: Arc<Snapshot>,
    /// Index of the pool, the same in both snapshots.
    pub pool: usize,
    /// The backend that was added.
    pub added: Option<Arc<Backend>>,
    /// The backend that was removed; work in progress there continues.
    pub removed: Option<Arc<Backend>>,
}

impl PoolChange {
    /// The pool after the change.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.snapshot.pools[self.pool]
    }
}

impl Snapshot {
    /// Adds a backend at the end of its pool. Reads no file. The backend's counters have as many copies as
    /// those of the pool: one for every thread that counts.
    ///
    /// Costs in proportion to the backends of that pool and to the number of pools.
    ///
    /// # Errors
    /// The pool speaks TLS, and the backend's host is not a valid server name.
    pub fn with_backend(&self, pool: usize, config: weir_config::Backend) -> Result<PoolChange, LoadError> {
        self.with_one_more(pool, config, Origin::Config)
    }

    /// Like [`Self::with_backend`], for a backend that outlives reloads and upgrades.
    ///
    /// # Errors
    /// As [`Self::with_backend`].
    pub fn with_lasting(&self, pool: usize, config: weir_config::Backend) -> Result<PoolChange, LoadError> {
        self.with_one_more(pool, config, Origin::Api)
    }

    /// Like [`Self::with_backend`], for an address that a name of the config resolved to. `is_assumed_up`
    /// says whether the backend takes work before a probe has found it up.
    ///
    /// # Errors
    /// As [`Self::with_backend`].
    pub fn with_member(
        &self,
        pool: usize,
        config: weir_config::Backend,
        name: &str,
        is_assumed_up: bool,
    ) -> Result<PoolChange, LoadError> {
        let change = self.with_one_more(pool, config, Origin::Name(name.into()))?;
        if let (false, Some(added)) = (is_assumed_up, &change.added) {
            let settings = added.balance.settings();
            added.balance.reconfigure(BackendSettings { assumed_up: false, ..settings });
            change.pool().refresh(clock::now());
        }
        Ok(change)
    }

    /// Like [`Self::with_backend`], for a member of the MySQL group that the config does not name. It
    /// outlives reloads.
    ///
    /// # Errors
    /// As [`Self::with_backend`].
    pub fn with_found(&self, pool: usize, address: &str) -> Result<PoolChange, LoadError> {
        let address = address.to_owned();
        let config = weir_config::Backend { address, weight: 1, ..weir_config::Backend::default() };
        self.with_one_more(pool, config, Origin::Group)
    }

    fn with_one_more(
        &self,
        pool: usize,
        config: weir_config::Backend,
        origin: Origin,
    ) -> Result<PoolChange, LoadError> {
        let old = &self.pools[pool];
        let host = tls_host(&origin, &config.address);
        let tls = old.tls.as_ref().map(|tls| tls.for_backend(host, None)).transpose()?;
        let role = settled_role(&old.config, old.backends.len());
        let mut configured = old.configured.clone();
        if origin == Origin::Config {
            Arc::make_mut(&mut configured).backends.push(config.clone());
        }
        let added = Backend { origin, ..Backend::new(&config, role, tls, old.cells.iter().count()) };
        let added = Arc::new(added);
        let mut of_pool = weir_config::Pool::clone(&old.config);
        of_pool.backends.push(config);
        let mut backends = old.backends.clone();
        backends.push(added.clone());
        let snapshot = self.with_pool(pool, old.with_backends(of_pool, configured, backends));
        Ok(PoolChange { snapshot, pool, added: Some(added), removed: None })
    }

    /// Removes the backend at this index of a pool.
    ///
    /// Costs in proportion to the backends of that pool and to the number of pools.
    pub fn without_backend(&self, pool: usize, index: usize) -> PoolChange {
        let old = &self.pools[pool];
        let mut of_pool = weir_config::Pool::clone(&old.config);
        of_pool.backends.remove(index);
        let mut backends = old.backends.clone();
        let removed = backends.remove(index);
        let mut configured = old.configured.clone();
        if removed.origin == Origin::Config {
            Arc::make_mut(&mut configured).backends.retain(|it| it.address != removed.address);
        }
        let snapshot = self.with_pool(pool, old.with_backends(of_pool, configured, backends));
        PoolChange { snapshot, pool, added: None, removed: Some(removed) }
    }

    /// Changes the weight or tier of the backend at this index of a pool, as the name it came from now says.
    /// Whoever puts the snapshot in force applies the change to the backend itself.
    pub fn with_altered(&self, pool: usize, index: usize, weight: u32, backup: bool) -> PoolChange {
        let old = &self.pools[pool];
        let mut of_pool = weir_config::Pool::clone(&old.config);
        let altered = &mut of_pool.backends[index];
        (altered.weight, altered.backup) = (weight, backup);
        let (configured, backends) = (old.configured.clone(), old.backends.clone());
        let snapshot = self.with_pool(pool, old.with_backends(of_pool, configured, backends));
        PoolChange { snapshot, pool, added: None, removed: None }
    }

    fn with_pool(&self, index: usize, pool: Pool) -> Arc<Snapshot> {
        let mut config = Config::clone(&self.config);
        config.pools[index] = pool.config.clone();
        let mut pools = self.pools.clone();
        pools[index] = Arc::new(pool);
        Arc::new(Snapshot {
            generation: self.generation + 1,
            config: Arc::new(config),
            listeners: self.listeners.clone(),
            pools,
            maintenance: self.maintenance.clone(),
            maps: self.maps.clone(),
            token_keys: self.token_keys.clone(),
            peer_keys: self.peer_keys.clone(),
            displaced: Vec::new(),
        })
    }
}

impl Pool {
    fn with_backends(
        &self,
        config: weir_config::Pool,
        configured: Arc<weir_config::Pool>,
        backends: Vec<Arc<Backend>>,
    ) -> Pool {
        let members = backends.iter().map(|backend| backend.balance.clone()).collect();
        let balance = self.balance.rebuilt(self.balance.settings().clone(), members, clock::now());
        Pool {
            config: Arc::new(config),
            configured,
            balance: Arc::new(balance),
            backends,
            local_end: self.local_end.clone(),
            tls: self.tls.clone(),
            sticky: self.sticky.clone(),
            cells: self.cells.clone(),
            queue: self.queue.clone(),
            bell: self.bell.clone(),
            nudge: self.nudge.clone(),
            hidden: self.hidden.clone(),
            account: self.account.clone(),
            client_login: self.client_login.clone(),
            accounts: self.accounts.clone(),
            full_logins: self.full_logins.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pools: &str) -> Snapshot {
        let text = format!("[listener.web]\nbind = \"127.0.0.1:80\"\npool = \"app\"\n{pools}");
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 3)
    }

    const TWO: &str = "[pool.app]\nbackends = ['10.0.0.1:80', '10.0.0.2:80']\n[pool.other]\nbackends = ['10.0.1.1:80']\nbalance = 'maglev'\n";

    fn backend(address: &str) -> weir_config::Backend {
        weir_config::Backend { address: address.to_owned(), weight: 1, ..weir_config::Backend::default() }
    }

    fn same<T>(one: &[Arc<T>], other: &[Arc<T>]) -> bool {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    #[test]
    fn a_backend_that_comes_and_goes_leaves_all_other_pools_and_listeners_the_very_same() {
        let before = snapshot(TWO);
        let change = before.with_backend(0, backend("10.0.0.3:80")).unwrap();
        let after = &change.snapshot;
        assert_eq!((after.generation, after.pools[0].backends.len()), (2, 3));
        assert!(same(&after.listeners, &before.listeners) && same(&after.pools[1..], &before.pools[1..]));
        assert!(same(&after.config.pools[1..], &before.config.pools[1..]));
        assert!(same(&after.config.listeners, &before.config.listeners));
        assert!(same(&after.pools[0].backends[..2], &before.pools[0].backends));
        assert_eq!(after.config.pools[0].backends.len(), 3);
        let copies = after.pools[0].backends.iter().map(|backend| backend.cells.iter().count());
        assert_eq!(copies.collect::<Vec<_>>(), [3; 3], "each thread that counts has its own");

        let change = after.without_backend(0, 0);
        let last = &change.snapshot;
        assert!(same(&last.pools[0].backends, &after.pools[0].backends[1..]));
        assert!(Arc::ptr_eq(&change.removed.unwrap(), &before.pools[0].backends[0]));
        assert_eq!(last.pools[0].balance.eligible().len(), 2);
    }

    #[test]
    fn a_weight_that_was_set_by_hand_stays_when_another_backend_comes() {
        let before = snapshot(TWO);
        before.pools[0].backends[1].balance.set_weight(7).unwrap();
        let change = before.with_backend(0, backend("10.0.0.3:80")).unwrap();
        let weights: Vec<u32> = change.pool().backends.iter().map(|it| it.balance.weight()).collect();
        assert_eq!(weights, [1, 7, 1]);
    }

    #[test]
    fn a_reload_keeps_the_pools_that_it_says_nothing_new_of() {
        let before = snapshot(TWO);
        let again = weir_config::parse(
            "weir.toml",
            &format!(
                "[listener.web]\nbind = \"127.0.0.1:80\"\npool = \"app\"\n{}",
                TWO.replace("'10.0.0.2:80'", "'10.0.0.9:80'")
            ),
        );
        let after = Snapshot::compile(Arc::new(again.unwrap()), &Default::default(), Some(&before), 1);
        assert!(Arc::ptr_eq(&after.pools[1], &before.pools[1]));
        assert!(Arc::ptr_eq(&after.pools[0].backends[0], &before.pools[0].backends[0]));
        assert!(!Arc::ptr_eq(&after.pools[0], &before.pools[0]));
    }

    #[test]
    fn a_backend_that_was_found_outlives_a_reload_until_the_file_names_it_or_asks_no_group() {
        let group = "[pool.app]\nbackends = ['10.0.0.1:3306']\n[pool.app.mysql]\nuser = 'weir'\n";
        let config = |pool: &str| {
            let text =
                format!("[listener.web]\nprotocol = 'mysql'\nbind = '127.0.0.1:80'\npool = 'app'\n{pool}");
            let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
            Arc::new(config)
        };
        let compile = |pool: &str, before: Option<&Snapshot>| {
            Snapshot::compile(config(pool), &Default::default(), before, 1)
        };
        let before = compile(group, None).with_found(0, "10.0.0.2:3306").unwrap().snapshot;
        let found = |snapshot: &Snapshot| {
            let found = snapshot.pools[0].backends.iter().filter(|it| it.origin == Origin::Group);
            found.map(|it| it.address.clone()).collect::<Vec<_>>()
        };
        let after = compile(group, Some(&before));
        assert!(Arc::ptr_eq(&after.pools[0], &before.pools[0]), "nothing is new");
        assert_eq!((found(&after), after.config.pools[0].backends.len()), (vec!["10.0.0.2:3306".into()], 2));
        assert_eq!(*after.configured(), *config(group), "the file says nothing of it");

        let named = group.replace("'10.0.0.1:3306'", "'10.0.0.1:3306', '10.0.0.2:3306'");
        let after = compile(&named, Some(&before));
        assert!(found(&after).is_empty() && after.pools[0].backends.len() == 2);
        let same = |at: &Snapshot| at.pools[0].backends[1].cells.clone();
        assert!(Arc::ptr_eq(&same(&after), &same(&before)), "its counters go on");

        let fixed = group.replace("user = 'weir'", "topology = 'static'");
        assert_eq!(compile(&fixed, Some(&before)).pools[0].backends.len(), 1);
    }

    #[test]
    fn what_a_reload_keeps_follows_from_why_a_backend_is_there() {
        let config = |text: &str| {
            let text = format!("[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n{text}");
            Arc::new(weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}")))
        };
        let compile = |text: &str, before: &Snapshot| {
            Snapshot::compile(config(text), &Default::default(), Some(before), 3)
        };
        let all = "[pool.app]\nbackends = ['unix:@a', { address = 'app.example:80', resolve = 'all' }]\n";
        let before = snapshot(all);
        let before = before.with_member(0, backend("10.0.0.1:80"), "app.example:80", true).unwrap().snapshot;
        let before = before.with_member(0, backend("10.9.0.1:80"), "app.example:80", true).unwrap().snapshot;
        let before = before.with_lasting(0, backend("unix:@b")).unwrap().snapshot;
        let before = before.with_lasting(0, backend("10.0.0.8:80")).unwrap().snapshot;
        let before = before.with_backend(0, backend("10.0.0.9:80")).unwrap().snapshot;
        let kept = |text: &str| {
            let after = compile(text, &before);
            let kept = after.pools[0].backends.iter();
            kept.map(|it| (it.address.clone(), it.origin.word())).collect::<Vec<_>>()
        };
        let expected = |all: &[(&str, &'static str)]| -> Vec<(String, &'static str)> {
            all.iter().map(|(address, word)| ((*address).to_owned(), *word)).collect()
        };
        let by_name = [("10.0.0.1:80", "name"), ("10.9.0.1:80", "name")];
        let lasting = [("unix:@b", "api"), ("10.0.0.8:80", "api")];
        assert_eq!(kept(all), expected(&[&[("unix:@a", "config")][..], &by_name, &lasting].concat()));
        let restricted = format!("{all}[dns]\nallow_address = '10.0.0.0/16'\n");
        assert_eq!(
            kept(&restricted),
            expected(&[&[("unix:@a", "config")][..], &by_name[..1], &lasting].concat())
        );
        let named = "[pool.app]\nbackends = ['10.0.0.1:80']\n";
        assert_eq!(kept(named), expected(&[("10.0.0.1:80", "config"), ("10.0.0.8:80", "api")]));

        let heavier = all.replace("resolve = 'all'", "resolve = 'all', weight = 7, max_connections = 2");
        let after = compile(&heavier, &before);
        let member = &after.config.pools[0].backends[1];
        assert_eq!((member.weight, member.max_connections), (7, Some(2)));
        assert_eq!(after.pools[0].backends[1].balance.weight(), 7);
        assert_eq!(*after.configured(), *config(&heavier), "the file says nothing of members");
        let shown = after.shown().pools[0].backends.len();
        assert_eq!(shown, 4, "what the file has and what was added lastingly");
    }

    #[test]
    fn one_that_was_leaving_works_again_once_the_file_names_it() {
        let before = snapshot(
            "[pool.app]\nbackends = ['10.0.0.1:80', { address = 'app.example:80', resolve = 'all' }]\n",
        );
        let before = before.with_member(0, backend("10.0.0.2:80"), "app.example:80", true).unwrap().snapshot;
        before.pools[0].backends[1].balance.set_leaving(true);
        let text =
            "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.2:80']\n";
        let named = Arc::new(weir_config::parse("weir.toml", text).unwrap());
        let after = Snapshot::compile(named, &Default::default(), Some(&before), 3);
        assert!(!after.pools[0].backends[0].balance.is_leaving());
    }

    #[test]
    fn what_a_snapshot_changed_about_live_backends_can_be_undone() {
        let before = snapshot(TWO);
        before.pools[0].backends[0].balance.set_weight(9).unwrap();
        let text = format!(
            "[listener.web]\nbind = \"127.0.0.1:80\"\npool = \"app\"\n{}",
            TWO.replace("'10.0.0.2:80'", "{ address = '10.0.0.2:80', max_connections = 3 }")
        );
        let config = weir_config::parse("weir.toml", &text).unwrap();
        let after = Snapshot::compile(Arc::new(config), &Default::default(), Some(&before), 1);
        let of = |index: usize| &before.pools[0].backends[index].balance;
        assert_eq!((of(0).weight(), of(1).max_connections()), (1, Some(3)), "the cells are the same");
        after.undo();
        assert_eq!((of(0).weight(), of(1).max_connections()), (9, None));
    }
}
