//! Chooses the pool of a route's request by the value of a map.

/// The pools that a map may name.
pub struct PoolMap {
    map: Box<str>,
    pools: Box<[MappedPool]>,
}

struct MappedPool {
    name: Box<[u8]>,
    index: usize,
    /// Its fallback pools, by index, in order.
    fallbacks: Box<[usize]>,
}

impl PoolMap {
    /// Compiles the config; `pool` gives the index of a pool by its name (the config's check has made sure
    /// that it exists), and `fallbacks` its fallback pools.
    pub fn compile(
        config: &weir_config::PoolMap,
        pool: impl Fn(&str) -> Option<usize>,
        fallbacks: impl Fn(&str) -> Box<[usize]>,
    ) -> PoolMap {
        let compile = |name: &String| {
            let fallbacks = fallbacks(name);
            Some(MappedPool { name: name.as_bytes().into(), index: pool(name)?, fallbacks })
        };
        PoolMap { map: config.map.as_str().into(), pools: config.pools.iter().filter_map(compile).collect() }
    }

    /// The map's name.
    pub fn map(&self) -> &str {
        &self.map
    }

    /// The index of the pool that a value of the map names; `None` for the route's own.
    pub fn choose(&self, value: Option<&[u8]>) -> Option<usize> {
        let value = value?;
        self.pools.iter().find(|pool| *pool.name == *value).map(|pool| pool.index)
    }

    /// The fallback pools of a pool that the map has named; `None` for any other.
    pub fn fallbacks(&self, asked: usize) -> Option<&[usize]> {
        self.pools.iter().find(|pool| pool.index == asked).map(|pool| &*pool.fallbacks)
    }

    /// Which map names which pools, in words.
    pub fn words(&self) -> String {
        let names: Vec<_> = self.pools.iter().map(|pool| String::from_utf8_lossy(&pool.name)).collect();
        format!("by map {}: {}, the rest as the route says", self.map, names.join(", "))
    }
}
