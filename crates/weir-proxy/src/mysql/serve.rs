//! A new client of MySQL: who it is, its login, its session, and what is told of it at the end.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Stream};
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::greeting::ServerGreeting;
use weir_mysql::login::ClientFirst;
use weir_mysql::state::TrackedState;
use weir_mysql::{LeftBehind, ReadsBack, SessionFacts};
use weir_screen::Screen;
use weir_stats::table::{End, Rejected};

use super::account::Account;
use super::prepared::ClientStatements;
use super::server::ConnectionKind;
use super::session::{Report, Session};
use super::talk::Talk;
use crate::access_log::{Record, Spoken, Timers};
use crate::backends::elapsed;
use crate::client::Client;
use crate::identify;
use crate::worker::{ListenerSlot, Worker};

/// Connection ids of Weir's own have the top bit, which a server's own do not reach: a number from SHOW
/// PROCESSLIST is never taken for one of ours, nor one of ours for a server's.
const OWN_ID: u32 = 0x8000_0000;

fn next_connection_id() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1) | OWN_ID
}

/// Serves one connection to its end.
pub async fn serve(worker: Rc<Worker>, slot: Rc<ListenerSlot>, stream: TcpStream, peer: SocketAddr) {
    let begun = clock::now();
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    let listener = slot.current();
    deadline.belongs_to(listener.shared.number());
    let mut stream = Stream::plain(stream);
    stream.send_at_once();
    let mut first = None;
    let identified =
        Box::pin(identify::by_header(&listener, &mut stream, peer, &mut first, &worker, &deadline)).await;
    let (client, _counted) = match identified {
        Ok(identified) => identified,
        Err(end) => {
            stream.reset_on_close();
            return finish(&worker, &slot, Client::of_peer(peer), begun, &Report::default(), end);
        }
    };
    let is_denied = |screen: &Screen| !screen.passes(client.address.ip());
    if listener.compiled.screen.as_deref().is_some_and(is_denied) {
        stream.reset_on_close();
        return finish(&worker, &slot, client, begun, &Report::default(), End::DeniedAddress);
    }
    drop(listener);
    let opened = Box::pin(open(worker.clone(), slot.clone(), stream, client, deadline)).await;
    match opened {
        Ok(mut session) => {
            let end = session.run().await;
            session.detach();
            finish(&worker, &slot, client, begun, &session.report, end);
        }
        Err(end) => finish(&worker, &slot, client, begun, &Report::default(), end),
    }
}

/// Logs a client in.
async fn open(
    worker: Rc<Worker>,
    slot: Rc<ListenerSlot>,
    stream: Stream,
    client: Client,
    deadline: Deadline,
) -> Result<Box<Session>, End> {
    let connection_id = next_connection_id();
    deadline.set(clock::now() + Duration::from_secs(10));
    let mut talk = Talk::new(stream, None);
    let greeting = ServerGreeting {
        server_version: b"9.7.4",
        connection_id,
        capabilities: Capabilities::SPOKEN,
        collation: 255,
        status: StatusFlags::AUTOCOMMIT,
        auth_data: b"abcdefghijklmnopqrst".to_vec(),
        plugin: b"caching_sha2_password",
    };
    talk.send(&deadline, |out| greeting.write(out)).await.map_err(|_| End::Handshake)?;
    let first = talk.receive(&worker.buffers, &deadline, 16000).await.map_err(|_| End::Handshake)?;
    let ClientFirst::Login(login) = ClientFirst::parse(&first).map_err(|_| End::Handshake)? else {
        return Err(End::Handshake);
    };
    let account =
        Rc::new(Account::new(login.user, weir_tls::password::Password::new(b"").ok_or(End::Internal)?));
    let capabilities = login.capabilities & Capabilities::SPOKEN;
    let database: Option<Box<[u8]>> = login.database.map(Into::into);
    let kind = ConnectionKind { account, capabilities, collation: login.collation };
    let (stream, buffer) = talk.into_parts();
    let mut session = Box::new(Session {
        worker,
        slot,
        client,
        stream,
        buffer,
        deadline,
        connection_id,
        kind,
        max_packet_bytes: login.max_packet_bytes,
        attributes: login.attributes.into(),
        facts: SessionFacts::default(),
        status: StatusFlags::AUTOCOMMIT,
        state: Rc::new(TrackedState::of_schema(database.as_deref())),
        attached: None,
        pins: LeftBehind::NONE,
        held: ReadsBack::NONE,
        left_at: None,
        insert_id: Some(0),
        is_without_warnings: true,
        statements: ClientStatements::default(),
        written: None,
        report: Report::default(),
    });
    if let Err(refusal) = session.begin().await {
        session.refuse(2, refusal).await.ok();
        return Err(End::Handshake);
    }
    session.send_ok(2).await?;
    Ok(session)
}

fn finish(worker: &Worker, slot: &ListenerSlot, client: Client, begun: Duration, report: &Report, end: End) {
    let listener = slot.current();
    let cells = listener.shared.cells.of(worker.number);
    cells.ends[end as usize].increment();
    if let Some(reason) = rejection(end) {
        cells.rejected[reason as usize].increment();
    }
    if !worker.log.enabled() {
        return;
    }
    let pool = report.pool.as_ref();
    let backend = pool.zip(report.backend).and_then(|(pool, index)| pool.backends.get(index));
    let record = Record {
        time: SystemTime::now(),
        listener: &listener.shared.config.name,
        route: None,
        pool: pool.map(|pool| pool.shared.config.name.as_str()),
        backend: backend.map(|backend| backend.shared.address.as_str()),
        client: client.address,
        protocol: Spoken::Mysql,
        method: None,
        host: None,
        path: None,
        status: None,
        bytes_received: report.from_client,
        bytes_sent: report.to_client,
        request_id: None,
        cache: None,
        retries: report.retries,
        timers: Timers {
            client_header: None,
            queue: report.queue,
            connect: report.connect,
            backend_header: None,
            total: elapsed(begun),
        },
        end,
        would_reject: Default::default(),
        sqli: None,
        user_agent: None,
        referer: None,
        tls: None,
    };
    worker.log.write(&record, cells);
}

/// Which refusals an end is counted under.
fn rejection(end: End) -> Option<Rejected> {
    Some(match end {
        End::BadProxyHeader => Rejected::BadProxyHeader,
        End::ClientHeader => Rejected::HeaderTimeout,
        End::Handshake => Rejected::Handshake,
        End::DeniedAddress => Rejected::DeniedAddress,
        End::NoBackend => Rejected::NoBackend,
        End::QueueFull | End::ParkFull => Rejected::QueueFull,
        End::QueueTimeout | End::ParkTimeout => Rejected::QueueTimeout,
        End::Overload => Rejected::Memory,
        End::TooManyConnections => Rejected::ClientConnections,
        _ => return None,
    })
}
