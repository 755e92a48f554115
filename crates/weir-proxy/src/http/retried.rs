//! Handles a response that is discarded because the request is retried.

use weir_http::BodyReader;
use weir_io::buffers::SMALL;
use weir_io::clock;

use crate::backends::Chosen;
use crate::http::ask::Call;
use crate::http::attempt::Begun;
use crate::http::kept;
use crate::http::pump::Pump;
use crate::http::sink::Framing;

/// Discards it. If all of it is here, as is mostly the case, its connection is kept: a backend that is
/// overloaded should not have to make handshakes as well.
pub fn let_go<R>(call: &Call<'_, R>, chosen: &Chosen, begun: Begun) {
    let response = &call.exchange.response;
    let Begun { mut connection, mut received, .. } = begun;
    let reader = match connection.connection().is_muxed() {
        true => BodyReader::of_stream(response.body()),
        false => BodyReader::of_response(response.body(), call.forwarding.limits()),
    };
    received.consume(response.head_bytes());
    let framing = Framing::on(false, response.body());
    let mut download = Pump::new(reader, framing, Some(received), None);
    let taken = download.take_received(&mut Vec::new(), SMALL);
    chosen.backend().cells().bytes_received.add(response.head_bytes() as u64 + download.received);
    let is_whole = taken.is_ok() && download.is_done() && response.keep_alive() && response.status() != 101;
    if let Some(request) = call.upload.sent().filter(|_| is_whole) {
        kept::keep(chosen, connection, request, download, clock::now());
    }
}
