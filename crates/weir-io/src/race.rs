//! Connecting to a host with several addresses (Happy Eyeballs, RFC 8305): the next address is tried when the
//! one before has failed, or has not answered for a while. The first that accepts is used.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Most addresses that one connection tries. With 250 ms between them the last attempt starts within 2 s.
pub const TRIED: usize = 8;

/// The addresses to try, in order: `first`, then the families in turn, beginning with the other family (RFC
/// 8305 section 4), each family in the order of `others`. At most [`TRIED`], each once.
pub fn order(first: SocketAddr, others: &[SocketAddr]) -> Vec<SocketAddr> {
    let of_family = |is_v4: bool| {
        let of_it = move |it: &&SocketAddr| it.is_ipv4() == is_v4 && **it != first;
        others.iter().filter(of_it).copied()
    };
    let (mut next, mut after) = (of_family(!first.is_ipv4()), of_family(first.is_ipv4()));
    let mut order = vec![first];
    while order.len() < TRIED {
        let before = order.len();
        order.extend(next.next());
        order.extend(after.next());
        if order.len() == before {
            break;
        }
    }
    order.truncate(TRIED);
    order
}

/// Connects to the first of `addresses` that accepts, and returns that address too. `connect` tries one. Each
/// attempt starts `pause` after the one before it, or at once when all attempts so far have failed. Ends when
/// the caller drops the future, or when all have failed.
///
/// # Errors
/// No address accepted: the error of the first. Allocates, which is fine as few connections have a choice of
/// addresses.
pub async fn connect<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    pause: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<(SocketAddr, T)> {
    let mut waiting = addresses.iter().copied().peekable();
    let mut under_way: Vec<(SocketAddr, Pin<Box<F>>)> = Vec::new();
    let mut failed: Option<io::Error> = None;
    let mut timer = Box::pin(tokio::time::sleep(Duration::ZERO));
    poll_fn(|context| {
        loop {
            let mut index = 0;
            while let Some((address, attempt)) = under_way.get_mut(index) {
                match attempt.as_mut().poll(context) {
                    Poll::Ready(Ok(connection)) => return Poll::Ready(Ok((*address, connection))),
                    Poll::Ready(Err(error)) => {
                        let is_first = addresses.first() == Some(address);
                        if is_first || failed.is_none() {
                            failed = Some(error);
                        }
                        drop(under_way.remove(index));
                    }
                    Poll::Pending => index += 1,
                }
            }
            let is_due =
                under_way.is_empty() || waiting.peek().is_some() && timer.as_mut().poll(context).is_ready();
            if let Some(address) = waiting.next_if(|_| is_due) {
                timer = Box::pin(tokio::time::sleep(pause));
                under_way.push((address, Box::pin(connect(address))));
            } else if under_way.is_empty() {
                let none = || io::ErrorKind::AddrNotAvailable.into();
                return Poll::Ready(Err(failed.take().unwrap_or_else(none)));
            } else {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::RefCell;
    use std::future::pending;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_behind_the_one_in_use() {
        let all = addresses(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "[fd00::1]:80", "[fd00::2]:80"]);
        let expected = ["10.0.0.2:80", "[fd00::1]:80", "10.0.0.1:80", "[fd00::2]:80", "10.0.0.3:80"];
        assert_eq!(order(all[1], &all), addresses(&expected));
        let expected = ["[fd00::1]:80", "10.0.0.1:80", "[fd00::2]:80", "10.0.0.2:80", "10.0.0.3:80"];
        assert_eq!(order(all[3], &all), addresses(&expected));
        let many: Vec<SocketAddr> = (0..100u8).map(|last| SocketAddr::from(([10, 0, 1, last], 80))).collect();
        assert_eq!(order(all[3], &many).len(), TRIED);
    }

    /// What each of three addresses does, and whom it comes to; with whom was asked.
    async fn race(acts: [Option<bool>; 3]) -> (Option<u16>, Vec<u16>) {
        let all: Vec<SocketAddr> =
            (0..3u16).map(|port| SocketAddr::from(([10, 0, 0, 1], port + 1))).collect();
        let asked = RefCell::new(Vec::new());
        let try_one = |address: SocketAddr| {
            asked.borrow_mut().push(address.port());
            async move {
                match acts[usize::from(address.port()) - 1] {
                    None => pending().await,
                    Some(true) => Ok(()),
                    Some(false) => Err(io::Error::other(address.port().to_string())),
                }
            }
        };
        let result = connect(&all, Duration::from_millis(1), try_one).await;
        let got = match result {
            Ok((address, ())) => Some(address.port()),
            Err(error) => {
                assert_eq!(error.to_string(), "1", "the first one's reason");
                None
            }
        };
        (got, asked.into_inner())
    }

    #[tokio::test]
    async fn the_next_is_tried_when_the_one_before_fails_or_says_nothing() {
        assert_eq!(race([Some(true), None, None]).await, (Some(1), vec![1]));
        assert_eq!(race([Some(false), Some(true), None]).await, (Some(2), vec![1, 2]));
        assert_eq!(race([None, Some(true), None]).await, (Some(2), vec![1, 2]));
        assert_eq!(race([None, None, Some(true)]).await, (Some(3), vec![1, 2, 3]));
        assert_eq!(race([None, Some(false), Some(true)]).await, (Some(3), vec![1, 2, 3]));
        assert_eq!(race([Some(false); 3]).await, (None, vec![1, 2, 3]));
    }
}
