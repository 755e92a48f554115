//! A probe of a MySQL server: its greeting, and its answer to a login.
//!
//! A connection that ends before a login counts as a failed handshake, and after `max_connect_errors`
//! (100) of them the server locks out whoever it comes from (error 1129; MySQL 8.4 Reference Manual
//! section B.3.2.5). So a probe always sees its login through. A server that refuses the account is up;
//! one that has no connection left, is shutting down or is offline is not.
//!
//! Source: MySQL Source Code Documentation, "Connection Phase" and "Generic Response Packets".

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::probe::Failure;

/// The largest packet that is read: greetings and errors have some hundred bytes.
const PACKET_BYTES: usize = 16 * 1024;
/// Most packets that a server may ask for before it decides: another plugin, and its questions.
const ROUNDS: usize = 4;
/// The account where the config names none.
const NOBODY: &str = "weir";
/// CLIENT_LONG_PASSWORD, CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION, CLIENT_PLUGIN_AUTH.
const CAPABILITIES: u32 = 0x1 | 0x200 | 0x8000 | 0x8_0000;
/// utf8mb4_general_ci.
const CHARACTER_SET: u8 = 45;
/// SQLSTATE of a refused account.
const ACCESS_DENIED: &[u8] = b"28000";
const COM_QUIT: u8 = 0x01;

/// Logs in as `user` with an empty password.
pub async fn login(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    user: Option<&str>,
) -> Result<(), Failure> {
    let (mut sequence, greeting) = receive(&mut stream).await?;
    match greeting.first() {
        Some(10) => {}
        Some(0xff) => return Err(refusal(&greeting)),
        _ => return Err(Failure::NotMysql("no greeting of protocol version 10".to_owned())),
    }
    let mut answer = Vec::with_capacity(96);
    answer.extend(CAPABILITIES.to_le_bytes());
    answer.extend((PACKET_BYTES as u32).to_le_bytes());
    answer.push(CHARACTER_SET);
    answer.extend([0; 23]);
    answer.extend(user.unwrap_or(NOBODY).as_bytes());
    answer.push(0);
    // An empty password proves itself by no bytes.
    answer.push(0);
    answer.extend(b"caching_sha2_password\0");
    for _ in 0..ROUNDS {
        send(&mut stream, sequence.wrapping_add(1), &answer).await?;
        let (next, reply) = receive(&mut stream).await?;
        match reply.first() {
            Some(0x00) => return send(&mut stream, 0, &[COM_QUIT]).await,
            Some(0xff) if sql_state(&reply) == Some(ACCESS_DENIED) => return Ok(()),
            Some(0xff) => return Err(refusal(&reply)),
            // Another plugin, or a question of this one: an empty password has nothing to say to any.
            Some(0xfe | 0x01) => answer.clear(),
            _ => return Err(Failure::NotMysql("no answer to a login".to_owned())),
        }
        sequence = next;
    }
    Err(Failure::NotMysql(format!("asked {ROUNDS} times without deciding")))
}

async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<(u8, Vec<u8>), Failure> {
    let closed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Failure::NotMysql("closed before an answer was whole".to_owned())
        }
        _ => Failure::Broken(error),
    };
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.map_err(closed)?;
    let [a, b, c, sequence] = head;
    let length = u32::from_le_bytes([a, b, c, 0]) as usize;
    if length > PACKET_BYTES {
        return Err(Failure::NotMysql(format!("a packet of {length} bytes")));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await.map_err(closed)?;
    Ok((sequence, payload))
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), sequence: u8, payload: &[u8]) -> Result<(), Failure> {
    let [a, b, c, _] = (payload.len() as u32).to_le_bytes();
    let packet = [&[a, b, c, sequence][..], payload].concat();
    stream.write_all(&packet).await.map_err(Failure::Broken)
}

/// The SQLSTATE of an error packet; errors in place of a greeting have none.
fn sql_state(error: &[u8]) -> Option<&[u8]> {
    error.get(3..)?.strip_prefix(b"#")?.get(..5)
}

/// An error packet in words: `1040 Too many connections`.
fn refusal(error: &[u8]) -> Failure {
    let number = error.get(1..3).and_then(|two| two.try_into().ok()).map_or(0, u16::from_le_bytes);
    let text = if sql_state(error).is_some() { error.get(9..) } else { error.get(3..) };
    let text: String = String::from_utf8_lossy(text.unwrap_or_default()).chars().take(200).collect();
    Failure::Refused(format!("{number} {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
        [&[payload.len() as u8, 0, 0, sequence][..], payload].concat()
    }

    const GREETING: &[u8] = b"\x0a8.4.0\0rest of the greeting";

    /// A login to a server that says these payloads, one after the other, and then closes; and what the
    /// server was sent.
    async fn login_to(answers: &[&[u8]]) -> (Result<(), Failure>, Vec<u8>) {
        let (client, mut server) = duplex(64 * 1024);
        let said: Vec<u8> =
            answers.iter().enumerate().flat_map(|(turn, payload)| packet(turn as u8 * 2, payload)).collect();
        server.write_all(&said).await.unwrap();
        server.shutdown().await.unwrap();
        let result = login(client, Some("probe")).await;
        let mut sent = Vec::new();
        server.read_to_end(&mut sent).await.unwrap();
        (result, sent)
    }

    #[tokio::test]
    async fn a_server_that_lets_the_account_in_is_up_and_is_told_goodbye() {
        let (result, sent) = login_to(&[GREETING, b"\0\0\0\x02\0\0\0"]).await;
        result.unwrap();
        assert!(sent.windows(6).any(|six| six == b"probe\0"), "{sent:?}");
        assert!(sent.ends_with(b"\x01\0\0\0\x01"), "{sent:?}");
    }

    #[tokio::test]
    async fn a_server_that_refuses_the_account_is_up() {
        let denied = b"\xff\x15\x04#28000Access denied for user";
        login_to(&[GREETING, denied]).await.0.unwrap();
        // It asks for another plugin first, which is answered with nothing.
        let (result, sent) = login_to(&[GREETING, b"\xfemysql_native_password\0nonce\0", denied]).await;
        result.unwrap();
        assert!(sent.ends_with(b"\0\0\0\x03"), "{sent:?}");
    }

    #[tokio::test]
    async fn a_server_that_takes_no_logins_is_down_and_says_why() {
        let full = b"\xff\x10\x04Too many connections";
        let (result, _) = login_to(&[full]).await;
        assert_eq!(result.unwrap_err().to_string(), "refused the login: 1040 Too many connections");
        let (result, _) =
            login_to(&[GREETING, b"\xff\xd8\x0b#HY000The server is currently in offline mode"]).await;
        assert_eq!(
            result.unwrap_err().to_string(),
            "refused the login: 3032 The server is currently in offline mode"
        );
    }

    #[tokio::test]
    async fn what_is_no_mysql_is_down() {
        for answers in [&[b"HTTP/1.1 200 OK".as_slice()][..], &[b""], &[GREETING], &[GREETING, b"\x07"]] {
            let (result, _) = login_to(answers).await;
            assert!(matches!(result, Err(Failure::NotMysql(_))), "{answers:?}: {result:?}");
        }
    }
}
