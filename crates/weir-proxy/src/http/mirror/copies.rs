//! Makes copies of requests and sends them. A copy is a request of Weir's own: it is written as text, parsed
//! like a client's request, and sent by a task of its own. The original request waits for nothing; its body
//! is set aside as it passes.
//!
//! Credentials are left out of copies, and so are the listener's and the route's rules about header fields,
//! which may add secrets for the backends that the original is for (threat J14).

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_config::PoolProtocol;
use weir_http::{
    BodyLength, BodyReader, ClientIdentity, Conditions, DroppedNames, KnownHeader, Progress, RequestHead,
    parse_request,
};
use weir_io::buffers::LARGE;
use weir_io::clock;
use weir_io::handshake::Secure;
use weir_stats::table::MirrorResult;

use crate::backends::WorkerPool;
use crate::client::Client;
use crate::http::aside::{AsideContent, AsideLost};
use crate::http::ask::{Answered, Call};
use crate::http::cache::background::{Background, Permit};
use crate::http::collect::{self, Incoming};
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::Forwarding;
use crate::http::mirror::Mirror;
use crate::http::plan::Paths;
use crate::http::pump::Pump;
use crate::http::request;
use crate::http::requester::{Nobody, Requester, Total};
use crate::http::sink::{Framing, Parts, Sink};
use crate::http::upload::Upload;
use crate::worker::{self, ListenerSlot, Worker, WorkerListener};

/// The field that marks a request as a copy, so that no copy is made of it in turn.
const MARK: &[u8] = b"x-mirrored";
/// Most bytes of an answer that are read in order to keep its connection.
const ANSWER_BYTES: usize = 1 << 20;
/// Header fields that a copy has in addition to those of its request (count), and their size in bytes.
const MORE_FIELDS: usize = 2;
const MORE_BYTES: usize = 64;

/// Fields that frame the request, apart from those of its connection. They are written anew, or have no
/// meaning for a copy.
const OF_FRAMING: [KnownHeader; 4] =
    [KnownHeader::Host, KnownHeader::ContentLength, KnownHeader::Expect, KnownHeader::Trailer];
/// Fields with credentials.
const CREDENTIALS: [&[u8]; 3] = [b"authorization", b"proxy-authorization", b"cookie"];

/// A copy that is sent once the whole request is here.
pub(crate) struct Copy {
    worker: Rc<Worker>,
    slot: Rc<ListenerSlot>,
    listener: Rc<WorkerListener>,
    pool: (usize, Rc<WorkerPool>),
    secure: Option<Rc<Secure>>,
    client: Client,
    identity: Rc<ClientIdentity>,
    paths: Paths,
    request_id: Vec<u8>,
    is_early: bool,
    /// The head, without the length of the body and the final empty line.
    text: Vec<u8>,
    has_body: bool,
    timeout: Duration,
    under_way: Arc<Background>,
}

/// Begins a copy of the request in `exchange`, whose bytes are still here, if one is to be made. A copy
/// without a body is sent as soon as a backend was chosen for the request.
#[cold]
pub(crate) fn begin(
    requester: &Requester,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    mirror: &Mirror,
) -> Option<Box<Copy>> {
    let text = requester.received();
    let request = &exchange.request;
    if is_tunnel(request, text) || !mirror.takes(&exchange.request_id) {
        return None;
    }
    let copy = match copy_of(requester, exchange, forwarding, mirror) {
        Ok(copy) => Box::new(copy),
        Err(left_out) => {
            count(&requester.worker, forwarding.listener, left_out);
            return None;
        }
    };
    if copy.has_body {
        exchange.put_aside = mirror.body_limit;
        return Some(copy);
    }
    exchange.once_chosen = Some(Box::new(|| copy.send(&mut Upload::none())));
    None
}

/// Whether it asks for a tunnel, which is never copied.
pub(super) fn is_tunnel(request: &RequestHead, text: &[u8]) -> bool {
    request.upgrade(text).is_some() || request.is_extended_connect()
}

/// Why the request is not copied, whatever its body; `is_closed` says whether the mirror is in maintenance
/// for its client.
pub(super) fn left_out(
    request: &RequestHead,
    text: &[u8],
    is_closed: impl FnOnce() -> bool,
) -> Option<MirrorResult> {
    match request.value_by_name(MARK, text) {
        Some(_) => Some(MirrorResult::Looped),
        None => is_closed().then_some(MirrorResult::Maintenance),
    }
}

fn copy_of(
    requester: &Requester,
    exchange: &Exchange,
    forwarding: &Forwarding<'_>,
    mirror: &Mirror,
) -> Result<Copy, MirrorResult> {
    let text = requester.received();
    let Exchange { request, .. } = exchange;
    let pool = forwarding.listener.pools.get(mirror.pool).ok_or(MirrorResult::Failed)?.clone();
    let client = exchange.ledger.client(requester);
    let closing = forwarding.listener.compiled.routes.closing(forwarding.route);
    let maintenance = &forwarding.listener.shared.maintenance;
    let is_closed = || closing.keeps_from(maintenance, &pool.shared.config.name, client.address.ip());
    if let Some(left_out) = left_out(request, text, is_closed) {
        return Err(left_out);
    }
    let has_body = !request.body().is_empty();
    let is_too_long =
        matches!(request.body(), BodyLength::Length(length) if length > mirror.body_limit as u64);
    if is_too_long || (has_body && mirror.body_limit == 0) {
        return Err(MirrorResult::Body);
    }
    // The edits for both pools, because the mirror may be told about users by other fields than the request's
    // pool.
    let table = forwarding.listener.compiled.edits.as_deref();
    let dropped = [exchange.pool, Some(mirror.pool)].into_iter();
    let dropped = dropped.filter_map(|pool| table?.of(exchange.route, pool).dropped_of_request());
    let dropped: Vec<Arc<DroppedNames>> = dropped.collect();
    Ok(Copy {
        worker: requester.worker.clone(),
        slot: requester.slot.clone(),
        listener: forwarding.listener.clone(),
        pool: (mirror.pool, pool),
        secure: requester.secure.clone(),
        client,
        identity: requester.identity.clone(),
        paths: exchange.paths.clone(),
        request_id: exchange.request_id.clone(),
        is_early: exchange.early,
        text: head_of(exchange, text, mirror.credentials, &dropped),
        has_body,
        timeout: mirror.timeout,
        under_way: mirror.under_way.clone(),
    })
}

/// The head of a copy, without its end. Fields that are dropped for backends (`dropped`) are dropped for the
/// mirror too: it would otherwise trust the client's claims about its identity. Options of the client's
/// connection are left out as well: they could name the mark and so remove it again.
fn head_of(
    exchange: &Exchange,
    text: &[u8],
    with_credentials: bool,
    dropped: &[Arc<DroppedNames>],
) -> Vec<u8> {
    let request = &exchange.request;
    let mut out = Vec::with_capacity(request.head_bytes() + MORE_BYTES);
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    let (method, target) = (request.method_text(text), request.target(text));
    match request.host(text) {
        Some(host) => put(&[method, b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"]),
        None => put(&[method, b" ", target, b" HTTP/1.0\r\n"]),
    }
    for field in request.end_to_end_fields(text) {
        let is_credential = || CREDENTIALS.iter().any(|name| field.name.eq_ignore_ascii_case(name));
        let is_dropped = || dropped.iter().any(|dropped| dropped.drops(field.name));
        if OF_FRAMING.contains(&field.known) || (!with_credentials && is_credential()) || is_dropped() {
            continue;
        }
        put(&[field.name, b": ", field.value, b"\r\n"]);
    }
    // `te` belongs to the connection too, but calls with trailers need it.
    request.values(KnownHeader::Te, text).for_each(|value| put(&[b"te: ", value, b"\r\n"]));
    put(&[MARK, b": 1\r\n"]);
    out
}

fn count(worker: &Worker, listener: &WorkerListener, result: MirrorResult) {
    listener.shared.cells.of(worker.number).mirrored[result as usize].increment();
}

impl Copy {
    /// Sends the copy, if the body is complete by now.
    pub(crate) fn send(mut self: Box<Self>, upload: &mut Upload) {
        let body = match upload.take_aside() {
            Ok(body) => body,
            Err(lost) => return count(&self.worker, &self.listener, result_of(lost)),
        };
        // Only now: clients that take their time to send would otherwise occupy all places.
        let Some(permit) = self.under_way.admit() else {
            return count(&self.worker, &self.listener, MirrorResult::Busy);
        };
        if self.has_body {
            self.text.extend_from_slice(format!("content-length: {}\r\n", body.bytes.len()).as_bytes());
        }
        self.text.extend_from_slice(b"\r\n");
        let worker = self.worker.clone();
        worker::spawn(&worker, serve(self, body, permit));
    }
}

/// The result if the body could not be set aside.
fn result_of(lost: AsideLost) -> MirrorResult {
    match lost {
        AsideLost::Length => MirrorResult::Body,
        AsideLost::Memory => MirrorResult::Memory,
    }
}

/// Sends the copy to the mirror. The body counts as memory in use until that is over.
async fn serve(copy: Box<Copy>, body: AsideContent, permit: Permit) {
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = copy.worker.deadlines.register(waker);
    deadline.belongs_to(copy.listener.shared.number());
    let mut requester = Requester {
        worker: copy.worker.clone(),
        slot: copy.slot.clone(),
        secure: copy.secure.clone(),
        client: copy.client,
        identity: copy.identity.clone(),
        buffers: copy.worker.buffers.clone(),
        deadline,
        total: Total::endless(),
        buffer: None,
    };
    let mut exchange = Exchange::take();
    exchange.begin(clock::now());
    requester.begin_total(clock::now(), copy.timeout);
    let asked = ask(&copy, &mut requester, &mut exchange, &body.bytes).await;
    exchange.give_back();
    drop(permit);
    let result = if asked.is_ok() { MirrorResult::Answered } else { MirrorResult::Failed };
    count(&copy.worker, &copy.listener, result);
}

async fn ask(
    copy: &Copy,
    requester: &mut Requester,
    exchange: &mut Exchange,
    body: &[u8],
) -> Result<(), Failure> {
    let Copy { text, listener, pool: (index, pool), .. } = copy;
    let mut limits = listener.compiled.limits;
    limits.field_count += MORE_FIELDS;
    limits.header_block_bytes += limits.request_line_bytes + MORE_BYTES;
    let parsed = parse_request(text, &limits, &mut exchange.request);
    if !matches!(parsed, Ok(Progress::Complete { head_bytes }) if head_bytes == text.len()) {
        // The head is too long for a copy with the added fields.
        return Err(Failure::OutOfMemory);
    }
    let mut buffer = requester.buffers.borrow(text.len() + body.len()).ok_or(Failure::OutOfMemory)?;
    buffer.append(text);
    buffer.append(body);
    requester.buffer = Some(buffer);
    exchange.paths.clone_from(&copy.paths);
    exchange.request_id.clone_from(&copy.request_id);
    exchange.early = copy.is_early;
    exchange.is_question = true;
    exchange.pool = Some(*index);
    let forwarding = Forwarding::new(listener, pool.clone(), None);
    exchange.ledger.pool = Some(pool.clone());
    let facts = request::serialise(requester, exchange, &forwarding, Conditions::AsSent)?;
    request::take_head(requester, exchange);
    let length = exchange.request.body();
    let mut upload = match length.is_empty() {
        true => Upload::none(),
        false => {
            let framing = Framing::on(facts.protocol != PoolProtocol::H1, exchange.body_to_backends());
            let reader = BodyReader::new(length, forwarding.limits());
            let mut pump = Pump::new(reader, framing, requester.buffer.take(), None);
            pump.take_received(&mut exchange.outgoing, usize::MAX).map_err(|_| Failure::OutOfMemory)?;
            Upload::of(pump, clock::now())
        }
    };
    let mut nobody = Nobody::default();
    let call = Call {
        requester,
        recipient: &mut nobody,
        exchange,
        forwarding: &forwarding,
        facts: &facts,
        upload: &mut upload,
        try_until: Duration::MAX,
        leaves_silent: false,
        race: None,
    };
    let mut answered = call.ask().await?;
    if exchange.response.status() == 101 || !upload.is_done() || upload.is_cut() {
        // Its connection can't be used for anything else, and nobody needs the answer.
        return Ok(());
    }
    if answered.needs_buffer(&exchange.response) && !requester.buffers.has_room(LARGE) {
        return Ok(());
    }
    let reader = answered.body_reader(&exchange.response, forwarding.limits());
    let Answered { chosen, connection, mut received } = answered;
    received.consume(exchange.response.head_bytes());
    let framing = Framing::on(!exchange.response.body().is_empty(), exchange.response.body());
    let download = Pump::new(reader, framing, Some(received), None);
    let incoming = Incoming { chosen, connection, download };
    collect::content(&mut nobody, requester, exchange, &forwarding, incoming).await
}

impl Sink for Nobody {
    fn poll_take(&mut self, _: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        self.taken += parts.content.len();
        if self.taken > ANSWER_BYTES {
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        Poll::Ready(Ok(parts.content.len()))
    }
}
