//! A probe in HTTP/2: one request on its own connection.

use std::future::Future;
use std::pin::pin;

use bytes::Bytes;
use h2::{RecvStream, client};
use http::header::{ACCEPT, USER_AGENT};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use weir_config::HttpProbe;

use super::probe::{self, Answer, End, Failure, Progress, judge_status};
use super::probe_http::{BODY_BYTES, is_settled, judge_body};

/// Longest head of an answer that is accepted, in bytes as HTTP/2 counts them.
const HEAD_BYTES: u32 = 16 * 1024;

/// Sends the request, and evaluates the answer. `scheme` is that of the connection.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    scheme: &str,
    probe: &HttpProbe,
    progress: &mut Progress,
) -> Result<Answer, Failure> {
    let host = probe.host.as_deref().unwrap_or_default();
    let mut builder =
        Request::builder().method(probe.method.as_str()).uri(format!("{scheme}://{host}{}", probe.path));
    for (name, default) in [(USER_AGENT, probe::USER_AGENT), (ACCEPT, "*/*")] {
        if !probe.headers.contains_key(name.as_str()) {
            builder = builder.header(name, default);
        }
    }
    for (name, value) in &probe.headers {
        builder = builder.header(name, value);
    }
    let request = unusable(builder.body(()), host, &probe.path)?;
    let (mut sender, connection) = begin(stream).await?;
    let (answer, _) = sender.send_request(request, true).map_err(failed)?;
    beside(connection, async {
        let answer = answer.await.map_err(failed)?;
        judge(answer, probe, progress).await
    })
    .await
}

async fn judge(
    answer: Response<RecvStream>,
    probe: &HttpProbe,
    progress: &mut Progress,
) -> Result<Answer, Failure> {
    let status = answer.status().as_u16();
    judge_status(probe, status, b"")?;
    let Some(expected) = &probe.expect_body else { return Ok(Answer::Status(status)) };
    progress.expected = Some(expected.words());
    let (mut stream, mut body, mut searched) = (answer.into_body(), Vec::new(), 0);
    let end = loop {
        if body.len() >= BODY_BYTES {
            break End::Enough(BODY_BYTES);
        }
        if is_settled(expected, &body, &mut searched) {
            break End::Whole;
        }
        let Some(data) = stream.data().await else { break End::Whole };
        let data = data.map_err(failed)?;
        let _ = stream.flow_control().release_capacity(data.len());
        body.extend_from_slice(&data[..data.len().min(BODY_BYTES - body.len())]);
        progress.came.clone_from(&body);
    };
    judge_body(expected, status, body, end)
}

/// Opens a connection for one request.
pub(super) async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
) -> Result<(client::SendRequest<Bytes>, client::Connection<S, Bytes>), Failure> {
    let mut builder = client::Builder::new();
    builder.enable_push(false).max_header_list_size(HEAD_BYTES);
    builder.handshake::<_, Bytes>(stream).await.map_err(failed)
}

/// Waits for an answer while driving its connection.
pub(super) async fn beside<S: AsyncRead + AsyncWrite + Unpin, T>(
    connection: client::Connection<S, Bytes>,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    tokio::select! {
        answer = &mut answer => answer,
        over = &mut connection => {
            over.map_err(failed)?;
            // The connection ended in an orderly way; the answer may have arrived with the end.
            answer.await
        }
    }
}

/// The request, or the failure that it can't be built.
pub(super) fn unusable<T>(request: http::Result<T>, host: &str, path: &str) -> Result<T, Failure> {
    request.map_err(|error| Failure::Unusable(format!("{host}{path} makes no request: {error}")))
}

/// The failure for an error of a connection or stream.
pub(super) fn failed(error: h2::Error) -> Failure {
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
    use crate::health::probe::tests::http_probe;

    async fn put(stream: TcpStream) -> Result<Answer, Failure> {
        ask(stream, "http", &http_probe("/healthz?x"), &mut Progress::default()).await
    }

    /// Answers one request with what `answer` makes of it.
    async fn asked(answer: fn(&Request<RecvStream>) -> u16) -> Result<Answer, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let response = http::Response::builder().status(answer(&request)).body(()).unwrap();
                respond.send_response(response, true).unwrap();
            }
        });
        put(TcpStream::connect(address).await.unwrap()).await
    }

    #[tokio::test]
    async fn a_probe_is_a_get_of_the_path_at_the_host() {
        let answer = |request: &Request<RecvStream>| {
            assert_eq!(request.uri(), "http://shop/healthz?x");
            assert_eq!(request.headers()[USER_AGENT], probe::USER_AGENT);
            204
        };
        assert_eq!(asked(answer).await.unwrap(), Answer::Status(204));
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
        let failure = put(TcpStream::connect(address).await.unwrap()).await.unwrap_err();
        assert!(failure.to_string().starts_with("answered against HTTP/2: "), "{failure}");
    }
}
