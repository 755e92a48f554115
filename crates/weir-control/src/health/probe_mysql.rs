//! A probe of a MySQL server: it reads the greeting and logs in.
//!
//! A connection that ends before a login counts as a failed handshake, and after `max_connect_errors` (100)
//! of them the server locks out the client's host (error 1129; MySQL 8.4 Reference Manual section B.3.2.5).
//! So a probe always completes its login. A server that refuses the account is up; one that has no connection
//! left, is shutting down or is offline is not.

use tokio::net::TcpStream;
use weir_state::ServerFacts;

use super::probe::Failure;
use crate::cluster::client::{ClientError, LoginAs, MysqlClient};

/// SQLSTATE of a refused account (`ER_ACCESS_DENIED_ERROR` and similar).
const ACCESS_DENIED: &[u8; 5] = b"28000";

/// Logs in; without an account as a user whom no server knows, without a password. Returns what the server
/// said about itself; `None` if it refused before its greeting.
pub async fn login(stream: TcpStream, login: LoginAs<'_>) -> Result<Option<ServerFacts>, Failure> {
    let mut greeted = None;
    let done = match MysqlClient::login(stream, login, &mut greeted).await {
        Ok(client) => {
            client.quit().await;
            Ok(())
        }
        Err(ClientError::Refused { state, .. }) if state == *ACCESS_DENIED => Ok(()),
        Err(ClientError::Refused { code, message, .. }) => Err(Failure::Refused(format!("{code} {message}"))),
        Err(ClientError::Broken(error)) => Err(Failure::Broken(error)),
        Err(ClientError::Tls(reason)) => Err(Failure::Tls(reason)),
        Err(ClientError::NoTls) => Err(Failure::Tls(ClientError::NoTls.to_string())),
        Err(ClientError::Closed) => Err(Failure::NotMysql("closed before an answer was whole".to_owned())),
        Err(ClientError::Protocol(error)) => Err(Failure::NotMysql(error.to_string())),
        Err(other) => Err(Failure::Refused(other.to_string())),
    };
    done.map(|()| greeted)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const NOBODY: LoginAs<'_> = LoginAs { account: None, tls: None };

    fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
        [&[payload.len() as u8, 0, 0, sequence][..], payload].concat()
    }

    /// A greeting of protocol version 10 with a nonce of 20 bytes, for `caching_sha2_password`.
    fn greeting() -> Vec<u8> {
        let capabilities: u32 = 0x1 | 0x200 | 0x8000 | 0x8_0000;
        let [one, two, three, four] = capabilities.to_le_bytes();
        let parts: [&[u8]; 7] = [
            b"\x0a8.4.0\0\x07\0\0\0abcdefgh\0",
            &[one, two, 45, 2, 0, three, four, 21],
            &[0; 10],
            b"ijklmnopqrst\0",
            b"caching_sha2_password",
            b"\0",
            b"",
        ];
        parts.concat()
    }

    /// A login to a server that says these payloads, one after the other, and then closes; and what the
    /// server was sent.
    async fn login_to(answers: &[&[u8]]) -> (Result<Option<ServerFacts>, Failure>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let said: Vec<u8> =
            answers.iter().enumerate().flat_map(|(turn, payload)| packet(turn as u8 * 2, payload)).collect();
        let server = tokio::spawn(async move {
            let (mut server, _) = listener.accept().await.unwrap();
            server.write_all(&said).await.unwrap();
            server.shutdown().await.unwrap();
            let mut sent = Vec::new();
            server.read_to_end(&mut sent).await.unwrap();
            sent
        });
        let result = login(TcpStream::connect(address).await.unwrap(), NOBODY).await;
        (result, server.await.unwrap())
    }

    #[tokio::test]
    async fn a_server_that_lets_the_account_in_is_up_and_is_told_goodbye() {
        let (result, sent) = login_to(&[&greeting(), b"\0\0\0\x02\0\0\0"]).await;
        let facts = result.unwrap().unwrap();
        assert_eq!((&*facts.version, facts.capabilities), (&b"8.4.0"[..], 0x8_8201));
        assert!(sent.windows(5).any(|five| five == b"weir\0"), "{sent:?}");
        assert!(sent.ends_with(b"\x01\0\0\0\x01"), "{sent:?}");
    }

    #[tokio::test]
    async fn a_server_that_refuses_the_account_is_up() {
        let denied = b"\xff\x15\x04#28000Access denied for user";
        login_to(&[&greeting(), denied]).await.0.unwrap();
        // It asks for another plugin first, or for the password itself: both are answered with nothing, so
        // that the login comes to its end and is no failed handshake.
        let switch = b"\xfemysql_native_password\0ABCDEFGHIJKLMNOPQRST\0";
        for asked in [&switch[..], b"\x01\x04"] {
            let (result, sent) = login_to(&[&greeting(), asked, denied]).await;
            result.unwrap();
            assert!(sent.ends_with(b"\0\0\0\x03"), "{sent:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_takes_no_logins_is_down_and_says_why() {
        let full = b"\xff\x10\x04Too many connections";
        let (result, _) = login_to(&[full]).await;
        assert_eq!(result.unwrap_err().to_string(), "refused the login: 1040 Too many connections");
        let (result, _) =
            login_to(&[&greeting(), b"\xff\xd8\x0b#HY000The server is currently in offline mode"]).await;
        assert_eq!(
            result.unwrap_err().to_string(),
            "refused the login: 3032 The server is currently in offline mode"
        );
    }

    #[tokio::test]
    async fn what_is_no_mysql_is_down() {
        let greeting = greeting();
        for answers in [&[b"HTTP/1.1 200 OK".as_slice()][..], &[b""], &[&greeting], &[&greeting, b"\x07"]] {
            let (result, _) = login_to(answers).await;
            assert!(matches!(result, Err(Failure::NotMysql(_))), "{answers:?}: {result:?}");
        }
    }
}
