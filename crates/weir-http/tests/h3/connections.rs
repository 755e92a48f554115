//! Announcements of a connection, and its end.

use super::peer::{GET, frame, head};
use super::*;

#[test]
fn a_server_says_what_it_takes_in_settings_before_anything_else() {
    let mut peer = Peer::silent(&h3::Config::new(&Limits::default()));
    let said = peer.receives(OwnStream::Control);
    assert_eq!(said[..2], [0x00, 0x04]);
    let settings = h3::Settings::read(&said[3..3 + usize::from(said[2])]).unwrap();
    let expected = h3::Settings {
        qpack_table_capacity: 4096,
        qpack_blocked_streams: 16,
        section_bytes: Some(Limits::default().section_bytes() as u64),
        connect_protocol: true,
        datagram: false,
    };
    assert_eq!(settings, expected);
    // A reserved frame, which everyone must ignore, ends it.
    let mut client = Connection::new(&h3::Config::new(&Limits::default()), 1);
    assert_eq!(client.receive(3, &said), Ok(PeerStream::Read));
    assert_eq!(client.poll_event(), Some(Event::Settings(expected)));
    assert_eq!(client.poll_event(), None);
    assert_eq!(peer.receives(OwnStream::Control), b"");
    assert_eq!(peer.receives(OwnStream::QpackDecoder), b"");
}

#[test]
fn every_draw_gives_settings_that_the_other_side_takes() {
    for draw in (0..u32::MAX).step_by(104_729) {
        let mut server = Connection::new(&h3::Config::new(&Limits::default()), draw);
        let mut client = Connection::new(&h3::Config::new(&Limits::default()), draw);
        assert_eq!(client.receive(3, server.pending(OwnStream::Control)), Ok(PeerStream::Read));
        assert!(matches!(client.poll_event(), Some(Event::Settings(_))));
    }
}

#[test]
fn what_is_configured_never_exceeds_the_bounds_of_threat_c4() {
    let config = h3::Config {
        qpack_table_capacity: 1 << 20,
        qpack_blocked_streams: 1000,
        ..h3::Config::new(&Limits::default())
    };
    let mut peer = Peer::silent(&config);
    let said = peer.receives(OwnStream::Control);
    let settings = h3::Settings::read(&said[3..3 + usize::from(said[2])]).unwrap();
    assert_eq!((settings.qpack_table_capacity, settings.qpack_blocked_streams), (4096, 16));
}

#[test]
fn without_a_table_nothing_is_announced_inserted_or_acknowledged() {
    let config = h3::Config { qpack_table_capacity: 0, ..h3::Config::new(&Limits::default()) };
    let mut peer = Peer::silent(&config);
    peer.sends(6, &uni(0x02, &hex("20"))).unwrap();
    peer.connection.abandon(0).unwrap();
    assert_eq!(peer.receives(OwnStream::QpackDecoder), b"");
    assert_eq!(peer.requests(0, &frame(0x01, &hex("02 00 80"))), Err(Fault::SectionInsertCount));
    assert_eq!(peer.sends(6, &hex("21")), Err(Fault::InstructionCapacity));
}

#[test]
fn the_streams_of_a_client_may_come_in_any_order_and_pieces() {
    let mut peer = Peer::silent(&h3::Config::new(&Limits::default()));
    assert_eq!(peer.sends(10, &[0x40]), Ok(PeerStream::Read));
    assert_eq!(peer.sends(6, &[0xc0, 0, 0, 0, 0, 0, 0]), Ok(PeerStream::Read));
    assert_eq!(peer.requests(0, &head(GET)).unwrap().sections, [fields_of(GET)]);
    // 10 is the encoder stream, with its type in two bytes, 6 the control stream, with its in eight.
    assert_eq!(peer.sends(10, &hex("02 3fe11f 416e0361")), Ok(PeerStream::Read));
    assert_eq!(peer.sends(6, &hex("00 04 05 0640")), Ok(PeerStream::Read));
    assert_eq!(peer.sends(10, &hex("6263")), Ok(PeerStream::Read));
    assert_eq!(peer.events(), []);
    assert_eq!(peer.sends(6, &hex("ff 08 01")), Ok(PeerStream::Read));
    let settings =
        h3::Settings { section_bytes: Some(0xff), connect_protocol: true, ..h3::Settings::default() };
    assert_eq!(peer.events(), [Event::Settings(settings)]);
    assert_eq!(peer.receives(OwnStream::QpackDecoder), hex("03 01"));
}

#[test]
fn draining_first_announces_the_end_and_then_refuses_what_is_new() {
    let mut peer = Peer::new();
    peer.receives(OwnStream::Control);
    assert!(peer.connection.admit(0).is_some());
    peer.connection.announce_end();
    peer.connection.announce_end();
    assert_eq!(peer.receives(OwnStream::Control), hex("07 08 ff ff ff ff ff ff ff fc"));
    assert!(peer.connection.admit(8).is_some());
    // Requests may arrive in another order than they were opened in.
    assert!(peer.connection.admit(4).is_some());
    peer.connection.refuse_requests();
    peer.connection.refuse_requests();
    assert_eq!(peer.receives(OwnStream::Control), hex("07 01 0c"));
    assert!(peer.connection.admit(12).is_none() && peer.connection.admit(16).is_none());
    assert_eq!(Connection::REFUSED.value(), 0x10b);
    // Late announcements say nothing larger than before.
    peer.connection.announce_end();
    assert_eq!(peer.receives(OwnStream::Control), b"");
}

#[test]
fn a_connection_without_requests_refuses_the_first() {
    let mut peer = Peer::new();
    peer.receives(OwnStream::Control);
    peer.connection.refuse_requests();
    assert_eq!(peer.receives(OwnStream::Control), hex("07 01 00"));
    assert!(peer.connection.admit(0).is_none());
}

#[test]
fn of_several_goaways_the_last_is_told() {
    let mut peer = Peer::new();
    peer.events();
    let frames = [frame(0x7, &[9]), frame(0xd, &[3]), frame(0x7, &[5]), frame(0x7, &[5])].concat();
    peer.sends(2, &frames).unwrap();
    assert_eq!(peer.events(), [Event::GoAway(5)]);
}

#[test]
fn a_servers_goaway_names_a_stream_of_a_request() {
    let backend = || Peer::silent(&h3::Config::of_backend(&Limits::default()));
    let goaway = |id: u8| uni(0x00, &[settings_frame(), frame(0x7, &[id])].concat());
    for id in 0..16 {
        let expected = if id % 4 == 0 { Ok(PeerStream::Read) } else { Err(Fault::GoAwayStream) };
        assert_eq!(backend().sends(3, &goaway(id)), expected, "{id}");
    }
}
