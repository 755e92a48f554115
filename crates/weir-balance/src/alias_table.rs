//! Draws positions in proportion to weights in constant time.
//!
//! Source: Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 17
//! (1991).

#[derive(Debug)]
pub(crate) struct AliasTable {
    columns: Box<[Column]>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    /// The column keeps draws whose fraction is below this (2^32 = all); the alias gets the rest.
    threshold: u64,
    alias: u32,
}

impl AliasTable {
    /// O(n). Every weight must be above 0.
    pub(crate) fn new(weights: &[u32]) -> AliasTable {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let count = weights.len() as u64;
        // In units in which an even share is `total`.
        let mut share: Vec<u64> = weights.iter().map(|weight| u64::from(*weight) * count).collect();
        let mut columns: Box<[Column]> =
            (0..weights.len()).map(|own| Column { threshold: 1 << 32, alias: own as u32 }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|position| share[*position] < total);
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            let threshold = (u128::from(share[poor]) << 32) / u128::from(total);
            columns[poor] = Column { threshold: threshold as u64, alias: rich as u32 };
            share[rich] -= total - share[poor];
            if share[rich] < total {
                large.pop();
                small.push(rich);
            }
        }
        AliasTable { columns }
    }

    /// The position a uniform draw falls on. O(1).
    pub(crate) fn sample(&self, draw: u32) -> usize {
        let scaled = u64::from(draw) * self.columns.len() as u64;
        let at = (scaled >> 32) as usize;
        let column = self.columns[at];
        if (scaled & u64::from(u32::MAX)) < column.threshold { at } else { column.alias as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_fall_in_proportion_to_weight() {
        let weights = [1, 2, 3, 250, 0x1900, 64];
        let table = AliasTable::new(&weights);
        let total: u32 = weights.iter().sum();
        let draws = 1 << 20;
        let mut counts = [0u32; 6];
        // Evenly spaced draws instead of random ones: the test can't have bad luck.
        for step in 0..draws {
            counts[table.sample(step << 12)] += 1;
        }
        for (weight, count) in weights.iter().zip(counts) {
            let expected = f64::from(draws) * f64::from(*weight) / f64::from(total);
            assert!((f64::from(count) - expected).abs() <= 8.0, "weight {weight}: {count} of {expected}");
        }
    }

    #[test]
    fn equal_weights_never_use_the_alias() {
        let table = AliasTable::new(&[5; 7]);
        assert!(table.columns.iter().all(|column| column.threshold == 1 << 32));
        assert_eq!((table.sample(0), table.sample(u32::MAX)), (0, 6));
    }
}
