//! The agent beside each member: answers over HTTP whether the member has the role that a load balancer looks
//! for.
//!
//! Load balancers that do not speak MySQL cannot tell a primary from a secondary, so people put such an agent
//! beside every member (`clustercheck` and its like). `GET /primary` and `GET /secondary` are answered 200
//! when that is the member's role, 503 when not.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mysql::Conn;

use super::member::{Role, connect, role_over};

/// How long the agent waits for the member and for its own client. Below the usual second of a health check.
const PATIENCE: Duration = Duration::from_millis(500);

/// A running agent; ends when dropped.
pub struct Agent {
    /// Where it answers.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts an agent for the member on 127.0.0.1:`member_port`, on a free port.
    pub fn start(member_port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut connection = None;
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // A client that goes away or sends nonsense gets no answer; the next one is still served.
                let _ =
                    stream.and_then(|stream| answer(stream, &mut || role_of(&mut connection, member_port)));
            }
        });
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread. If that fails, the thread is no longer waiting.
        let _ = TcpStream::connect_timeout(&self.address, PATIENCE);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks the member for its role over a connection that is kept for the next call.
fn role_of(connection: &mut Option<Conn>, port: u16) -> Role {
    let Some(mut open) = connection.take().or_else(|| connect(port, PATIENCE).ok()) else { return Role::Out };
    match role_over(&mut open) {
        Ok(role) => {
            *connection = Some(open);
            role
        }
        Err(_) => Role::Out,
    }
}

fn answer(mut stream: TcpStream, role: &mut dyn FnMut() -> Role) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut rest = String::new();
    while reader.read_line(&mut rest)? > 2 {
        rest.clear();
    }
    let wanted = match line.split_ascii_whitespace().nth(1) {
        Some("/primary") => Some(Role::Primary),
        Some("/secondary") => Some(Role::Secondary),
        _ => None,
    };
    let head = match wanted {
        None => "404 Not Found",
        Some(wanted) if role() == wanted => "200 OK",
        Some(_) => "503 Service Unavailable",
    };
    stream.write_all(format!("HTTP/1.0 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// The agent's answer to `request` for a member with `role`.
    fn asked(request: &str, role: Role) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        answer(listener.accept().unwrap().0, &mut || role).unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        said.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn an_agent_says_yes_to_the_members_role_only() {
        let primary = "GET /primary HTTP/1.0\r\nhost: a\r\n\r\n";
        assert_eq!(asked(primary, Role::Primary), "HTTP/1.0 200 OK");
        assert_eq!(asked(primary, Role::Secondary), "HTTP/1.0 503 Service Unavailable");
        assert_eq!(asked(primary, Role::Out), "HTTP/1.0 503 Service Unavailable");
        assert_eq!(asked("GET /secondary HTTP/1.0\r\n\r\n", Role::Secondary), "HTTP/1.0 200 OK");
        assert_eq!(asked("GET / HTTP/1.0\r\n\r\n", Role::Primary), "HTTP/1.0 404 Not Found");
    }

    #[test]
    fn a_member_that_does_not_answer_is_out() {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let agent = Agent::start(port).unwrap();
        let mut client = TcpStream::connect(agent.address).unwrap();
        client.write_all(b"GET /secondary HTTP/1.0\r\n\r\n").unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.0 503 "), "{said}");
    }
}
