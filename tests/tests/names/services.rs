//! Services some of whose hosts can't be asked about: the others come and go as ever.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::{NameServer, PATIENCE, Setup, until};

use super::{UNPROBED, addresses, backend_at, backends, config, is_answered_by, port};

/// A name's question, `NAME TYPE`, by its bytes.
fn question(datagram: &[u8]) -> String {
    let (mut at, mut name) = (12, String::new());
    while datagram[at] > 0 {
        let end = at + 1 + usize::from(datagram[at]);
        name += &String::from_utf8_lossy(&datagram[at + 1..end]);
        name.push('.');
        at = end;
    }
    let kind = match datagram[at + 2] {
        1 => "A",
        28 => "AAAA",
        _ => "other",
    };
    format!("{name} {kind}")
}

/// Stands before a name server and fails (SERVFAIL) for some questions.
struct Failing {
    address: SocketAddr,
    questions: Arc<Mutex<HashSet<String>>>,
}

impl Failing {
    fn before(server: &NameServer) -> Failing {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let (address, real) = (socket.local_addr().expect("bound"), server.address());
        let questions: Arc<Mutex<HashSet<String>>> = Arc::default();
        let failing = questions.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok((count, from)) = socket.recv_from(&mut bytes) {
                let asked = &mut bytes[..count];
                if failing.lock().expect("not poisoned").contains(&question(asked)) {
                    (asked[2], asked[3]) = (asked[2] | 0x80, 2);
                    let _ = socket.send_to(asked, from);
                    continue;
                }
                let other = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                other.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                let mut answer = [0; 2048];
                let sent = other.send_to(asked, real).and_then(|_| other.recv(&mut answer));
                let _ = sent.and_then(|count| socket.send_to(&answer[..count], from));
            }
        });
        Failing { address, questions }
    }

    fn fails(&self, question: &str) {
        self.questions.lock().expect("not poisoned").insert(question.to_owned());
    }
}

/// A host's failing look-up, of one family or of both, protected every member of the service.
#[test]
fn a_host_that_its_service_has_no_more_leaves_though_another_cannot_be_asked_about() {
    for failing in [&["h1.weir.test. AAAA"][..], &["h1.weir.test. A", "h1.weir.test. AAAA"]] {
        let (server, port) = (NameServer::start(), port());
        let front = Failing::before(&server);
        let _backends = [1, 2, 3].map(|last| backend_at(last, port));
        for last in 1..=3 {
            server.says(&format!("h{last}.weir.test"), &[&format!("1 A 127.0.1.{last}")]);
        }
        let record = |last: u8| format!("1 SRV 0 1 {port} h{last}.weir.test.");
        let says = |lasts: &[u8]| {
            let records: Vec<String> = lasts.iter().map(|last| record(*last)).collect();
            let records: Vec<&str> = records.iter().map(String::as_str).collect();
            server.says("_http._tcp.weir.test", &records);
        };
        says(&[1, 2, 3]);
        let config = config("\"_http._tcp.weir.test\"", "", UNPROBED);
        let weir = Setup::of(&config).with("dns", front.address).start();
        is_answered_by(&weir, &["1", "2", "3"]);
        failing.iter().for_each(|question| front.fails(question));
        let failed = weir.metric("weir_dns_lookups_total", &[("result", "good")]);
        weir.reaches("weir_dns_lookups_total", &[("result", "good")], failed + 6.0);
        let is_ready = backends(&weir).iter().all(|(_, state, ..)| state == "ready");
        assert!(is_ready && addresses(&weir).len() == 3, "nobody is missed for it: {:?}", backends(&weir));
        says(&[1, 3]);
        is_answered_by(&weir, &["1", "3"]);
        until("it to be gone", || (addresses(&weir).len() == 2).then_some(()));
    }
}
