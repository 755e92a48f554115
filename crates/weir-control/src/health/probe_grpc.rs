//! A probe with gRPC's health protocol: one call of `grpc.health.v1.Health/Check` on its own connection.
//!
//! Source: the health checking protocol and "gRPC over HTTP/2" in the documents of the grpc project.

use bytes::Bytes;
use h2::RecvStream;
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use weir_config::GrpcProbe;

use super::probe::{self, Answer, Failure};
use super::probe_h2::{begin, beside, failed, unusable};

/// The method that is called.
const PATH: &str = "/grpc.health.v1.Health/Check";

/// Longest answer that is read, in bytes; it is a message with one number.
const ANSWER_BYTES: usize = 4096;

/// Makes the call, and evaluates the answer. `scheme` is that of the connection.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    scheme: &str,
    probe: &GrpcProbe,
) -> Result<Answer, Failure> {
    let host = probe.host.as_deref().unwrap_or_default();
    let mut builder = Request::post(format!("{scheme}://{host}{PATH}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers");
    if !probe.headers.contains_key(USER_AGENT.as_str()) {
        builder = builder.header(USER_AGENT, probe::USER_AGENT);
    }
    for (name, value) in &probe.headers {
        builder = builder.header(name, value);
    }
    let request = unusable(builder.body(()), host, PATH)?;
    let (sender, connection) = begin(stream).await?;
    beside(connection, async {
        let mut sender = sender.ready().await.map_err(failed)?;
        let (answer, mut body) = sender.send_request(request, false).map_err(failed)?;
        body.send_data(message(probe.service.as_deref().unwrap_or_default()), true).map_err(failed)?;
        judge(answer.await.map_err(failed)?).await
    })
    .await
}

/// `HealthCheckRequest { service = 1 }`, with the prefix of an uncompressed message.
fn message(service: &str) -> Bytes {
    let mut text = Vec::with_capacity(service.len() + 4);
    if !service.is_empty() {
        text.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            text.push(length as u8 | 0x80);
            length >>= 7;
        }
        text.push(length as u8);
        text.extend_from_slice(service.as_bytes());
    }
    let mut message = vec![0];
    message.extend_from_slice(&(text.len() as u32).to_be_bytes());
    message.extend_from_slice(&text);
    message.into()
}

async fn judge(answer: Response<RecvStream>) -> Result<Answer, Failure> {
    let status = answer.status().as_u16();
    if status != 200 {
        return Err(Failure::NotServing(format!("{status}")));
    }
    let kind = answer.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec()).unwrap_or_default();
    if !kind.starts_with(b"application/grpc") {
        return Err(Failure::NotServing(format!("a body of type {}", probe::excerpt(&kind))));
    }
    // An answer that consists only of trailers has them in place of the head.
    if let Some(error) = error_in(answer.headers()) {
        return Err(Failure::NotServing(error));
    }
    let mut stream = answer.into_body();
    let mut came = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.map_err(failed)?;
        let _ = stream.flow_control().release_capacity(data.len());
        came.extend_from_slice(&data);
        if came.len() > ANSWER_BYTES {
            return Err(Failure::NotServing(format!("more than {ANSWER_BYTES} bytes")));
        }
    }
    let trailers = stream.trailers().await.map_err(failed)?.unwrap_or_default();
    if let Some(error) = error_in(&trailers) {
        return Err(Failure::NotServing(error));
    }
    match serving_status(&came) {
        Some(1) => Ok(Answer::Serving),
        Some(0) => Err(Failure::NotServing("UNKNOWN".to_owned())),
        Some(2) => Err(Failure::NotServing("NOT_SERVING".to_owned())),
        Some(3) => Err(Failure::NotServing("SERVICE_UNKNOWN".to_owned())),
        Some(other) => Err(Failure::NotServing(format!("status {other}"))),
        None => Err(Failure::NotServing(probe::excerpt(&came))),
    }
}

/// The error in `grpc-status`; `None` if it is 0 or absent.
fn error_in(fields: &HeaderMap) -> Option<String> {
    let code = fields.get("grpc-status")?.to_str().unwrap_or("?");
    if code == "0" {
        return None;
    }
    let name = match code {
        "1" => " CANCELLED",
        "2" => " UNKNOWN",
        "4" => " DEADLINE_EXCEEDED",
        // The server does not know the service.
        "5" => " NOT_FOUND",
        "7" => " PERMISSION_DENIED",
        "8" => " RESOURCE_EXHAUSTED",
        // The server does not implement the health protocol.
        "12" => " UNIMPLEMENTED",
        "13" => " INTERNAL",
        "14" => " UNAVAILABLE",
        "16" => " UNAUTHENTICATED",
        _ => "",
    };
    let text = fields.get("grpc-message").map(|text| format!(" {}", probe::excerpt(text.as_bytes())));
    Some(format!("grpc-status {}{name}{}", code.escape_default(), text.unwrap_or_default()))
}

/// `HealthCheckResponse { status = 1 }`: a number, 0 if the field is absent. `None` if the message is
/// malformed.
fn serving_status(came: &[u8]) -> Option<u64> {
    let [0, a, b, c, d, text @ ..] = came else { return None };
    if u32::from_be_bytes([*a, *b, *c, *d]) as usize != text.len() {
        return None;
    }
    let (mut rest, mut status) = (text, 0);
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        match tag & 7 {
            0 if tag >> 3 == 1 => status = varint(&mut rest)?,
            0 => drop(varint(&mut rest)?),
            1 => rest = rest.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
            }
            5 => rest = rest.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_about_a_service_is_a_message_with_its_name() {
        assert_eq!(&message("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&message("a.B")[..], [0, 0, 0, 0, 5, 0x0a, 3, b'a', b'.', b'B']);
        let long = message(&"s".repeat(200));
        assert_eq!(&long[..8], [0, 0, 0, 0, 203, 0x0a, 0xc8, 1]);
        assert_eq!(long.len(), 208);
    }

    #[test]
    fn a_status_is_read_past_fields_that_are_not_known_and_nonsense_is_none() {
        assert_eq!(serving_status(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
        assert_eq!(serving_status(&[0, 0, 0, 0, 0]), Some(0));
        assert_eq!(serving_status(&[0, 0, 0, 0, 7, 0x12, 1, b'x', 0x18, 7, 8, 2]), Some(2));
        for bad in [
            &[][..],
            &[1, 0, 0, 0, 2, 8, 1],
            &[0, 0, 0, 0, 3, 8, 1],
            &[0, 0, 0, 0, 1, 8],
            &[0, 0, 0, 0, 2, 0x12, 9],
            &[0, 0, 0, 0, 11, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
        ] {
            assert_eq!(serving_status(bad), None, "{bad:?}");
        }
    }
}
