//! Which order may prove a domain by handshakes. A validating client names the domain but not the order, so
//! if two orders offered proofs at once, one would be validated with the other's.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Orders that wait for each other, with their numbers, in order of arrival. An order that is first for all
/// of its domains has its turn. No order waits for a later one, so none waits for ever.
#[derive(Default)]
pub(super) struct Turns {
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    of_domains: HashMap<Box<str>, VecDeque<u64>>,
    wakers: HashMap<u64, Waker>,
    next: u64,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an order for `domains`; returns its number.
    pub fn begin(&self, domains: &[String]) -> u64 {
        let mut lines = self.lock();
        let number = lines.next;
        lines.next += 1;
        for domain in domains {
            let line = lines.of_domains.entry(domain.as_str().into()).or_default();
            if line.back() != Some(&number) {
                line.push_back(number);
            }
        }
        number
    }

    /// Waits until `number` is first for all of its domains.
    pub async fn come(&self, number: u64, domains: &[String]) {
        poll_fn(|context| {
            let mut lines = self.lock();
            if lines.is_first(number, domains) {
                return Poll::Ready(());
            }
            lines.wakers.insert(number, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Removes an order from the queues, whether or not its turn has come.
    pub fn end(&self, number: u64, domains: &[String]) {
        let mut lines = self.lock();
        lines.wakers.remove(&number);
        let mut next = Vec::new();
        for domain in domains {
            let Some(line) = lines.of_domains.get_mut(domain.as_str()) else { continue };
            line.retain(|other| *other != number);
            match line.front() {
                Some(first) => next.push(*first),
                None => drop(lines.of_domains.remove(domain.as_str())),
            }
        }
        let wakers: Vec<Waker> = next.iter().filter_map(|first| lines.wakers.remove(first)).collect();
        drop(lines);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Lines {
    fn is_first(&self, number: u64, domains: &[String]) -> bool {
        let first = |domain: &String| self.of_domains.get(domain.as_str()).and_then(VecDeque::front).copied();
        domains.iter().all(|domain| first(domain) == Some(number))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn has_come(turns: &Turns, number: u64, domains: &[String]) -> bool {
        let come = pin!(turns.come(number, domains));
        come.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Two authorities, lists that overlap, or a name on demand beside another entry's.
    #[test]
    fn orders_that_share_a_domain_have_their_turns_one_after_the_other() {
        let turns = Turns::default();
        let all = [&["a", "b"][..], &["b", "c"], &["c", "c", "a"], &["d"]];
        let all = all.map(|domains| domains.iter().map(|domain| (*domain).to_owned()).collect::<Vec<_>>());
        let numbers = all.each_ref().map(|domains| turns.begin(domains));
        let come = || [0, 1, 2, 3].map(|index| has_come(&turns, numbers[index], &all[index]));
        assert_eq!(come(), [true, false, false, true], "the last shares nothing with them");
        turns.end(numbers[0], &all[0]);
        assert_eq!(come(), [false, true, false, true], "the second came before the third");
        // One that waits may be given up.
        turns.end(numbers[2], &all[2]);
        assert_eq!(come(), [false, true, false, true]);
        turns.end(numbers[1], &all[1]);
        turns.end(numbers[3], &all[3]);
        assert!(turns.lock().of_domains.is_empty());
    }
}
