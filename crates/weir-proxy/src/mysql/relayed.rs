//! Clients whose login one server settles with them (`passwords = "relay"`): Weir learns no password, and the
//! client stays with that server. No statement is looked at.

use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Stream;
use weir_mysql::capability::Capabilities;
use weir_mysql::packet::write_packet_with;
use weir_stats::table::End;

use super::kill::next_connection_id;
use super::login::{self, LoginTerms};
use super::serve::Newcomer;
use super::session::Report;
use crate::reach::{Reach, Unavailable};
use crate::tcp::relay::{self, FirstBytes, Pair, Terms};

/// Serves a client from its login to its end.
pub async fn serve(
    newcomer: &Newcomer,
    stream: Stream,
    first: Option<Buffer>,
    deadline: &Deadline,
    report: &mut Report,
) -> End {
    let Newcomer { worker, slot, client, .. } = newcomer;
    let listener = slot.current();
    let pool = listener.compiled.routes.default_pool().and_then(|index| listener.pools.get(index).cloned());
    let Some(pool) = pool else { return End::NoBackend };
    report.pool = Some(pool.clone());
    let begun = clock::now();
    let mut reach = Reach::begin(&pool, super::wish(&listener), begun);
    let got = reach.choose(worker, &pool, deadline, begun, |_| false).await;
    report.queue = got.as_ref().map_or_else(|why| why.queued(), |got| got.queued);
    let chosen = match got.map_err(Unavailable::end) {
        Ok(got) => got.chosen,
        Err(end) => return end,
    };
    report.backend = Some(chosen.index);
    let terms = LoginTerms {
        worker,
        listener: &listener,
        pool: &pool,
        deadline,
        client: client.address.ip(),
        offers: Capabilities::NONE,
    };
    let header = pool.shared.config.send_proxy;
    let header = header.map(|version| client.proxy_header(version, || stream.local_addr()));
    let id = next_connection_id();
    let relayed = Box::pin(login::relay(&terms, stream, first, id, &chosen, header.as_deref())).await;
    let (mut client, mut server, ok) = match relayed {
        Ok(relayed) => relayed,
        Err(end) => return end,
    };
    report.connect = Some(clock::now().saturating_sub(begun));
    let mut answer = Vec::with_capacity(ok.len() + 4);
    write_packet_with(&mut answer, client.sequence, |out| out.extend_from_slice(&ok));
    deadline.set(clock::now() + super::session::CLIENT_PATIENCE);
    if weir_io::wait::send_all(&mut client.stream, &answer, deadline, || {}).await.is_err() {
        return End::ClientClosed;
    }
    let client_cells = listener.shared.cells.of(worker.number);
    let cells = chosen.backend().cells();
    cells.requests[0].increment();
    let idle = listener.shared.config.timeout.client_idle;
    let relayed = relay::run(
        Pair { client: &mut client.stream, backend: &mut *server.connection },
        FirstBytes { from_client: client.first.take(), from_backend: None },
        Terms { buffers: &worker.buffers, deadline, idle },
        || slot.draining_until(),
        |from_client, from_backend| {
            client_cells.bytes_received.add(from_client);
            client_cells.bytes_sent.add(from_backend);
            cells.bytes_sent.add(from_client);
            cells.bytes_received.add(from_backend);
        },
    );
    let relayed = relayed.await;
    (report.from_client, report.to_client) = (relayed.from_client, relayed.from_backend);
    relayed.end
}
