//! A probe at all addresses at which its backend is probed: it is up if it answers at each of them.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use super::probe::{Answer, Failure, Target, probe_by};
use super::vips::{AskedAtVips, By, place_of};
use crate::kernel::VipWay;

/// Probes a backend once: at its own address, or concurrently at each of its listeners' addresses (VIPs), and
/// at its own if that is wanted as well. If all succeed, the result is that of the first. Afterwards `other`
/// holds the other address that accepted the connection, if one did.
pub(super) async fn probe(
    target: &Target,
    limit: Duration,
    other: &mut Option<SocketAddr>,
) -> Result<Answer, Failure> {
    let Some(asked) = &target.at_vips else {
        return probe_by(target, None, limit, other).await;
    };
    let mut worst: Option<(u8, Failure)> = None;
    let mut first = None;
    let probes = asked.each().map(|way| probe_at(target, asked, way, limit));
    for (result, accepted) in all(probes.collect()).await {
        *other = other.or(accepted);
        match result {
            Ok(answer) => drop(first.get_or_insert(answer)),
            Err(failure) => {
                let weight = weight(&failure, target);
                if worst.as_ref().is_none_or(|(held, _)| *held < weight) {
                    worst = Some((weight, failure));
                }
            }
        }
    }
    match (worst, first) {
        (Some((_, failure)), _) => Err(failure),
        (None, Some(answer)) => Ok(answer),
        (None, None) => unreachable!("there is a way"),
    }
}

/// Probes at one of the addresses. Also gives the other address of the backend's name that accepted the
/// connection, if any.
async fn probe_at(
    target: &Target,
    asked: &AskedAtVips,
    way: Option<&VipWay>,
    limit: Duration,
) -> (Result<Answer, Failure>, Option<SocketAddr>) {
    let mut other = None;
    let by = way.map(|way| By::new(way, asked, limit));
    let result = probe_by(target, by, limit, &mut other).await;
    let place = place_of(way, target.at.inet().map_or(0, |at| at.port()));
    (result.map_err(|failure| Failure::AtVip { place, failure: Box::new(failure) }), other)
}

/// Of several failures the one counts that says most of the backend.
fn weight(failure: &Failure, target: &Target) -> u8 {
    match (failure.is_unsent(target), failure.is_late()) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// The results of all futures, in their order.
async fn all<T, F: Future<Output = T>>(futures: Vec<F>) -> Vec<T> {
    let mut waiting: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, done) in waiting.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::probe::Question;
    use super::*;
    use crate::kernel::AskedPlaces;
    use weir_config::Forward;
    use weir_io::local_end::LocalEnd;

    fn way(vip: &str, forward: Forward) -> VipWay {
        VipWay { vip: vip.parse().unwrap(), forward, source: None }
    }

    fn target(ways: Vec<VipWay>) -> Target {
        Target {
            at: "127.0.0.1:80".parse::<SocketAddr>().unwrap().into(),
            choice: None,
            local_end: LocalEnd::default(),
            tls: None,
            send_proxy: None,
            question: Question::Connect,
            at_vips: Some(AskedAtVips {
                places: AskedPlaces { ways, and_own: false },
                probes: Arc::default(),
            }),
        }
    }

    #[test]
    fn it_is_said_where_and_which_way_a_backend_was_asked() {
        let target = target(vec![way("192.0.2.1", Forward::Ipip), way("2001:db8::1", Forward::Dsr)]);
        assert_eq!(
            target.asked(),
            " at VIP 192.0.2.1:80 through the tunnel and at VIP [2001:db8::1]:80 by its MAC address"
        );
        let failure = Failure::TimedOut { after: Duration::from_secs(1), connected: false };
        let place = place_of(Some(&way("192.0.2.1", Forward::Ipip)), 80);
        let failure = Failure::AtVip { place, failure: Box::new(failure) };
        assert!(failure.is_late() && !failure.is_unanswered());
        assert_eq!(
            failure.to_string(),
            "no answer at VIP 192.0.2.1:80 through the tunnel: did not accept within 1s"
        );
    }

    #[tokio::test]
    async fn where_nothing_has_probes_go_that_way_nothing_is_said_of_the_backend() {
        let target = target(vec![way("192.0.2.1", Forward::Dsr)]);
        let failure = probe(&target, Duration::from_secs(20), &mut None).await.unwrap_err();
        assert!(failure.is_unsent(&target), "{failure}");
    }

    #[tokio::test]
    async fn all_are_waited_for_and_come_in_their_order() {
        let slow = |count: u32| async move {
            for _ in 0..count {
                tokio::task::yield_now().await;
            }
            count
        };
        assert_eq!(all(vec![slow(3), slow(0), slow(1)]).await, [3, 0, 1]);
    }
}
