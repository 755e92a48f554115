//! The fields by which `auth` passes user data to backends. A backend trusts them by whichever way a request
//! reaches it, so clients must never be able to set them, not even on routes without `auth`.

use std::collections::{BTreeMap, BTreeSet};

use super::Authentication;
use crate::action::RouteAction;
use crate::config::Config;
use crate::listener::Listener;
use crate::route::Route;

impl Authentication {
    /// Names in lower case of the fields that carry user data to backends.
    pub fn told_to_backends(&self) -> impl Iterator<Item = &str> {
        let copied = self.forward.iter().flat_map(|forward| &forward.copy_to_backend);
        let of_name = self.basic.iter().filter_map(|basic| basic.user_header.as_ref());
        let of_claims = self.jwt.iter().flat_map(|jwt| jwt.claims.keys());
        copied.chain(of_name).chain(of_claims).map(String::as_str)
    }
}

impl Listener {
    /// The same for all `auth` of a listener, its own and that of its routes.
    pub fn told_to_backends(&self) -> BTreeSet<&str> {
        let of_routes = self.routes.iter().filter_map(|route| route.auth.as_ref());
        let all = self.http().auth.iter().chain(of_routes);
        all.flat_map(Authentication::told_to_backends).collect()
    }
}

impl Config {
    /// By pool name: the fields that carry user data to its backends on behalf of a listener or a route that
    /// leads there, including by a share, a mirror or a fallback. Pools without such fields are not in it.
    pub fn told_by_pool(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut told = BTreeMap::<&str, BTreeSet<&str>>::new();
        for listener in &self.listeners {
            let own = listener.http().auth.as_ref().zip(listener.pool.as_deref());
            let own = own.map(|(auth, pool)| (auth, self.with_fallbacks(pool, None)));
            let of_routes = listener.routes.iter().filter_map(|route| {
                let auth = route.auth.as_ref()?;
                Some((auth, self.reached_by(route)))
            });
            for (auth, pools) in own.into_iter().chain(of_routes) {
                let names: Vec<&str> = auth.told_to_backends().collect();
                for pool in pools.into_iter().filter(|_| !names.is_empty()) {
                    told.entry(pool).or_default().extend(&names);
                }
            }
        }
        told
    }

    /// All pools that requests of a route may reach.
    fn reached_by<'c>(&'c self, route: &'c Route) -> Vec<&'c str> {
        let RouteAction::Pool(pool) = &route.action else { return Vec::new() };
        let shares = route.split.iter().flat_map(|split| &split.to).map(|to| &to.pool);
        let by_map = route.pool_map.iter().flat_map(|by_map| &by_map.pools);
        let asked = std::iter::once(pool).chain(shares).chain(by_map);
        let served = asked.flat_map(|pool| self.with_fallbacks(pool, route.fallback_pool.as_deref()));
        served.chain(route.mirror.iter().map(|mirror| mirror.pool.as_str())).collect()
    }

    fn with_fallbacks<'c>(&'c self, pool: &'c str, of_route: Option<&'c str>) -> Vec<&'c str> {
        let mut all = self.fallbacks(pool, of_route);
        all.push(pool);
        all
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_told_of_users_is_told_to_every_pool_that_a_route_with_auth_leads_to() {
        let text = "
            [listener.web]
            bind = '127.0.0.1:80'
            pool = 'own'
            auth = { basic = { users = 'users', user_header = 'X-User' } }
            [[listener.web.route]]
            path = '/a'
            pool = 'app'
            fallback_pool = 'sorry'
            auth = { forward = { pool = 'who', copy_to_backend = ['remote-user', 'remote-groups'] } }
            split = { to = [{ pool = 'canary' }] }
            mirror = { pool = 'copy' }
            [[listener.web.route]]
            path = '/b'
            pool = 'open'
            auth = false
            [listener.api]
            bind = '127.0.0.1:81'
            pool = 'app'
            auth = { jwt = { keys = 'keys', audience = 'a', claims = { x-sub = 'sub' } } }
            [pool.own]
            backends = ['10.0.0.1:80']
            fallback_pool = 'sorry'
            [pool.app]
            backends = ['10.0.0.2:80']
            [pool.canary]
            backends = ['10.0.0.3:80']
            [pool.copy]
            backends = ['10.0.0.4:80']
            [pool.sorry]
            backends = ['10.0.0.5:80']
            [pool.open]
            backends = ['10.0.0.6:80']
            [pool.who]
            backends = ['10.0.0.7:80']
        ";
        let config = crate::parse("weir.toml", text).unwrap_or_else(|report| panic!("{report}"));
        let told = config.told_by_pool();
        let of = |pool: &str| told.get(pool).map(|names| names.iter().copied().collect::<Vec<_>>().join(" "));
        assert_eq!(of("app").as_deref(), Some("remote-groups remote-user x-sub"));
        assert_eq!(of("sorry").as_deref(), Some("remote-groups remote-user x-user"));
        for pool in ["canary", "copy"] {
            assert_eq!(of(pool).as_deref(), Some("remote-groups remote-user"), "{pool}");
        }
        assert_eq!(of("own").as_deref(), Some("x-user"));
        assert_eq!((of("open"), of("who")), (None, None));
        let of_web: Vec<&str> = config.listeners[0].told_to_backends().into_iter().collect();
        assert_eq!(of_web, ["remote-groups", "remote-user", "x-user"]);
    }
}
