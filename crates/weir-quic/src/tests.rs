//! The transport against `quinn`, another implementation's client loop, over real sockets.

use std::net::UdpSocket as StdSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

pub mod rig;

use rig::{Rig, local};

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[test]
fn streams_are_echoed_whole_both_small_and_large() {
    local(async {
        let rig = Rig::start(1);
        let connection = rig.connect().await;
        for size in [0, 1, 1_000, 100_000, 3_000_000] {
            let sent: Vec<u8> = (0..size).map(|index: u32| (index % 251) as u8).collect();
            assert!(rig.echo(&connection, &sent).await == sent, "{size} bytes came back changed");
        }
        assert_eq!(read(&rig.counts(0).established_count), 1);
    });
}

#[test]
fn many_streams_share_a_connection() {
    local(async {
        let rig = Rig::start(1);
        let connection = rig.connect().await;
        let echoes: Vec<_> = (0..200u32)
            .map(|number| {
                let (rig, connection) = (rig.clone(), connection.clone());
                tokio::task::spawn_local(async move {
                    let sent = number.to_be_bytes().repeat(500);
                    assert_eq!(rig.echo(&connection, &sent).await, sent);
                })
            })
            .collect();
        for echo in echoes {
            echo.await.unwrap();
        }
    });
}

#[test]
fn a_client_that_moves_to_another_port_keeps_its_connection_and_its_worker() {
    local(async {
        let rig = Rig::start(4);
        let mut passed_on = 0;
        for _ in 0..8 {
            let client = rig.client();
            let connection = rig.connect_with(&client).await;
            assert_eq!(rig.echo(&connection, b"before").await, b"before");
            let before = connection.stable_id();
            let moved = StdSocket::bind("127.0.0.1:0").unwrap();
            let address = moved.local_addr().unwrap();
            client.rebind(moved).unwrap();
            assert_eq!(rig.echo(&connection, b"after").await, b"after");
            assert_eq!(connection.stable_id(), before);
            rig.until("the new address is proved", || rig.clients().contains(&address)).await;
            connection.close(0u32.into(), b"");
            passed_on = (0..4).map(|worker| read(&rig.counts(worker).forwarded_count)).sum();
        }
        // Nothing steers in this rig: by chance alone all eight would have stayed where they were once in
        // 65,536 runs.
        assert!(passed_on > 0, "no datagram was passed on between workers");
    });
}

#[test]
fn the_address_of_a_client_that_cannot_be_reached_there_is_not_believed() {
    local(async {
        let (rig, relay, _client, connection) = rig::behind_a_relay().await;
        let genuine = rig.clients()[0];
        // From now on the client's packets come from elsewhere, from one place after the other, and what is
        // sent there reaches nobody.
        for _ in 0..5 {
            let spoofed = relay.divert();
            let (mut send, _receive) = connection.open_bi().await.unwrap();
            send.write_all(b"spoofed").await.unwrap();
            rig.until("packets come from the other address", || rig.paths() == [spoofed]).await;
        }
        relay.restore();
        rig.until("packets come from where the client is", || rig.paths() == [genuine]).await;
        assert_eq!(rig.clients(), [genuine], "an address was believed that nobody answered from");
        assert!(relay.spoofed_bytes() > 0);
        // A few challenges of full length are free; without the limit there would be one for every address.
        let most = 3 * relay.spoofed_bytes() + 4 * 1_200;
        assert!(relay.diverted_bytes() <= most, "{}", relay.diverted_bytes());
        assert_eq!(rig.echo(&connection, b"after").await, b"after");
    });
}

#[test]
fn a_client_that_moves_to_another_host_and_loses_what_it_is_sent_there_first_is_heard() {
    local(async {
        let (rig, relay, _client, connection) = rig::behind_a_relay().await;
        for lost in [1, 2] {
            let moved = relay.moves(&format!("127.0.0.{}", 2 + lost), lost).await;
            assert_eq!(rig.echo(&connection, b"after").await, b"after", "{lost} lost");
            rig.until("the new address is proved", || rig.clients() == [moved]).await;
        }
    });
}

#[test]
fn a_client_that_returns_to_a_host_it_has_proved_is_challenged_there_at_once() {
    local(async {
        let (rig, relay, _client, connection) = rig::behind_a_relay().await;
        let first = rig.clients()[0];
        let moved = relay.moves("127.0.0.3", 0).await;
        assert_eq!(rig.echo(&connection, b"after").await, b"after");
        rig.until("the new address is proved", || rig.clients() == [moved]).await;
        let (connection, now) = (rig.connection(), std::time::Instant::now());
        for _ in 0..8 {
            connection.note_received(first, 40, now);
            assert!(connection.may_send(first, 1_200, now));
        }
        assert!(!connection.may_send(first, 1_200, now), "it does not answer");
    });
}

#[test]
fn a_translation_that_gives_a_client_many_ports_does_not_use_up_its_challenges() {
    local(async {
        let (rig, relay, _client, connection) = rig::behind_a_relay().await;
        for _ in 0..8 {
            let moved = relay.moves("127.0.0.1", 0).await;
            assert_eq!(rig.echo(&connection, b"after").await, b"after");
            rig.until("the new port is proved", || rig.clients() == [moved]).await;
        }
        let (connection, now) = (rig.connection(), std::time::Instant::now());
        let another = "127.0.0.1:9".parse().unwrap();
        connection.note_received(another, 40, now);
        assert!(connection.may_send(another, 1_200, now));
    });
}

#[test]
fn a_peer_that_was_asked_and_says_nothing_seems_gone_until_it_is_heard() {
    local(async {
        let (rig, relay, _client, connection) = rig::behind_a_relay().await;
        let nobody = StdSocket::bind("127.0.0.1:0").unwrap();
        relay.lead_to(nobody.local_addr().unwrap());
        let peer = rig.connection();
        let asked = std::time::Instant::now() + Duration::from_millis(600);
        let much_later = asked + Duration::from_secs(60);
        assert!(!peer.seems_gone_at(asked), "nobody has asked it before");
        assert!(!peer.seems_gone_at(asked + Duration::from_millis(1)), "it has time to answer");
        assert!(peer.seems_gone_at(much_later));
        relay.lead_to(rig.address());
        while peer.seems_gone_at(much_later) {
            assert_eq!(rig.echo(&connection, b"after").await, b"after");
        }
    });
}

#[test]
fn a_server_is_silent_after_some_looks_and_not_because_time_has_passed() {
    local(async {
        let (rig, relay, _client, connection) = rig::behind_a_relay().await;
        let nobody = StdSocket::bind("127.0.0.1:0").unwrap();
        relay.lead_to(nobody.local_addr().unwrap());
        let peer = rig.connection();
        peer.note_asked();
        // As if this process had been stalled: received data is not read yet.
        let much_later = std::time::Instant::now() + Duration::from_secs(60);
        for _ in 0..3 {
            peer.look(much_later);
            assert!(!peer.is_silent());
        }
        peer.look(much_later);
        assert!(peer.is_silent());
        relay.lead_to(rig.address());
        while peer.is_silent() {
            assert_eq!(rig.echo(&connection, b"after").await, b"after");
        }
        peer.note_asked();
        assert!(!peer.is_silent(), "it has been heard since");
    });
}

#[test]
fn beyond_a_number_of_open_handshakes_clients_prove_their_address_first() {
    local(async {
        let rig = Rig::start(1);
        // First packets of clients that will never answer.
        let flood = StdSocket::bind("127.0.0.1:0").unwrap();
        for initial in rig::initials(endpoint::RETRY_ABOVE + 50) {
            flood.send_to(&initial, rig.address()).unwrap();
            tokio::task::yield_now().await;
        }
        rig.until("the flood has been seen", || {
            read(&rig.counts(0).begun_count) + read(&rig.counts(0).retried_count)
                >= endpoint::RETRY_ABOVE as u64 + 50
        })
        .await;
        assert_eq!(read(&rig.counts(0).begun_count), endpoint::RETRY_ABOVE as u64);
        assert_eq!(read(&rig.counts(0).retried_count), 50);
        // An honest client gets in all the same.
        let connection = rig.connect().await;
        assert_eq!(rig.echo(&connection, b"honest").await, b"honest");
        assert_eq!(read(&rig.counts(0).retried_count), 51);
        // And what the flood holds is let go.
        rig.until("the flood's handshakes time out", || rig.open_connections(0) == 1).await;
    });
}

#[test]
fn nobody_gets_more_than_three_times_what_he_sent_before_he_has_answered() {
    local(async {
        let rig = Rig::start(1);
        let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let initial = rig::initials(1).remove(0);
        client.send_to(&initial, rig.address()).await.unwrap();
        let mut received = 0;
        let mut room = [0; 2048];
        // Long enough for the answer to be sent again more than once.
        while let Ok(Ok((count, _))) =
            tokio::time::timeout(Duration::from_millis(1_500), client.recv_from(&mut room)).await
        {
            received += count;
        }
        assert!(received > 0, "no answer at all");
        assert!(received <= 3 * initial.len(), "{received} bytes for {}", initial.len());
    });
}

#[test]
fn malformed_first_packets_neither_harm_nor_hold_anything() {
    local(async {
        let rig = Rig::start(1);
        let socket = StdSocket::bind("127.0.0.1:0").unwrap();
        let whole = rig::initials(1).remove(0);
        let mut sent = 0;
        // Cut short at every length, and with every byte of the header changed.
        for length in (0..whole.len()).step_by(7) {
            socket.send_to(&whole[..length], rig.address()).unwrap();
            sent += 1;
        }
        for index in 0..60 {
            for flip in [1, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[index] ^= flip;
                socket.send_to(&changed, rig.address()).unwrap();
                sent += 1;
            }
            tokio::task::yield_now().await;
        }
        let connection = rig.connect().await;
        assert_eq!(rig.echo(&connection, b"still here").await, b"still here");
        assert!(sent > 300);
        rig.until("nothing is held", || rig.open_connections(0) == 1).await;
    });
}

#[test]
fn a_connection_of_a_process_that_is_gone_is_reset_with_the_key_that_outlived_it() {
    local(async {
        let old = Rig::start(1);
        let relay = rig::Relay::start(old.address()).await;
        let client = old.client();
        let connection = old.connect_to(&client, relay.address()).await;
        assert_eq!(old.echo(&connection, b"old").await, b"old");
        let new = Rig::start_after(&old, 1);
        relay.lead_to(new.address());
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(&[7; 600]).await.unwrap();
        let error = tokio::time::timeout(Duration::from_secs(5), connection.closed()).await.unwrap();
        assert!(matches!(error, quinn::ConnectionError::Reset), "{error}");
    });
}

#[test]
fn datagrams_that_are_not_ours_are_not_answered() {
    local(async {
        let rig = Rig::start(1);
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut random = [0x40; 1200];
        aws_lc_rs::rand::fill(&mut random[1..]).unwrap();
        for _ in 0..100 {
            socket.send_to(&random, rig.address()).await.unwrap();
            random[3] = random[3].wrapping_add(1);
        }
        rig.until("they have been dropped", || read(&rig.counts(0).drops[0]) >= 100).await;
        assert_eq!(
            read(&rig.counts(0).responded_count),
            0,
            "a reset would tell that there is something to reset"
        );
    });
}

#[test]
fn no_more_resets_are_drawn_out_of_a_worker_than_its_interval_allows() {
    local(async {
        let rig = Rig::start(1);
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let began = std::time::Instant::now();
        for _ in 0..300 {
            let mut packet = [0x40; 1200];
            packet[1..=cid::BYTES].copy_from_slice(&rig.id_of_nobody(0));
            socket.send_to(&packet, rig.address()).await.unwrap();
            tokio::task::yield_now().await;
        }
        let seen = rig.counts(0);
        let done = || read(&seen.responded_count) + read(&seen.drops[counts::Drop::Unknown as usize]);
        rig.until("each was reset or dropped", || done() == 300).await;
        let most = began.elapsed().as_millis() / keys::RESET_INTERVAL.as_millis() + 1;
        let resets = read(&seen.responded_count);
        assert!((1..=most).contains(&resets.into()), "{resets} resets where {most} are allowed");
    });
}

#[test]
fn a_new_process_passes_on_what_belongs_to_the_old_one() {
    local(async {
        let old = Rig::start(2);
        let client = old.client();
        let mut connections = Vec::new();
        for _ in 0..8 {
            connections.push(old.connect_with(&client).await);
        }
        let new = Rig::take_over(&old, 2);
        for connection in &connections {
            assert_eq!(
                old.echo(connection, b"served by the old process").await,
                b"served by the old process"
            );
        }
        assert!((0..2).map(|worker| read(&new.counts(worker).forwarded_count)).sum::<u64>() > 0);
        let connection = new.connect_to(&client, old.address()).await;
        assert_eq!(new.echo(&connection, b"served by the new one").await, b"served by the new one");
        assert_eq!((0..2).map(|worker| read(&new.counts(worker).established_count)).sum::<u64>(), 1);
        // A large answer crosses too: it is the old process that sends.
        let large = vec![9; 1_000_000];
        assert!(old.echo(&connections[0], &large).await == large);
    });
}
