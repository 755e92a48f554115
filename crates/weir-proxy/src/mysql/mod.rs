//! MySQL listeners: a connection goes to a server in the role that its listener is for, and stays there.
//!
//! The login and all that follows is relayed as it is, TLS included where a client and a server make it
//! with each other. The config's check refuses what would need more.

#![allow(dead_code, reason = "the session that calls it comes next")]

mod account;
mod attach;
mod talk;

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;
use weir_balance::WantedRole;
use weir_config::MysqlAccess;

use crate::access_log::Spoken;
use crate::reach::{Park, Wish};
use crate::tcp;
use crate::worker::{ListenerSlot, Worker, WorkerListener};

/// Serves one connection to its end.
pub async fn serve(worker: Rc<Worker>, slot: Rc<ListenerSlot>, stream: TcpStream, peer: SocketAddr) {
    let listener = slot.current();
    let wish = wish(&listener);
    drop(listener);
    tcp::session::serve_in(Spoken::Mysql, wish, worker, slot, stream, peer).await;
}

fn wish(listener: &WorkerListener) -> Wish {
    let access = listener.shared.config.mysql().map_or(MysqlAccess::Auto, |mysql| mysql.access);
    let pool = listener.compiled.routes.default_pool().and_then(|index| listener.pools.get(index));
    let mysql = pool.and_then(|pool| pool.shared.config.mysql.as_ref());
    let park = mysql.filter(|mysql| !mysql.park.is_zero());
    let role = match access {
        // Statements are not seen, and what is not seen may be a write.
        MysqlAccess::Auto | MysqlAccess::ReadWrite => WantedRole::Primary,
        MysqlAccess::ReadOnly => WantedRole::Read,
    };
    let park = park.map(|mysql| Park { longest: mysql.park, most: mysql.park_max });
    Wish { role: Some(role), park, ..Wish::default() }
}
