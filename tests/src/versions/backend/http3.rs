//! The HTTP/3 backend, by the `h3` crate over quinn.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use h3::error::{Code, StreamError};
use h3::server::RequestStream;
use http::Request;
use http_body_util::BodyExt as _;
use http_body_util::channel::{Channel, Sender};
use quinn::crypto::rustls::QuicServerConfig;

use super::{Behind, Failure, WINDOW_BYTES, answer};

type Requests = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;
type Receiving = RequestStream<h3_quinn::RecvStream, Bytes>;

/// Listens at once; becomes an endpoint when awaited in a runtime.
pub fn endpoint(
    tls: rustls::ServerConfig,
    address: SocketAddr,
) -> impl Future<Output = quinn::Endpoint> + Send + use<> {
    let crypto = QuicServerConfig::try_from(tls).expect("a suite for first packets");
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(WINDOW_BYTES.into()).send_window(WINDOW_BYTES.into());
    config.transport_config(Arc::new(transport));
    let socket = std::net::UdpSocket::bind(address).expect("a free address");
    async move {
        let runtime = Arc::new(quinn::TokioRuntime);
        quinn::Endpoint::new(quinn::EndpointConfig::default(), Some(config), socket, runtime)
            .expect("an endpoint")
    }
}

/// Serves all connections.
pub async fn accept(endpoint: quinn::Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            let connection = h3_quinn::Connection::new(connection);
            let Ok(mut requests) = h3::server::Connection::new(connection).await else { return };
            while let Ok(Some(resolver)) = requests.accept().await {
                let Ok((request, stream)) = resolver.resolve_request().await else { continue };
                // How a stream ends is for the client to judge.
                tokio::spawn(async { drop(serve(request, stream).await) });
            }
        });
    }
}

async fn serve(request: Request<()>, stream: Requests) -> Result<(), Failure> {
    let (mut sends, receives) = stream.split();
    let (content, body) = Channel::<Bytes, Failure>::new(1);
    tokio::spawn(receive(receives, content));
    let (head, mut content) = answer(request.map(|()| body), Behind::Http3).await?.into_parts();
    sends.send_response(http::Response::from_parts(head, ())).await?;
    while let Some(frame) = content.frame().await {
        match frame?.into_data() {
            Ok(data) => sends.send_data(data).await?,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    sends.send_trailers(trailers).await?;
                }
            }
        }
    }
    Ok(sends.finish().await?)
}

/// Passes received content on as the body; stops the client if nothing reads it.
async fn receive(mut stream: Receiving, mut body: Sender<Bytes, Failure>) {
    match pass_on(&mut stream, &mut body).await {
        Ok(true) => {}
        Ok(false) => stream.stop_sending(Code::H3_NO_ERROR),
        Err(broken) => body.abort(broken.into()),
    }
}

/// Returns whether all of it was wanted.
async fn pass_on(stream: &mut Receiving, body: &mut Sender<Bytes, Failure>) -> Result<bool, StreamError> {
    while let Some(mut data) = stream.recv_data().await? {
        if body.send_data(data.copy_to_bytes(data.remaining())).await.is_err() {
            return Ok(false);
        }
    }
    match stream.recv_trailers().await? {
        Some(trailers) => Ok(body.send_trailers(trailers).await.is_ok()),
        None => Ok(true),
    }
}
