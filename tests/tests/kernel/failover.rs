//! Backends that fail: seen by their probes, and by what becomes of real connections.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use weir_tests::dialogue::{SLOWNESS, Sets, Setup, Weir, alone, until};
use weir_tests::network::{Network, PATIENCE};
use weir_tests::raw::{FIN, SYN, Segment, Sender};

use super::views::gives_the_client_many_addresses;
use super::{Talk, VIP, VIP6, config};

pub(super) fn backends(weir: &Weir, pool: &str) -> Vec<Value> {
    let status = until("its status", || weir.admin().tries_to_read("/v1/status")).json();
    let pools = status["pools"].as_array().expect("pools").clone();
    let found = pools.into_iter().find(|one| one["name"] == pool).expect("the pool");
    found["backends"].as_array().expect("backends").clone()
}

const PASSIVE: &str = "balance = \"round-robin\"\nhealth = { check = \"off\", passive = { errors = 3, within = \"10s\", eject = \"60s\", max_ejected = 0.5 } }";

/// Of two servers the first has nobody at its port. One client is believed where nobody is served.
#[test]
fn a_backend_that_refuses_connections_is_ejected() {
    let network = Network::enter(2);
    network.greets(2, 8080);
    let weir = Setup::of(&config(&network, 2, &PASSIVE.replace("10s", "1s"))).start();
    for (pool, to) in [("four", format!("{VIP}:80")), ("six", format!("[{VIP6}]:80"))] {
        let to = to.parse().unwrap();
        until("it is ejected", || {
            match Talk::try_begin(&network, to) {
                Ok(talk) => assert_eq!(talk.server, "2"),
                Err(problem) => assert_eq!(problem.kind(), ErrorKind::ConnectionRefused, "{problem}"),
            }
            (backends(&weir, pool)[0]["state"] == "ejected").then_some(())
        });
        // It is said a moment before the kernel plane has heard of it; by turns it would get every second.
        until("nobody is led to it any more", || {
            let is_served = |_| Talk::try_begin(&network, to).is_ok_and(|talk| talk.server == "2");
            (0..6).all(is_served).then_some(())
        });
        let address = backends(&weir, pool)[0]["address"].as_str().expect("an address").to_owned();
        weir.reaches("weir_backend_failures_total", &[("pool", pool), ("backend", &address)], 3.0);
        weir.reaches("weir_backend_connect_failures_total", &[("pool", pool), ("backend", &address)], 3.0);
    }
    assert!(weir.stderr().contains("nobody was served"), "{}", weir.story());
}

/// Its probes are answered: they come from next door. What is behind Weir gets no answer.
#[test]
fn a_backend_that_leaves_connections_unanswered_is_ejected_though_its_probes_succeed() {
    let network = Network::enter(2);
    (1..=2).for_each(|number| network.greets(number, 8080));
    for clients in ["10.50.1.0/24", "10.60.0.0/16"] {
        network.run("server1", &["ip", "route", "replace", "blackhole", clients]);
    }
    let probed =
        PASSIVE.replace("check = \"off\"", "check = \"tcp\", interval = \"100ms\", timeout = \"100ms\"");
    let weir = Setup::of(&config(&network, 2, &probed)).start();
    gives_the_client_many_addresses(&network);
    let to: SocketAddr = format!("{VIP}:80").parse().unwrap();
    std::thread::scope(|scope| {
        for client in 1..=16 {
            let network = &network;
            // Half of them wait; whether somebody answers in the end does not matter here.
            scope.spawn(move || {
                network.on("client", || {
                    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                    socket.bind(&SocketAddr::from((Ipv4Addr::new(10, 60, 0, client), 0)).into()).unwrap();
                    drop(socket.connect_timeout(&to.into(), PATIENCE));
                });
            });
        }
        until("it is ejected", || (backends(&weir, "four")[0]["state"] == "ejected").then_some(()));
        // It is said a moment before the kernel plane has heard of it.
        until("nobody is led to it any more", || {
            let talk = || Talk::try_begin_within(Duration::from_secs(1), &network, to);
            (0..6).all(|_| talk().is_ok_and(|talk| talk.server == "2")).then_some(())
        });
    });
    assert!(weir.stderr().contains("did not answer"), "{}", weir.story());
}

/// Segments that no host answers, again and again from one address: the SYN of a damaged packet, and one that
/// ends what it opens. Each is a connection that the backend left unanswered, as far as can be seen.
#[test]
fn one_client_ejects_no_backend_that_serves_others() {
    let network = Network::enter(2);
    (1..=2).for_each(|number| network.greets(number, 8080));
    gives_the_client_many_addresses(&network);
    let weir = Setup::of(&config(&network, 2, PASSIVE)).start();
    let to: SocketAddr = format!("{VIP}:80").parse().unwrap();
    let is_over = AtomicBool::new(false);
    let failures = || -> f64 {
        let of = |number| {
            let backend = network.server(number, 8080, false).to_string();
            weir.metric("weir_backend_failures_total", &[("pool", "four"), ("backend", &backend)])
        };
        of(1) + of(2)
    };
    std::thread::scope(|scope| {
        let _end = Sets(&is_over);
        scope.spawn(|| {
            network.on("client", || {
                let sender = Sender::here().expect("root");
                while !is_over.load(Ordering::Acquire) {
                    for (port, flags) in (20_000..20_040).zip([SYN, SYN | FIN].into_iter().cycle()) {
                        let source = SocketAddr::from((Ipv4Addr::new(10, 60, 9, 9), port));
                        let segment = Segment {
                            source,
                            destination: to,
                            flags,
                            sequence: 7,
                            acknowledgement: 0,
                            payload: b"",
                        };
                        let mut packet = segment.packet();
                        if flags == SYN {
                            // A byte of the sum.
                            packet[36] ^= 0x55;
                        }
                        let _ = sender.sends(&packet);
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        });
        until("many of them have failed", || {
            Talk::begin(&network, &to.to_string()).goes_on(b"served");
            (failures() >= 20.0).then_some(())
        });
    });
    weir.reaches("weir_l4_packets_total", &[("listener", "tcp_four"), ("verdict", "drop_bad_flags")], 20.0);
    let states: Vec<Value> = backends(&weir, "four").iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["ready", "ready"], "{}", weir.story());
    assert!(!weir.stderr().contains("eject"), "{}", weir.story());
}

/// The time of day, in UTC: that of the log's lines.
fn time_of_day() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    Duration::new(now.as_secs() % 86_400, now.subsec_nanos())
}

/// When this was said of a backend in the log.
fn said_at(weir: &Weir, what: &str, backend: &str) -> Vec<Duration> {
    let read = |line: &str| {
        let time = line.split_once('T')?.1.split_once('Z')?.0.to_owned();
        let [hours, minutes, seconds]: [&str; 3] = time.split(':').collect::<Vec<_>>().try_into().ok()?;
        let whole: u64 = hours.parse::<u64>().ok()? * 3600 + minutes.parse::<u64>().ok()? * 60;
        Some(Duration::from_secs(whole) + Duration::from_secs_f64(seconds.parse().ok()?))
    };
    let text = weir.stderr();
    let lines = text.lines().filter(|line| line.contains(what) && line.contains(backend));
    lines.filter_map(read).collect()
}

/// A server that answers probes as it is told, and notes when clients come.
struct Moody {
    is_well: AtomicBool,
    last_client: Mutex<Duration>,
}

impl Moody {
    fn start(network: &Network, number: usize) -> Arc<Moody> {
        let moody = Arc::new(Moody { is_well: AtomicBool::new(true), last_client: Mutex::default() });
        let address = network.server(number, 8080, false);
        let listener = network.on(&format!("server{number}"), || TcpListener::bind(address).expect("a port"));
        let here = moody.clone();
        let weir: IpAddr = format!("10.50.{}.1", 10 + number).parse().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let is_probe = stream.peer_addr().is_ok_and(|peer| peer.ip() == weir);
                let status = if here.is_well.load(Ordering::SeqCst) { "200 OK" } else { "503 Busy" };
                if is_probe {
                    let answer =
                        format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes());
                } else {
                    *here.last_client.lock().unwrap_or_else(PoisonError::into_inner) = time_of_day();
                    let _ = stream.write_all(format!("{number}\n").as_bytes());
                }
            }
        });
        moody
    }

    fn last_client(&self) -> Duration {
        *self.last_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How late a thread wakes that sleeps for a millisecond: what the machine adds to anybody's time.
#[derive(Default)]
struct Lateness(Mutex<Duration>);

impl Lateness {
    /// The longest since the last call.
    fn take(&self) -> Duration {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn watch(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            let begun = Instant::now();
            std::thread::sleep(Duration::from_millis(1));
            let late = begun.elapsed().saturating_sub(Duration::from_millis(1));
            let mut longest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *longest = late.max(*longest);
        }
    }
}

/// From the line in the log that says so; four of five tries. Two threads wake between that line and the note
/// of the last client, that of the kernel plane and the server's: a try has as much time more as two threads
/// were late in it. The emulated machines of `make kernels` are slow all the
/// while, and have their factor.
#[test]
fn a_backend_found_down_gets_no_new_connection_50_ms_later() {
    let _quiet = alone();
    let network = Network::enter(2);
    let moody: Vec<Arc<Moody>> = (1..=2).map(|number| Moody::start(&network, number)).collect();
    let health = "balance = \"maglev\"\nhash = { key = \"flow\" }\nhealth = { check = \"http\", interval = \"300ms\", fast_interval = \"50ms\", timeout = \"300ms\", rise = 1, fall = 1 }";
    let text = config(&network, 2, health);
    let weir = Setup::of(&text).start();
    let to = format!("{VIP}:80").parse().unwrap();
    let address = network.server(1, 8080, false).to_string();
    let state = |wanted: &str| {
        until(&format!("it is {wanted}"), || (backends(&weir, "four")[0]["state"] == wanted).then_some(()));
    };
    let is_over = AtomicBool::new(false);
    let lateness = Lateness::default();
    let mut lags = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| lateness.watch(&is_over));
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                let _ = Talk::try_begin(&network, to);
            }
        });
        // However this ends, the clients do as well.
        let _end = Sets(&is_over);
        for before in 0..5 {
            state("ready");
            let begun = moody[0].last_client();
            until("clients come", || (moody[0].last_client() > begun).then_some(()));
            let _ = lateness.take();
            moody[0].is_well.store(false, Ordering::SeqCst);
            state("down");
            let said =
                until("it is said", || said_at(&weir, "backend is down", &address).get(before).copied());
            let later = said + Duration::from_millis(300);
            until("the other gets clients", || (moody[1].last_client() > later).then_some(()));
            lags.push((moody[0].last_client().saturating_sub(said), lateness.take()));
            moody[0].is_well.store(true, Ordering::SeqCst);
        }
    });
    println!("last connection after the backend was found down, and how late a thread woke: {lags:?}");
    let bound = Duration::from_millis(50 * SLOWNESS);
    let in_time = lags.iter().filter(|(lag, late)| *lag <= bound + *late * 2).count();
    assert!(in_time >= 4, "{lags:?}");
}
