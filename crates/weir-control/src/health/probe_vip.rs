//! A probe at listeners' addresses, which a backend has that answers past the kernel plane: it is up where it
//! answers at all of them.

use std::future::{Future, poll_fn};
use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use weir_io::local_end::LocalEnd;

use super::probe::{Answer, Failure, Target, probe_by};
use crate::kernel::{PassingProbe, VipProbes, VipWay};

/// At which addresses a backend is asked, rather than at its own.
#[derive(Clone)]
pub struct AskedAtVips {
    /// One for each, of the backend's family; not empty.
    pub ways: Vec<VipWay>,
    /// What has probes go those ways.
    pub probes: Arc<VipProbes>,
}

impl std::fmt::Debug for AskedAtVips {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ways.fmt(out)
    }
}

impl PartialEq for AskedAtVips {
    fn eq(&self, other: &AskedAtVips) -> bool {
        self.ways == other.ways
    }
}

impl Eq for AskedAtVips {}

impl Hash for AskedAtVips {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ways.hash(state);
    }
}

/// One of the ways, for one probe.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    way: &'a VipWay,
    probes: &'a VipProbes,
    limit: Duration,
}

impl By<'_> {
    /// Connects to the listener's address at a backend.
    pub async fn connect(
        &self,
        local_end: &LocalEnd,
        to: SocketAddr,
    ) -> io::Result<(TcpStream, PassingProbe)> {
        self.probes.connect(self.way, local_end, to, self.limit).await
    }
}

/// "at VIP 192.0.2.1:80 through the tunnel".
pub(super) fn place_of(way: &VipWay, port: u16) -> String {
    format!("at VIP {} {way}", SocketAddr::new(way.vip, port))
}

/// Probes once at each of the addresses, side by side. The first is the answer where all are good.
pub(super) async fn probe(
    target: &Target,
    asked: &AskedAtVips,
    limit: Duration,
    other: &mut Option<SocketAddr>,
) -> Result<Answer, Failure> {
    let port = target.at.inet().map_or(0, |at| at.port());
    let one = |way| async move {
        let mut other = None;
        let by = By { way, probes: &asked.probes, limit };
        let result = probe_by(target, Some(by), limit, &mut other).await;
        let place = place_of(way, port);
        (result.map_err(|failure| Failure::AtVip { place, failure: Box::new(failure) }), other)
    };
    let mut worst: Option<(u8, Failure)> = None;
    let mut first = None;
    for (result, accepted) in all(asked.ways.iter().map(one).collect()).await {
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

/// Of several failures the one counts that says most of the backend.
fn weight(failure: &Failure, target: &Target) -> u8 {
    match (failure.is_unsent(target), failure.is_late()) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// What comes of all of them, in their order.
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
    use super::super::probe::Question;
    use super::*;
    use weir_config::Forward;

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
            at_vips: Some(AskedAtVips { ways, probes: Arc::default() }),
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
        let place = place_of(&way("192.0.2.1", Forward::Ipip), 80);
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
        let failure =
            super::super::probe::probe(&target, Duration::from_secs(20), &mut None).await.unwrap_err();
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
