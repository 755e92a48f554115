//! Which of several pools a route's request goes to: by share, and by what tells requests apart.

use weir_balance::stable_hash;
use weir_template::{Source, Template};

/// The shares of a route.
pub struct Split {
    /// `None` tells requests apart by their ids.
    by: Option<Template>,
    /// Indexes of pools, and up to which part of all hashes each gets them.
    pools: Box<[(usize, f64)]>,
}

impl Split {
    /// Compiles; `pool` gives the index of a pool by its name, which the config's check has made sure of.
    pub fn compile(config: &weir_config::Split, pool: impl Fn(&str) -> Option<usize>) -> Split {
        let mut until = 0.0;
        let shares = config.to.iter().filter_map(|to| {
            until += to.share;
            Some((pool(&to.pool)?, until))
        });
        Split { pools: shares.collect(), by: config.by.clone() }
    }

    /// The index of the pool that a request with these values goes to; `None` for the route's own.
    pub fn choose(&self, values: &(impl Source + ?Sized), request_id: &[u8]) -> Option<usize> {
        let hash = match &self.by {
            None => stable_hash(request_id),
            Some(template) => {
                let mut value = Vec::with_capacity(64);
                template.render_any(values, &mut value).then(|| stable_hash(&value))?
            }
        };
        // 53 bits are what a float holds.
        let part = (hash >> 11) as f64 / (1_u64 << 53) as f64;
        self.pools.iter().find(|(_, until)| part < *until).map(|(pool, _)| *pool)
    }

    /// Which shares go where, and by what, in words; `name` gives that of a pool by its index.
    pub fn words<'n>(&self, name: impl Fn(usize) -> &'n str) -> String {
        let by = self.by.as_ref().map_or("$request_id", Template::as_written);
        let mut words = format!("by {by}: ");
        let mut before = 0.0;
        for (pool, until) in &self.pools {
            words += &format!("{:.1} % {}, ", (until - before) * 100.0, name(*pool));
            before = *until;
        }
        words + "the rest as the route says"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(shares: &[f64]) -> Split {
        let to = shares.iter().map(|share| weir_config::SplitPool { pool: "p".to_owned(), share: *share });
        let config = weir_config::Split { by: None, to: to.collect() };
        let next = std::cell::Cell::new(0);
        Split::compile(&config, |_| Some(next.replace(next.get() + 1)))
    }

    #[test]
    fn each_pool_gets_its_share_and_a_request_always_the_same() {
        let split = split(&[0.1, 0.25]);
        let mut counts = [0; 3];
        for number in 0..100_000_u32 {
            let id = number.to_string();
            let chosen = split.choose(&(), id.as_bytes());
            assert_eq!(chosen, split.choose(&(), id.as_bytes()));
            counts[chosen.map_or(2, |pool| pool)] += 1;
        }
        for (count, expected) in counts.into_iter().zip([10_000, 25_000, 65_000_i32]) {
            assert!((count - expected).abs() < 600, "{counts:?}");
        }
    }

    #[test]
    fn none_gets_nothing_and_all_get_everything() {
        let id = |number: u32| number.to_string().into_bytes();
        assert!((0..1000).all(|number| split(&[0.0]).choose(&(), &id(number)).is_none()));
        assert!((0..1000).all(|number| split(&[1.0]).choose(&(), &id(number)) == Some(0)));
    }
}
