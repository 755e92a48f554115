//! Connections that are kept open while it changes which certificates let clients in (threat D6).

use weir_tests::dialogue::{PATIENCE, Setup, run_tool, tool, weir_binary};

use super::revoked;
use super::{Authority, mirror};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
[listener.web.tls]
certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }]
client_ca = "@dir/ca.pem"
client_auth = "optional"
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// Keeps a connection over a reload, of a client that never closes, and says what it was told of its end.
const KEEPER: &str = r#"
import socket, ssl, struct, subprocess, sys
host, port, binary, config, ca, protocol, *own = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.set_alpn_protocols([protocol])
if own:
    context.load_cert_chain(*own)
def connect():
    return context.wrap_socket(socket.create_connection((host, int(port))), server_hostname='shop.example')
class H1:
    def __init__(self, tls):
        self.tls = tls
    def ask(self):
        self.tls.sendall(b'GET / HTTP/1.1\r\nhost: shop.example\r\n\r\n')
        answer = self.tls.recv(65536)
        assert answer.startswith(b'HTTP/1.1 200'), answer
    def end(self):
        assert self.tls.recv(65536) == b''
        return 'closed'
class H2:
    def __init__(self, tls):
        self.tls, self.goaways, self.stream = tls, [], -1
        tls.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + self.frame(4, 0, 0, b''))
    def frame(self, kind, flags, stream, payload):
        return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload
    def exactly(self, count):
        data = b''
        while len(data) < count:
            more = self.tls.recv(count - len(data))
            if not more:
                return None
            data += more
        return data
    def next(self):
        head = self.exactly(9)
        if head is None:
            return None
        payload = self.exactly(int.from_bytes(head[:3], 'big')) if head[:3] != b'\0\0\0' else b''
        kind, flags = head[3], head[4]
        if kind == 4 and not flags & 1:
            self.tls.sendall(self.frame(4, 1, 0, b''))
        if kind == 6 and not flags & 1:
            self.tls.sendall(self.frame(6, 1, 0, payload))
        if kind == 7:
            self.goaways.append(int.from_bytes(payload[4:8], 'big'))
        return kind, flags, payload
    def ask(self):
        self.stream += 2
        self.tls.sendall(self.frame(1, 5, self.stream, b'\x82\x87\x84\x41\x0cshop.example'))
        while True:
            kind, flags, payload = self.next()
            if kind == 1:
                assert payload[0] == 0x88, payload
            if kind in (0, 1) and flags & 1:
                return
    def end(self):
        while self.next() is not None:
            pass
        assert self.goaways and set(self.goaways) == {0}, self.goaways
        return 'goaway'
kept = {'http/1.1': H1, 'h2': H2}[protocol](connect())
kept.ask()
subprocess.run([binary, 'reload', '--config', config], check=True, stdout=subprocess.DEVNULL)
print(kept.end())
"#;

/// What becomes of the connection of a client, with this certificate of its own, when `change` is reloaded.
fn kept_over(protocol: &str, authority: &Authority, own: Option<&str>, setup: Setup, change: &str) {
    let backend = mirror();
    let mut weir = setup.with("app", backend.address()).start();
    if let Some(list) = own {
        revoked::revoke(authority, &[list], "-crldays 30");
        std::fs::write(weir.dir().join("crl.pem"), authority.text("crl.pem")).expect("write");
    }
    weir.rewrites(change);
    let address = weir.address("web");
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let binary = weir_binary().display().to_string();
    let (config, ca) = (weir.config_path(), authority.path("ca.pem"));
    let own = own.map(|name| ["pem", "key"].map(|end| authority.path(&format!("{name}.{end}"))));
    let mut arguments = vec!["-c", KEEPER, &host, &port, &binary, &config, &ca, protocol];
    arguments.extend(own.iter().flatten().map(String::as_str));
    let finished = run_tool(&tool("python3", "python3"), &arguments, b"", PATIENCE);
    let end = if protocol == "h2" { "goaway" } else { "closed" };
    assert_eq!(finished.succeeded().trim(), end, "{protocol}: {}", weir.story());
}

/// They had gone on asking, and got their answers, for as long as they did not close.
#[test]
fn d6_a_client_without_a_certificate_is_let_go_once_one_is_required() {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    for protocol in ["http/1.1", "h2"] {
        let required = CONFIG.replace("\"optional\"", "\"required\"");
        kept_over(protocol, &authority, None, authority.setup(CONFIG), &required);
        let never_asked = CONFIG.replace("client_ca = \"@dir/ca.pem\"\nclient_auth = \"optional\"\n", "");
        kept_over(protocol, &authority, None, authority.setup(&never_asked), &required);
    }
}

#[test]
fn d6_a_client_is_let_go_once_its_certificate_is_on_a_list_that_is_read_anew() {
    let with_list = CONFIG.replace("\"optional\"", "\"required\"\ncrl = \"@dir/crl.pem\"");
    for protocol in ["http/1.1", "h2"] {
        let authority = revoked::authority(&["shop", "good"]);
        revoked::revoke(&authority, &[], "-crldays 30");
        kept_over(protocol, &authority, Some("good"), authority.setup(&with_list), &with_list);
    }
}
