//! A fake MySQL server for tests of the clients: it accepts any login and answers each statement as told.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// What the server does when it is sent a statement.
pub enum Answer {
    /// Done.
    Ok,
    /// An error of that code.
    Error(u16),
    /// It closes the connection without an answer.
    HangUp,
}

/// Serves on a free port of 127.0.0.1 until the test ends; `answer` is asked for every statement.
pub fn serve(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A client that goes away ends its own thread only.
            thread::spawn(move || talk(stream, answer.as_ref()));
        }
    });
    port
}

/// Long passwords, a database in the handshake, protocol 4.1, transactions, the two-part salt, named
/// plug-ins, and no EOF packets.
const CAPABILITIES: u32 = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x8_0000 | 0x100_0000;
const OK: [u8; 7] = [0, 0, 0, 2, 0, 0, 0];
const COM_QUERY: u8 = 3;

fn talk(mut stream: TcpStream, answer: &dyn Fn(&str) -> Answer) -> io::Result<()> {
    send(&mut stream, 0, &greeting())?;
    receive(&mut stream)?;
    send(&mut stream, 2, &OK)?;
    loop {
        let packet = receive(&mut stream)?;
        match packet.split_first() {
            Some((&COM_QUERY, statement)) => match answer(&String::from_utf8_lossy(statement)) {
                Answer::Ok => send(&mut stream, 1, &OK)?,
                Answer::Error(code) => {
                    let mut error = vec![0xff];
                    error.extend(code.to_le_bytes());
                    error.extend(b"#HY000no");
                    send(&mut stream, 1, &error)?;
                }
                Answer::HangUp => return Ok(()),
            },
            _ => return Ok(()),
        }
    }
}

/// The handshake of protocol version 10. Source: MySQL's documentation of its client/server protocol.
fn greeting() -> Vec<u8> {
    let [low_0, low_1, high_0, high_1] = CAPABILITIES.to_le_bytes();
    let mut packet = vec![10];
    packet.extend(b"9.7.4-fake\0");
    packet.extend(1_u32.to_le_bytes());
    packet.extend(b"abcdefgh\0");
    packet.extend([low_0, low_1, 255, 2, 0, high_0, high_1, 21]);
    packet.extend([0; 10]);
    packet.extend(b"ijklmnopqrst\0caching_sha2_password\0");
    packet
}

fn send(stream: &mut TcpStream, sequence: u8, payload: &[u8]) -> io::Result<()> {
    let [a, b, c, _] = (payload.len() as u32).to_le_bytes();
    stream.write_all(&[&[a, b, c, sequence], payload].concat())
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    stream.read_exact(&mut payload)?;
    Ok(payload)
}
