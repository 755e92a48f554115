//! A new MySQL client: identification, login, session, and the log line at the end.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use weir_config::ListenerMysql;
use weir_io::buffers::{Buffer, Held};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Stream};
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::{LeftBehind, ReadsBack, SessionFacts};
use weir_stats::table::End;

use super::compress;
use super::confirm::Confirming;
use super::is_relayed;
use super::kill::{Killable, next_connection_id};
use super::login::{self, Candidate, ClientLoggedIn, LoginTerms};
use super::prepared::ClientStatements;
use super::relayed::Relaying;
use super::report::Report;
use super::server::ConnectionKind;
use super::session::Session;
use super::unfinished::Unfinished;
use super::written::Written;
use crate::access_log::{Record, Spoken, Timers};
use crate::admission;
use crate::backends::elapsed;
use crate::client::Client;
use crate::identify;
use crate::worker::{ListenerSlot, Worker};

/// A client connection and where it arrived.
pub struct ConnectedClient {
    pub worker: Rc<Worker>,
    pub slot: Rc<ListenerSlot>,
    pub client: Client,
    begun: Duration,
}

/// Serves one client connection to its end.
pub async fn serve(worker: Rc<Worker>, slot: Rc<ListenerSlot>, stream: TcpStream, peer: SocketAddr) {
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    let listener = slot.current();
    deadline.belongs_to(listener.shared.number());
    let mut connected = ConnectedClient { worker, slot, client: Client::of_peer(peer), begun: clock::now() };
    let mut stream = Stream::plain(stream);
    stream.send_at_once();
    let mut first = None;
    let worker = &connected.worker;
    let identified = identify::by_header(&listener, &mut stream, peer, &mut first, worker, &deadline);
    let (client, _counted) = match Box::pin(identified).await {
        Ok(identified) => identified,
        Err(end) => {
            stream.reset_on_close();
            return connected.finish(&Report::default(), end);
        }
    };
    connected.client = client;
    if let Err(end) = admission::admit(&connected.worker, &listener, client.address.ip()) {
        stream.reset_on_close();
        return connected.finish(&Report::default(), end);
    }
    drop(listener);
    let opened = Box::pin(open(&connected, stream, first, deadline)).await;
    match opened {
        Opened::Session(mut session) => {
            let end = session.run().await;
            session.detach();
            connected.finish(&session.report, end);
        }
        Opened::Ended(report, end) => connected.finish(&report, end),
    }
}

/// The result of opening a client connection.
enum Opened {
    /// The client is logged in.
    Session(Box<Session>),
    /// The connection was already served to its end.
    Ended(Box<Report>, End),
}

/// Logs a client in. A client whose login must be relayed to a server is also served here.
async fn open(
    connected: &ConnectedClient,
    stream: Stream,
    first: Option<Buffer>,
    deadline: Deadline,
) -> Opened {
    let (worker, slot, client) = (connected.worker.clone(), connected.slot.clone(), connected.client);
    let listener = slot.current();
    let pool = listener.compiled.routes.default_pool().and_then(|index| listener.pools.get(index).cloned());
    let Some(pool) = pool else { return Opened::Ended(Box::default(), End::NoBackend) };
    let connection_id = next_connection_id();
    let report = RefCell::new(Report { pool: Some(pool.clone()), ..Report::default() });
    let (confirmed, logged_in) = {
        let terms = LoginTerms {
            worker: &worker,
            listener: &listener,
            pool: &pool,
            deadline: &deadline,
            client: client.address.ip(),
            offers: listener.shared.config.mysql().map_or(Capabilities::NONE, offered),
            report: &report,
        };
        let relaying = Relaying { worker: &worker, slot: &slot, client, deadline: &deadline };
        let ended = |end| Opened::Ended(Box::new(report.take()), end);
        if is_relayed(&pool) {
            return ended(Box::pin(relaying.serve(&terms, stream, first)).await);
        }
        let confirming = Confirming::of(&terms, client);
        let confirm =
            async |candidate: &Candidate, client: &mut Stream| confirming.run(candidate, client).await;
        match login::run(&terms, stream, first, connection_id, confirm).await {
            Ok(login::Opened::LoggedIn(logged_in, confirmed)) => (confirmed, logged_in),
            Ok(login::Opened::Undecided(undecided)) => {
                return ended(Box::pin(relaying.serve_unasked(&terms, undecided)).await);
            }
            Err(end) => return ended(end),
        }
    };
    let ClientLoggedIn { stream, first, candidate, sequence } = logged_in;
    let kind = ConnectionKind::of(&candidate);
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let killable = Killable::new(connection_id, &candidate.account.user, &pool.shared.config.name, waker);
    let mut session = Box::new(Session {
        attributes_held: Held::new(&worker.buffers),
        worker,
        slot,
        client,
        stream,
        buffer: first,
        deadline,
        now: clock::now(),
        is_now_fresh: false,
        killable,
        candidate,
        kind,
        facts: SessionFacts::default(),
        status: StatusFlags::AUTOCOMMIT,
        told_status: StatusFlags::AUTOCOMMIT,
        state: Rc::default(),
        longest_idle: None,
        attached: None,
        unfinished: Unfinished::default(),
        pins: LeftBehind::NONE,
        held: ReadsBack::NONE,
        left_at: None,
        here: ReadsBack::NONE,
        insert_id: Some(0),
        insert_id_before: Some(0),
        is_without_warnings: true,
        has_left_rows: false,
        refused: None,
        is_made_read_only: false,
        suited: None,
        statements: ClientStatements::default(),
        has_lost_transaction: false,
        has_untold_writes: false,
        written: Written::default(),
        report: report.into_inner(),
    });
    session.begin(&confirmed);
    if let Err(end) = session.send_ok(sequence).await {
        return Opened::Ended(Box::new(session.report), end);
    }
    Opened::Session(compressed(session))
}

/// The capabilities offered to clients in addition to the fixed ones.
fn offered(mysql: &ListenerMysql) -> Capabilities {
    compress::offered(&mysql.compression)
}

/// The session of a client that uses compression from now on, if it has asked for that.
fn compressed(session: Box<Session>) -> Box<Session> {
    let Some(algorithm) = session.candidate.compression else { return session };
    let whole = *session;
    let stream = compress::compressed(whole.stream, algorithm, whole.buffer, &whole.worker.buffers);
    Box::new(Session { stream, buffer: None, ..whole })
}

impl ConnectedClient {
    /// Updates the statistics and writes the log line.
    fn finish(&self, report: &Report, end: End) {
        let ConnectedClient { worker, slot, client, begun } = self;
        let listener = slot.current();
        listener.finish(worker, end, None, || {
            let pool = report.pool.as_ref();
            let backend = pool.zip(report.backend).and_then(|(pool, index)| pool.backends.get(index));
            Record {
                pool: pool.map(|pool| pool.shared.config.name.as_str()),
                backend: backend.map(|backend| backend.shared.address.as_str()),
                bytes_received: report.from_client,
                bytes_sent: report.to_client,
                retries: report.retries,
                timers: Timers {
                    queue: report.queue,
                    connect: report.connect,
                    total: elapsed(*begun),
                    ..Timers::default()
                },
                tls: report.secure.as_deref(),
                server_name: report.secure.as_deref().and_then(|secure| secure.server_name.as_deref()),
                ..Record::of_session(&listener.shared.config.name, Spoken::Mysql, client.address, end)
            }
        });
    }
}
