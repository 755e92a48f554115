//! A listener as the QUIC transport uses it: decides who may connect, with which settings, and serves the
//! connection.

use std::any::Any;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{IdleTimeout, ServerConfig, TransportConfig, VarInt};
use weir_http::h3::Code;
use weir_quic::connection::Connection;
use weir_quic::crypto::Unpadded;
use weir_quic::keys::Keys;
use weir_quic::port::{Front, Settings};
use weir_state::Listener;
use weir_stats::table::Rejected;

use super::server;
use crate::evictions::Idle;
use crate::http::under_way::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use crate::listener_socket::ListenerSocket;
use crate::worker::{ListenerSlot, SessionCount, Worker};

/// Unidirectional streams of a client: three for control, and some for extensions that we do not know (RFC
/// 9114 section 6.2).
const STEERING_STREAMS: u32 = 16;
/// Bytes of handshake messages that may arrive out of order (threat D4).
const CRYPTO_BYTES: usize = 64 << 10;

/// One listener on one worker.
pub struct ListenerFront {
    worker: Rc<Worker>,
    socket: Rc<ListenerSocket>,
    keys: Arc<Keys>,
    /// The settings, and the listener that they were made for.
    made: RefCell<Option<(Arc<Listener>, Arc<ServerConfig>)>>,
}

/// What a connection keeps from its beginning: its handshake uses the rules in force then.
struct Admitted {
    slot: Rc<ListenerSlot>,
    _count: SessionCount,
}

impl ListenerFront {
    /// For the listener that `socket` belongs to, now and after each reload.
    pub fn new(worker: Rc<Worker>, socket: Rc<ListenerSocket>, keys: Arc<Keys>) -> ListenerFront {
        ListenerFront { worker, socket, keys, made: RefCell::default() }
    }

    /// Uses the cryptography once before the first client does: the delay would distort the measured
    /// round-trip time.
    pub fn warm_up(&self) {
        if let Some(tls) = &self.socket.slot().current().shared.tls {
            weir_tls::warm_up(tls);
        }
    }

    fn server_config(&self, listener: &Arc<Listener>) -> Option<Arc<ServerConfig>> {
        let made = &mut *self.made.borrow_mut();
        if let Some((of, config)) = made
            && Arc::ptr_eq(of, listener)
        {
            return Some(config.clone());
        }
        let tls = listener.tls.as_ref()?.quic_config()?.clone();
        let crypto = match QuicServerConfig::try_from(tls) {
            Ok(crypto) => crypto,
            Err(error) => {
                // The only cause is a policy without the cipher suite of first packets.
                tracing::error!(listener = listener.config.name, %error, "http/3 can't be served");
                return None;
            }
        };
        let mut config = ServerConfig::new(Arc::new(Unpadded::new(Arc::new(crypto))), self.keys.token());
        config.transport_config(Arc::new(transport(listener)));
        if listener.config.tls.as_ref().is_some_and(|tls| tls.early_data) {
            config.validation_token_config(self.keys.proofs());
        }
        let config = Arc::new(config);
        *made = Some((listener.clone(), config.clone()));
        Some(config)
    }
}

fn transport(listener: &Listener) -> TransportConfig {
    let config = &listener.config;
    let idle = IdleTimeout::try_from(config.timeout.client_idle).ok();
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(config.http().limits.streams))
        .max_concurrent_uni_streams(VarInt::from_u32(STEERING_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .max_idle_timeout(idle)
        .crypto_buffer_size(CRYPTO_BYTES)
        // Nothing here uses datagrams (RFC 9221).
        .datagram_receive_buffer_size(None);
    transport
}

impl Front for ListenerFront {
    fn settings(&self) -> Option<Settings> {
        let slot = self.socket.slot();
        if slot.draining_until().is_some() {
            return None;
        }
        let listener = slot.current();
        let timeout = listener.shared.config.timeout;
        Some(Settings {
            server: self.server_config(&listener.shared)?,
            handshake_timeout: timeout.handshake,
            idle_timeout: timeout.client_idle.max(Duration::from_secs(1)),
            control_frames: listener.shared.config.http().limits.control_frames,
            // Otherwise a client that spoofs addresses could take all places, including those of TCP.
            wants_proof: listener.shared.is_half_full(),
        })
    }

    fn admit(&self, _: SocketAddr) -> Option<Box<dyn Any>> {
        let slot = self.socket.slot();
        let listener = slot.current();
        if !listener.shared.admit() {
            // An idle session makes room for when the client tries again.
            self.worker.evict(Idle::Session { listener: listener.shared.number() });
            listener.shared.cells.of(self.worker.number).count_rejected(Rejected::ListenerConnections);
            return None;
        }
        let _count = SessionCount::enter(&self.worker, &listener.shared);
        Some(Box::new(Admitted { slot, _count }))
    }

    fn serve(&self, connection: Rc<Connection>) {
        let slot = connection.look_at_guard(|guard| Some(guard.downcast_ref::<Admitted>()?.slot.clone()));
        let slot = slot.flatten().unwrap_or_else(|| self.socket.slot());
        let listener = slot.current();
        // Only now: an address that is not validated may be spoofed, and must not use up the share of its
        // owner.
        let Ok(counted) = listener.shared.count_client(connection.client().ip()) else {
            listener.shared.cells.of(self.worker.number).count_rejected(Rejected::ClientConnections);
            return connection.close(Code::ExcessiveLoad.value(), "");
        };
        let worker = self.worker.clone();
        tokio::task::spawn_local(async move {
            let _held = counted;
            server::serve(worker, slot, connection).await;
        });
    }

    fn flooded(&self) -> u64 {
        let listener = self.socket.slot().current();
        listener.shared.cells.of(self.worker.number).count_rejected(Rejected::FrameFlood);
        Code::ExcessiveLoad.value()
    }
}
