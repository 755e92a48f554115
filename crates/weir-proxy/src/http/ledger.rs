//! The facts about an exchange for counters and the access log.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use weir_http::{KnownHeader, RequestHead, ResponseHead, Version};
use weir_io::clock;
use weir_screen::Passage;
use weir_stats::table::{CacheResult, End, HedgeResult, ListenerCells, Rejected};

use crate::access_log::{Captured, Reasons, Record, Spoken, Timers};
use crate::backends::{Chosen, WorkerPool};
use crate::client::Client;
use crate::http::cache::{Note, Origin};
use crate::http::requester::Requester;
use crate::http::route::Route;
use crate::seldom::{Reused, Seldom};
use crate::worker::{Worker, WorkerListener};

/// Facts gathered in the course of an exchange.
#[derive(Default)]
pub struct Ledger {
    /// When the first byte of the request came.
    pub began: Duration,
    /// When the head of the request was complete.
    pub head: Duration,
    pub queue: Option<Duration>,
    pub connect: Option<Duration>,
    pub backend_header: Option<Duration>,
    /// The protocol in which the backend was asked.
    pub backend_protocol: Option<Spoken>,
    /// How long authentication took.
    pub auth: Option<Duration>,
    pub retries: u32,
    /// The result of asking a second backend in parallel.
    pub hedge: Option<HedgeResult>,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// How many of them belong to the response's head.
    pub head_bytes_sent: u64,
    /// Bytes of a tunnel (from the client, from the backend), which have been counted already.
    tunnelled: (u64, u64),
    /// Status sent to the client; 0 if none was.
    status: u16,
    pub pool: Option<Rc<WorkerPool>>,
    /// Index of the backend used last.
    pub backend: Option<usize>,
    /// How the cache handled the request; empty on routes without a cache.
    pub cache: Seldom<Note>,
    /// Its place in limits on concurrent requests while it runs, and how its answer is charged.
    pub passage: Passage,
    /// The client, if a trusted proxy named it.
    behind_proxy: Option<Client>,
    /// Whether there was a wait since the request's head that is not one of the phases above.
    has_waited: bool,
    would_reject: Reasons,
    route: Option<Arc<str>>,
    /// The route's number.
    route_number: Option<usize>,
    /// Whether its route wants no access log line.
    is_unlogged: bool,
    /// Values for logs with forms of their own.
    pub captured: Seldom<Captured>,
    /// The first finding of the screen for SQL injection: where in the request, and of what kind.
    sqli: Option<Box<str>>,
    /// The user, if authentication took place and the log is on.
    user: Option<Box<[u8]>>,
    text: Seldom<Text>,
}

/// The parts of the request that the log quotes; filled only while the log is on.
#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    method: Range<usize>,
    host: Option<Range<usize>>,
    target: Range<usize>,
    user_agent: Option<Range<usize>>,
    referer: Option<Range<usize>>,
    version: Version,
}

impl Reused for Text {
    const UNUSED: &'static Text = &Text {
        bytes: Vec::new(),
        method: 0..0,
        host: None,
        target: 0..0,
        user_agent: None,
        referer: None,
        version: Version::Http11,
    };

    fn clear(&mut self) {
        let Text { bytes, method, host, target, user_agent, referer, version } = self;
        bytes.clear();
        (*method, *target) = (0..0, 0..0);
        (*host, *user_agent, *referer, *version) = (None, None, None, Version::default());
    }
}

impl Ledger {
    /// Starts a new exchange. Field by field, because a whole new value would be written and then moved here.
    pub fn begin(&mut self, now: Duration) {
        let Ledger {
            began,
            head,
            queue,
            connect,
            backend_header,
            backend_protocol,
            auth,
            retries,
            hedge,
            bytes_received,
            bytes_sent,
            head_bytes_sent,
            tunnelled,
            status,
            pool,
            backend,
            cache,
            passage,
            behind_proxy,
            has_waited,
            would_reject,
            route,
            route_number,
            is_unlogged,
            captured,
            sqli,
            user,
            text,
        } = self;
        (*began, *head) = (now, now);
        (*queue, *connect, *backend_header, *backend_protocol, *auth) = (None, None, None, None, None);
        (*retries, *hedge) = (0, None);
        (*bytes_received, *bytes_sent, *head_bytes_sent) = (0, 0, 0);
        (*tunnelled, *status) = ((0, 0), 0);
        (*pool, *backend, *behind_proxy, *has_waited) = (None, None, None, false);
        (*route, *route_number, *is_unlogged) = (None, None, false);
        (*would_reject, *sqli, *user) = (Reasons::default(), None, None);
        cache.clear();
        captured.clear();
        text.clear();
        passage.end();
    }

    /// The current time, approximately: the time of the request's head as long as there was no wait since,
    /// which saves asking the clock.
    pub fn nearly_now(&self) -> Duration {
        if self.retries == 0 && self.queue.is_none() && !self.has_waited { self.head } else { clock::now() }
    }

    /// Notes a wait, for example for a part of the body: the time of the head is no longer close to the
    /// current time.
    pub fn note_wait(&mut self) {
        self.has_waited = true;
    }

    /// When the response's head came, precise enough for averages and without asking the clock.
    pub fn response_at(&self) -> Duration {
        if self.retries > 0 || self.has_waited {
            // The phases are only those of the last attempt.
            return clock::now();
        }
        let phases = [self.queue, self.connect, self.backend_header];
        phases.into_iter().flatten().fold(self.head, |at, phase| at + phase)
    }

    /// Notes the client of this request, if the connection's own client is a trusted proxy.
    pub fn note_client(&mut self, client: Client) {
        self.behind_proxy = Some(client);
    }

    /// The client of this request.
    #[inline]
    pub fn client(&self, requester: &Requester) -> Client {
        self.behind_proxy.unwrap_or(requester.client)
    }

    /// Releases what must not be kept while no exchange runs.
    pub fn release(&mut self) {
        self.pool = None;
        self.route = None;
        self.passage.end();
    }

    /// Called before the whole rest of the answer is sent in one piece: a client that has received it must
    /// not find that its request still counts as running.
    #[inline]
    pub fn leave_places(&mut self) {
        self.passage.end();
    }

    /// Notes the status of the answer, of which nothing has been sent yet. If the answer is charged, the
    /// client may find after receiving it that it has exceeded a limit.
    #[inline]
    pub fn answers(&mut self, status: u16) {
        self.status = status;
        if self.passage.is_charged() {
            self.passage.charge(status, clock::now());
        }
    }

    /// Status of the answer; 0 while there is none.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Notes which backend was chosen; after a wait it may belong to a newer snapshot of the pool.
    pub fn note_backend(&mut self, chosen: &Chosen) {
        self.backend = Some(chosen.index);
        if !self.pool.as_ref().is_some_and(|pool| Rc::ptr_eq(pool, &chosen.pool)) {
            self.pool = Some(chosen.pool.clone());
        }
    }

    /// What the exchange with the backend took, for the logs of those who wait for the same fetch.
    pub fn origin(&self) -> Origin {
        Origin {
            backend: self.backend,
            retries: self.retries,
            hedge: self.hedge,
            queue: self.queue,
            connect: self.connect,
            backend_header: self.backend_header,
            backend_protocol: self.backend_protocol,
        }
    }

    /// Notes what the fetch took that answered this exchange.
    pub fn note_origin(&mut self, origin: Origin) {
        let Origin { backend, retries, hedge, queue, connect, backend_header, backend_protocol } = origin;
        let known = self.pool.as_ref().map_or(0, |pool| pool.backends.len());
        self.backend = backend.filter(|backend| *backend < known);
        (self.retries, self.queue, self.connect, self.backend_header) =
            (retries, queue, connect, backend_header);
        (self.backend_protocol, self.hedge) = (backend_protocol, hedge);
    }

    /// Notes and counts what would have refused the request if it were no dry run; once per request and
    /// reason.
    pub fn note_would_reject(&mut self, cells: &ListenerCells, reason: Rejected) {
        if self.would_reject.add(reason) {
            cells.would_reject[reason as usize].increment();
        }
    }

    /// Notes for the log what the screen for SQL injection found; only the first finding of a request.
    pub fn note_sqli(&mut self, say: impl FnOnce() -> String) {
        self.sqli.get_or_insert_with(|| say().into());
    }

    /// Whether that screen found anything.
    pub fn is_noted_by_sqli(&self) -> bool {
        self.sqli.is_some()
    }

    /// Notes for the log which user the client is.
    pub fn note_user(&mut self, name: &[u8]) {
        self.user = (!name.is_empty()).then(|| name.into());
    }

    /// Notes the matching route, and whether it wants an access log line.
    pub fn note_route(&mut self, worker: &Worker, listener: &WorkerListener, route: &Route) {
        self.is_unlogged = !route.access_log;
        self.route_number = Some(route.number);
        if listener.is_logged(worker) {
            self.route = Some(route.name.clone());
        }
    }

    /// Copies what logs need from the response that the client gets.
    #[inline]
    pub fn note_response(&mut self, listener: &WorkerListener, head: &ResponseHead, text: &[u8]) {
        if let Some(logs) = listener.compiled.logs.as_deref().filter(|logs| logs.asks()) {
            logs.note_response(&mut self.captured, head, text);
        }
    }

    /// Copies what the log quotes from the request.
    pub fn note_request(&mut self, request: &RequestHead, received: &[u8]) {
        let text = &mut *self.text;
        let mut keep = |bytes: &[u8]| {
            let start = text.bytes.len();
            text.bytes.extend_from_slice(bytes);
            start..text.bytes.len()
        };
        let method = keep(request.method_text(received));
        let target = keep(request.target(received));
        let host = request.host(received).map(&mut keep);
        let user_agent = request.value(KnownHeader::UserAgent, received).map(&mut keep);
        let referer = request.value_by_name(b"referer", received).map(&mut keep);
        *text = Text {
            bytes: std::mem::take(&mut text.bytes),
            method,
            host,
            target,
            user_agent,
            referer,
            version: request.version(),
        };
    }

    /// Notes a tunnel's bytes for the log; they were counted while they moved.
    pub fn tunnelled(&mut self, from_client: u64, from_backend: u64) {
        self.tunnelled = (from_client, from_backend);
    }

    /// Counts the exchange and writes its access log line. Called exactly once per exchange.
    ///
    /// Gives the current time, so that the next step need not ask the clock again.
    pub fn close(
        &mut self,
        requester: &Requester,
        listener: &WorkerListener,
        request_id: &[u8],
        end: End,
    ) -> Duration {
        let worker = &requester.worker;
        let now = clock::now();
        let total = now.saturating_sub(self.began);
        let cells = listener.shared.cells.of(worker.number);
        cells.requests[usize::from(self.status / 100).min(5)].increment();
        cells.request_seconds.record(total);
        cells.bytes_received.add(self.bytes_received);
        cells.bytes_sent.add(self.bytes_sent);
        cells.count_end(end);
        if let Some(result) = self.cache.result {
            cells.cache[result as usize].increment();
        }
        if let Some(by_route) = &listener.compiled.by_route {
            by_route.count(worker.number, self.route_number, self.status, total);
        }
        let is_logged = match &listener.compiled.logs {
            None => worker.log.enabled() && !self.is_unlogged,
            Some(logs) => logs.takes(self.route_number),
        };
        if is_logged {
            self.write_line(requester, listener, request_id, end, total);
        }
        now
    }

    #[cold]
    fn write_line(
        &self,
        requester: &Requester,
        listener: &WorkerListener,
        request_id: &[u8],
        end: End,
        total: Duration,
    ) {
        let text: &Text = &self.text;
        let quote = |range: &Range<usize>| text.bytes.get(range.clone()).filter(|bytes| !bytes.is_empty());
        let pool = self.pool.as_ref();
        let record = Record {
            time: SystemTime::now(),
            listener: &listener.shared.config.name,
            route: self.route.as_deref(),
            pool: pool.map(|pool| pool.shared.config.name.as_str()),
            backend: pool.zip(self.backend).map(|(pool, index)| pool.backends[index].shared.address.as_str()),
            client: self.client(requester).address,
            backend_protocol: self.backend_protocol,
            protocol: match text.version {
                Version::Http10 => Spoken::Http10,
                Version::Http11 => Spoken::Http11,
                Version::Http2 => Spoken::Http2,
                Version::Http3 => Spoken::Http3,
            },
            method: quote(&text.method),
            host: text.host.as_ref().and_then(quote),
            path: quote(&text.target),
            status: (self.status != 0).then_some(self.status),
            bytes_received: self.bytes_received + self.tunnelled.0,
            bytes_sent: self.bytes_sent + self.tunnelled.1,
            head_bytes_sent: self.head_bytes_sent,
            request_id: (!request_id.is_empty()).then_some(request_id),
            cache: self.cache.result.map(CacheResult::word),
            retries: self.retries,
            hedge: self.hedge.map(HedgeResult::word),
            timers: Timers {
                // A head that was never complete has no method, and took no known time.
                client_header: (!text.method.is_empty()).then(|| self.head.saturating_sub(self.began)),
                queue: self.queue,
                connect: self.connect.or_else(|| self.backend_header.map(|_| Duration::ZERO)),
                backend_header: self.backend_header,
                auth: self.auth,
                total,
            },
            end,
            would_reject: self.would_reject,
            sqli: self.sqli.as_deref(),
            user: self.user.as_deref(),
            tls: requester.secure.as_deref(),
            server_name: requester.secure.as_deref().and_then(|secure| secure.server_name.as_deref()),
            user_agent: text.user_agent.as_ref().and_then(quote),
            referer: text.referer.as_ref().and_then(quote),
        };
        let worker = &requester.worker;
        let cells = listener.shared.cells.of(worker.number);
        match &listener.compiled.logs {
            None => worker.log.write(&record, cells),
            Some(logs) => worker.log.write_to(logs, self.route_number, &record, &self.captured, cells),
        }
    }
}
