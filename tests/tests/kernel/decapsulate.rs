//! `weir decapsulate`, on a backend whose interface does not stay.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use weir_tests::dialogue::{Setup, until, weir_binary};
use weir_tests::network::Network;

use super::{Talk, VIP};

/// What is taken off for the listener's address.
pub const VIP_WORDS: &str = "--from 10.50.11.1 --to 192.0.2.10";

/// Gives the first server the listener's address, at which it greets.
pub fn has_vip(network: &Network) {
    network.run("server1", &["ip", "addr", "add", &format!("{VIP}/32"), "dev", "lo"]);
    network.greets_at(1, VIP.parse().unwrap(), 8080);
    network.sets("server1", "net.ipv4.conf.all.rp_filter", "0");
}

/// `weir decapsulate` of a backend, ended with the test.
pub struct Decapsulates(Child, BufReader<ChildStdout>);

impl Decapsulates {
    /// With the words of the guide behind the interface's name.
    pub fn start(network: &Network, server: usize, interface: &str, words: &str) -> Decapsulates {
        let mut child = network.on(&format!("server{server}"), || {
            let words = format!("decapsulate --interface {interface} {words}");
            let mut command = Command::new(weir_binary());
            command.args(words.split(' ')).stdout(Stdio::piped()).spawn().expect("weir starts")
        });
        let mut says = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        says.read_line(&mut line).expect("it speaks");
        assert!(line.starts_with(&format!("takes outer headers off at {interface}")), "{line}");
        Decapsulates(child, says)
    }

    /// What it says when it is told to end.
    pub fn ends(mut self) -> String {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it is ours");
        let mut said = String::new();
        self.1.read_to_string(&mut said).expect("it ends");
        said
    }
}

impl Drop for Decapsulates {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A link that a hypervisor or a driver makes anew: the program was gone with the first, the process stayed.
#[test]
fn an_interface_that_came_anew_runs_the_program_again() {
    let network = Network::enter(1);
    has_vip(&network);
    network.greets(1, 8080);
    let decapsulates = Decapsulates::start(&network, 1, "uplink", VIP_WORDS);
    let kernel = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    let listener = format!(
        "[listener.web]\nprotocol = \"tcp\"\nbind = \"{VIP}:8080\"\nplane = \"kernel\"\nforward = \"ipip\"\npool = \"web\"\n"
    );
    let pool = "[pool.web]\nbackends = [\"10.50.11.2:8080\"]\nhealth = { check = \"off\" }\n";
    let _weir = Setup::of(&(kernel + &listener + pool)).start();
    let begins = || {
        until("a connection", || {
            let to = format!("{VIP}:8080").parse().unwrap();
            Talk::try_begin_within(Duration::from_secs(1), &network, to).ok()
        })
    };
    begins().goes_on(b"by the first");
    network.run("server1", &["ip", "link", "del", "uplink"]);
    network.links_again("server1", 11);
    begins().goes_on(b"by the second");
    let said = decapsulates.ends();
    let again = "takes outer headers off again at uplink, which ran the program no more\n";
    assert_eq!(said.matches(again).count(), 1, "{said}");
}
