//! A probe in HTTP/2: one request on a connection of its own.

use std::pin::pin;

use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, USER_AGENT};
use tokio::io::{AsyncRead, AsyncWrite};

use super::probe::{self, Failure};

/// Most of an answer's head that is taken, in bytes as HTTP/2 counts them.
const HEAD_BYTES: u32 = 16 * 1024;

/// Asks for `path` and gives the status of the answer. `scheme` is that of the connection.
pub async fn status(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    scheme: &str,
    host: &str,
    path: &str,
) -> Result<u16, Failure> {
    let request = Request::get(format!("{scheme}://{host}{path}"))
        .header(USER_AGENT, probe::USER_AGENT)
        .header(ACCEPT, "*/*")
        .body(())
        .map_err(|error| Failure::Unusable(format!("{host}{path} is no URI: {error}")))?;
    let mut builder = h2::client::Builder::new();
    builder.enable_push(false).max_header_list_size(HEAD_BYTES);
    let (mut sender, connection) = builder.handshake::<_, Bytes>(stream).await.map_err(failed)?;
    let (answer, _) = sender.send_request(request, true).map_err(failed)?;
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    tokio::select! {
        answer = &mut answer => Ok(answer.map_err(failed)?.status().as_u16()),
        over = &mut connection => {
            over.map_err(failed)?;
            // It ended in order; the answer may have come with the end.
            Ok(answer.await.map_err(failed)?.status().as_u16())
        }
    }
}

fn failed(error: h2::Error) -> Failure {
    match error.is_io() {
        true => {
            Failure::Broken(error.into_io().unwrap_or_else(|| std::io::ErrorKind::ConnectionReset.into()))
        }
        false => Failure::NotHttp2(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Answers one request with what `answer` makes of it.
    async fn asked(answer: fn(&Request<h2::RecvStream>) -> u16) -> Result<u16, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let response = http::Response::builder().status(answer(&request)).body(()).unwrap();
                respond.send_response(response, true).unwrap();
            }
        });
        status(TcpStream::connect(address).await.unwrap(), "http", "shop", "/healthz?x").await
    }

    #[tokio::test]
    async fn a_probe_is_a_get_of_the_path_at_the_host() {
        let answer = |request: &Request<h2::RecvStream>| {
            assert_eq!(request.uri(), "http://shop/healthz?x");
            assert_eq!(request.headers()[USER_AGENT], probe::USER_AGENT);
            204
        };
        assert_eq!(asked(answer).await.unwrap(), 204);
    }

    #[tokio::test]
    async fn a_backend_that_speaks_http1_only_is_said_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ =
                tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            let mut rest = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
        });
        let failure =
            status(TcpStream::connect(address).await.unwrap(), "http", "shop", "/").await.unwrap_err();
        assert!(failure.to_string().starts_with("answered against HTTP/2: "), "{failure}");
    }
}
