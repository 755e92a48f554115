//! The table of a pool: which backend is in which slot.

use weir_balance::maglev;

use crate::layout::Algorithm;
use crate::wanted::Pool;

/// Longest sequence of turns. Weights that would need a longer one are rounded.
const MAX_TURNS: u64 = 4_096;

/// The slots of `pool`; each has the result of `number_of` for an index in its members. Empty if no member
/// gets new flows.
///
/// For hashing the table is [`maglev::fill`]'s, so that both planes choose alike. Takes up to 2 ms for a
/// Maglev table.
pub fn slots(pool: &Pool, number_of: impl Fn(usize) -> u16) -> Vec<u16> {
    match pool.algorithm {
        Algorithm::Hash => {
            let members: Vec<(u64, u32)> =
                pool.members.iter().map(|member| (member.id, member.weight)).collect();
            maglev::fill(&members).into_iter().map(|position| number_of(position as usize)).collect()
        }
        Algorithm::Turns => turns(pool).into_iter().map(number_of).collect(),
        Algorithm::LeastFlows => {
            let takes_flows = pool.members.iter().enumerate().filter(|(_, member)| member.weight > 0);
            takes_flows.map(|(position, _)| number_of(position)).collect()
        }
    }
}

/// One round of turns: each member occurs in proportion to its weight, spread evenly (smooth weighted round
/// robin, as in nginx).
fn turns(pool: &Pool) -> Vec<usize> {
    let divisor = pool.members.iter().fold(0, |divisor, member| greatest_divisor(divisor, member.weight));
    let whole: u64 = pool.members.iter().map(|member| u64::from(member.weight)).sum();
    if whole == 0 {
        return Vec::new();
    }
    let exact = whole / u64::from(divisor.max(1));
    let of = |weight: u32| match exact <= MAX_TURNS {
        true => u64::from(weight / divisor),
        false => (u64::from(weight) * MAX_TURNS / whole).max(u64::from(weight > 0)),
    };
    let shares: Vec<u64> = pool.members.iter().map(|member| of(member.weight)).collect();
    let length: u64 = shares.iter().sum();
    let mut credit = vec![0i64; shares.len()];
    let mut sequence = Vec::with_capacity(length as usize);
    for _ in 0..length {
        credit.iter_mut().zip(&shares).for_each(|(credit, share)| *credit += *share as i64);
        let due = (0..credit.len()).max_by_key(|at| (credit[*at], std::cmp::Reverse(*at))).unwrap_or(0);
        credit[due] -= length as i64;
        sequence.push(due);
    }
    sequence
}

fn greatest_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::HashKey;
    use crate::wanted::Member;

    fn pool(algorithm: Algorithm, weights: &[u32]) -> Pool {
        let member = |(at, weight): (usize, &u32)| Member {
            id: 1000 + at as u64,
            address: format!("10.0.0.{}:80", at + 1).parse().unwrap(),
            weight: *weight,
            is_alive: true,
            source: None,
            failures_within: std::time::Duration::ZERO,
        };
        let members = weights.iter().enumerate().map(member).collect();
        Pool { name: "app".to_owned(), algorithm, hash_key: HashKey::Client, members }
    }

    #[test]
    fn turns_follow_the_weights_and_are_spread() {
        let turns = slots(&pool(Algorithm::Turns, &[500, 100, 100]), |at| at as u16);
        assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(slots(&pool(Algorithm::Turns, &[100, 100]), |at| at as u16), [0, 1]);
        assert!(slots(&pool(Algorithm::Turns, &[0, 0]), |at| at as u16).is_empty());
    }

    #[test]
    fn weights_without_a_common_measure_are_rounded_and_nobody_is_left_out() {
        let turns = slots(&pool(Algorithm::Turns, &[25_599, 25_600, 1, 0]), |at| at as u16);
        assert!(turns.len() <= 4_097);
        let count = |number: u16| turns.iter().filter(|turn| **turn == number).count();
        assert!(count(0).abs_diff(count(1)) <= 1);
        assert_eq!((count(2), count(3)), (1, 0));
    }

    #[test]
    fn a_table_by_hash_is_the_balancers_own() {
        let pool = pool(Algorithm::Hash, &[100, 200, 0]);
        let expected = maglev::fill(&[(1000, 100), (1001, 200), (1002, 0)]);
        let found = slots(&pool, |at| at as u16 + 7);
        assert_eq!(found.len(), maglev::TABLE_SIZE as usize);
        assert!(found.iter().zip(expected).all(|(found, expected)| u32::from(*found) == expected + 7));
    }

    #[test]
    fn the_fewest_flows_are_looked_for_among_who_takes_some() {
        assert_eq!(slots(&pool(Algorithm::LeastFlows, &[100, 0, 300]), |at| at as u16), [0, 2]);
    }
}
