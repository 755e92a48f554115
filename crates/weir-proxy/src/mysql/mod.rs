//! MySQL listeners. A client logs in to Weir, and each of its statements goes to a server in the role that
//! the statement needs, on a connection that sessions share.
//!
//! If Weir does not see statements (`mode = "passthrough"`, `passwords = "relay"`), a client connection goes
//! to a server in the role of its listener and stays there.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use weir_balance::WantedRole;
use weir_config::{MysqlAccess, Passwords, TlsMode};

use crate::access_log::Spoken;
use crate::backends::WorkerPool;
use crate::reach::{Park, Wish};
use crate::tcp;
use crate::worker::{ListenerSlot, Worker, WorkerListener};

mod account;
mod acquire;
mod at_once;
mod attach;
mod away;
mod broken_off;
mod commands;
mod compress;
mod confirm;
mod deposed;
mod exchange;
mod failure;
mod fitting;
mod kill;
mod leaving;
mod login;
mod outcome;
mod own;
mod prepared;
mod prepared_commands;
mod read_only;
mod read_your_writes;
mod reframe;
mod refused_write;
mod relayed;
mod report;
mod room;
mod serve;
mod server;
mod server_error;
mod session;
mod statement;
mod talk;
mod unfinished;
mod unfit;
mod upload;
mod written;

/// Serves one client connection to its end.
pub async fn serve(worker: Rc<Worker>, slot: Rc<ListenerSlot>, stream: TcpStream, peer: SocketAddr) {
    let listener = slot.current();
    if takes_part(&listener) {
        drop(listener);
        return serve::serve(worker, slot, stream, peer).await;
    }
    let wish = wish(&listener);
    drop(listener);
    tcp::session::serve_in(Spoken::Mysql, wish, worker, slot, stream, peer).await;
}

/// Whether Weir speaks the protocol itself, rather than passing TLS through.
fn takes_part(listener: &WorkerListener) -> bool {
    let tls = listener.shared.config.tls.as_ref();
    tls.is_none_or(|tls| tls.mode != TlsMode::Passthrough)
}

/// Whether clients of a pool log in to a server rather than to Weir.
fn is_relayed(pool: &WorkerPool) -> bool {
    pool.shared.config.mysql.as_ref().is_none_or(|mysql| mysql.passwords == Passwords::Relay)
}

/// The deadline `until`, or the listener's drain deadline if that comes first: a client that keeps moving
/// bytes cannot extend it.
fn while_it_lasts(slot: &ListenerSlot, until: Duration) -> Duration {
    slot.draining_until().map_or(until, |cut_off| until.min(cut_off))
}

fn wish(listener: &WorkerListener) -> Wish {
    let access = listener.shared.config.mysql().map_or(MysqlAccess::Auto, |mysql| mysql.access);
    let pool = listener.compiled.routes.default_pool().and_then(|index| listener.pools.get(index));
    let mysql = pool.and_then(|pool| pool.shared.config.mysql.as_ref());
    let park = mysql.filter(|mysql| !mysql.park.is_zero());
    let role = match access {
        // Statements are not visible, and any of them may be a write.
        MysqlAccess::Auto | MysqlAccess::ReadWrite => WantedRole::Primary,
        MysqlAccess::ReadOnly => WantedRole::Read,
    };
    let park = park.map(|mysql| Park { longest: mysql.park, most: mysql.park_max });
    Wish { role: Some(role), park, ..Wish::default() }
}
