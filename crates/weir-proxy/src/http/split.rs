//! Decides which of several pools a route's request goes to, by share and by a key of the request.
//!
//! Requests are hashed. The first pool gets its share of the hashes from the lowest up, the others get theirs
//! from the highest down, and the route's own pool gets what is between: so a share at either end can grow
//! without taking clients from another pool of the split.

use std::ops::Range;

use weir_balance::stable_hash;
use weir_template::{Source, Template};

/// The shares of a route.
pub struct Split {
    /// The key's template; `None` for the request id.
    by: Option<Template>,
    /// Indexes of pools, and the range of hashes, within 0.0 to 1.0, that each gets.
    pools: Box<[(usize, Range<f64>)]>,
}

impl Split {
    /// Compiles the config; `pool` gives the index of a pool by its name, which the config's check has
    /// verified.
    pub fn compile(config: &weir_config::Split, pool: impl Fn(&str) -> Option<usize>) -> Split {
        let mut end = 1.0;
        let shares = config.to.iter().enumerate().filter_map(|(index, to)| {
            let part = if index == 0 { 0.0..to.share } else { end - to.share..end };
            if index > 0 {
                end = part.start;
            }
            Some((pool(&to.pool)?, part))
        });
        Split { pools: shares.collect(), by: config.by.clone() }
    }

    /// The index of the pool for a request with these values; `None` for the route's own.
    pub fn choose(&self, values: &(impl Source + ?Sized), request_id: &[u8]) -> Option<usize> {
        let hash = match &self.by {
            None => stable_hash(request_id),
            Some(template) => {
                let mut value = Vec::with_capacity(64);
                template.render_any(values, &mut value).then(|| stable_hash(&value))?
            }
        };
        // A float holds 53 bits.
        let part = (hash >> 11) as f64 / (1_u64 << 53) as f64;
        self.pools.iter().find(|(_, range)| range.contains(&part)).map(|(pool, _)| *pool)
    }

    /// Which shares go where, and by which key, in words; `name` gives the name of a pool by its index.
    pub fn words<'n>(&self, name: impl Fn(usize) -> &'n str) -> String {
        let by = self.by.as_ref().map_or("$request_id", Template::as_written);
        let mut words = format!("by {by}: ");
        for (pool, part) in &self.pools {
            words += &format!("{:.1} % {}, ", (part.end - part.start) * 100.0, name(*pool));
        }
        words + "the rest as the route says"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::number_of;

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
    fn a_share_that_grows_takes_clients_of_the_rest_alone() {
        let ids = || (0..10_000_u32).map(|number| number.to_string());
        let of = |shares: &[f64], id: &str| split(shares).choose(&(), id.as_bytes());
        for grown in [[0.3, 0.2], [0.1, 0.4]] {
            for id in ids() {
                let before = of(&[0.1, 0.2], &id);
                let after = of(&grown, &id);
                assert!(before.is_none() || before == after, "{id}: {before:?}, then {after:?}");
            }
        }
    }

    #[test]
    fn a_share_of_the_lines_of_a_log_has_both_sides_of_a_split() {
        let split = split(&[0.1]);
        let ids = (0..100_000_u32).map(|number| number.to_string());
        let logged = ids.filter(|id| number_of(id.as_bytes()) < u64::MAX / 20);
        let sides: Vec<bool> = logged.map(|id| split.choose(&(), id.as_bytes()).is_some()).collect();
        let share = sides.iter().filter(|is_new| **is_new).count() as f64 / sides.len() as f64;
        assert!((0.08..0.12).contains(&share), "{share}");
    }

    #[test]
    fn none_gets_nothing_and_all_get_everything() {
        let id = |number: u32| number.to_string().into_bytes();
        assert!((0..1000).all(|number| split(&[0.0]).choose(&(), &id(number)).is_none()));
        assert!((0..1000).all(|number| split(&[1.0]).choose(&(), &id(number)) == Some(0)));
    }
}
