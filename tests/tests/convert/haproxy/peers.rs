//! Two HAProxies that share a table, and two Weirs with their converted files: who is refused where.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use weir_tests::dialogue::{Setup, free_address, until};

use super::{converted, haproxy, sends, servers};
use crate::peers::{Secret, finds, has_left};

/// A limit that is counted together, and one of each alone.
fn config(name: &str, [web, app]: [SocketAddr; 2], [one, two]: [SocketAddr; 2], socket: &str) -> String {
    format!(
        "global\n localpeer {name}\n stats socket {socket} level admin\n\
         defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
         peers mates\n peer one {one}\n peer two {two}\n\
         table all type string size 1m expire 1h store http_req_rate(1h)\n\
         frontend web\n bind {web}\n stick-table type string size 1m expire 1h store http_req_rate(1h)\n\
         http-request track-sc0 req.hdr(x-user) table mates/all\n http-request track-sc1 req.hdr(x-own)\n\
         http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 5 }}\n\
         http-request deny deny_status 429 if {{ sc_http_req_rate(1) gt 5 }}\n default_backend app\n\
         backend app\n server a {app}\n"
    )
}

/// What each of two answers to the same requests, of which `knows` waits until the second has heard.
fn refusals(addresses: [SocketAddr; 2], knows: &dyn Fn(&str)) -> Vec<u16> {
    let ask = |at: usize, user: &str, own: &str| {
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\nx-own: {own}\r\n\r\n");
        sends(addresses[at], &request).status
    };
    let mut answers: Vec<u16> = (0..6).map(|number| ask(0, "ann", &format!("a{number}"))).collect();
    answers.extend((0..6).map(|number| ask(0, &format!("b{number}"), "bob")));
    knows("ann");
    knows("b0");
    answers.extend([ask(1, "ann", "c0"), ask(1, "dan", "bob")]);
    answers
}

#[test]
fn who_is_refused_at_one_is_refused_at_the_other_where_the_table_is_shared() {
    let (_app, port) = servers(1);
    let app = SocketAddr::from(([127, 0, 4, 1], port));
    let webs: [SocketAddr; 4] = std::array::from_fn(|_| free_address());
    let peers: [SocketAddr; 4] = std::array::from_fn(|_| free_address());
    let socket = |at: usize| std::env::temp_dir().join(format!("weir-peers-{}.sock", webs[at].port()));
    let texts: [String; 4] = std::array::from_fn(|at| {
        let name = ["one", "two"][at % 2];
        let group = [peers[at / 2 * 2], peers[at / 2 * 2 + 1]];
        config(name, [webs[at], app], group, &socket(at).display().to_string())
    });
    let _proxies = [haproxy(&texts[0], webs[0]), haproxy(&texts[1], webs[1])];
    let of_haproxy = refusals([webs[0], webs[1]], &|user| {
        until(&format!("{user} at the second HAProxy"), || {
            let mut asked = UnixStream::connect(socket(1)).ok()?;
            asked.write_all(b"show table mates/all\n").ok()?;
            let mut shown = String::new();
            asked.read_to_string(&mut shown).ok()?;
            shown.contains(&format!("key={user} ")).then_some(())
        });
    });
    let secret = Secret::of("a secret of two converted files");
    let weirs = [2, 3].map(|at| {
        let config = converted(&texts[at], &[]);
        assert!(config.contains("WRITE /etc/weir/peers.secret BEFORE WEIR STARTS"), "{config}");
        let config = config.replace("/etc/weir/peers.secret", &secret.path());
        let config = format!("{config}\n[admin]\nbind = \"@admin\"\n");
        Setup::of(&config).with("web", webs[at]).start()
    });
    weirs.iter().for_each(|weir| finds(weir, 1));
    let of_weir = refusals([webs[2], webs[3]], &|user| {
        has_left(&weirs[1], user, if user == "ann" { 0 } else { 4 });
    });
    assert_eq!(of_weir, of_haproxy);
    assert_eq!(of_haproxy, [200, 200, 200, 200, 200, 429, 200, 200, 200, 200, 200, 429, 429, 200]);
}
