//! Serves the admin API on the control thread, with limits on connections, bytes and time.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::api::{self, Context};
use crate::auth::Auth;
use crate::endpoints::{ENDPOINTS, Method};
use crate::slots::{CONNECTIONS, During, Slot, Slots};
use weir_config::AdminBind;
use weir_control::control::Control;
use weir_control::reload::{Reread, TakeUp};
use weir_io::at::UnixName;
use weir_io::listener::Listener;
use weir_io::unix_socket::{self, Listening, Permissions, SocketFile};
use weir_tls::ServerTls;

/// Time for the head of a request, and between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest head of a request, in bytes.
const HEADER_BYTES: usize = 16 * 1024;
/// Pause before accepting again after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);
/// Time to finish answering requests once another process serves.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Accept queue length of a Unix socket.
const BACKLOG: i32 = 128;
/// Shortest time between log lines saying that connections were closed to make room.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The admin API's listening socket.
pub struct Admin {
    listener: Listener,
    bind: AdminBind,
    files: Arc<AdminFiles>,
    /// The Unix socket's file, and who may connect to it.
    file: Option<SocketFile>,
    permissions: Permissions,
}

/// What the admin API reads from files: the token, and what TLS needs.
pub struct AdminFiles {
    config: weir_config::Admin,
    auth: Arc<Auth>,
    /// For new connections.
    tls: Mutex<Option<TlsAcceptor>>,
}

impl AdminFiles {
    fn read(config: &weir_config::Admin) -> Result<Arc<AdminFiles>, String> {
        let (auth, tls) = (Arc::new(Auth::new(config)?), Mutex::new(acceptor(config)?));
        Ok(Arc::new(AdminFiles { config: config.clone(), auth, tls }))
    }

    fn tls(&self) -> Option<TlsAcceptor> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Reread for AdminFiles {
    fn read(self: Arc<Self>) -> Result<TakeUp, String> {
        let (token, tls) = (Auth::token_of(&self.config)?, acceptor(&self.config)?);
        Ok(Box::new(move || {
            self.auth.ask_for(token);
            *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
        }))
    }
}

fn acceptor(config: &weir_config::Admin) -> Result<Option<TlsAcceptor>, String> {
    let tls = config.tls.as_ref().map(ServerTls::for_admin).transpose();
    let tls = tls.map_err(|error| format!("the admin API can't be served over TLS: {error}"))?;
    Ok(tls.map(TlsAcceptor::from))
}

/// What to do if the admin API's address is already in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenTaken {
    /// Don't start: scripts and monitors expect the API there.
    Refuse,
    /// Listen on a free port of the same address, and say which: nobody asked for the default one.
    TakeFreePort,
}

impl Admin {
    /// Opens the socket, or takes over `inherited` (then call [`Self::allow`] for its file). Refuses an
    /// address that other machines can reach if there is no token.
    pub fn bind(
        config: &weir_config::Admin,
        inherited: Option<Listening>,
        when_taken: WhenTaken,
    ) -> Result<Admin, String> {
        let files = AdminFiles::read(config)?;
        let said = &config.unix_socket;
        let permissions =
            Permissions { mode: said.mode.0, owner: said.owner.clone(), group: said.group.clone() };
        let opened = match inherited {
            Some(listening) => {
                let may_allow = listening.file.as_ref().map(|file| file.may_allow(&permissions));
                may_allow.unwrap_or(Ok(())).map_err(|error| cannot_allow(&config.bind, &error))?;
                Ok(listening)
            }
            None => open(config, &permissions, when_taken),
        };
        let opened = opened.and_then(|Listening { socket, file }| Ok((Listener::new(socket)?, file)));
        let (listener, file) = opened.map_err(|error| {
            let taken = error.kind() == io::ErrorKind::AddrInUse;
            let advice =
                if taken { " (another Weir is running, or set admin.bind to a free port)" } else { "" };
            format!("the admin API can't listen on {}: {error}{advice}", config.bind)
        })?;
        Ok(Admin { listener, bind: config.bind.clone(), files, file, permissions })
    }

    /// Changes who may connect to an inherited Unix socket to what the config says. Until then the previous
    /// process's permissions stay, because that process may have to continue serving.
    pub fn allow(&mut self) -> Result<(), String> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.allow(&self.permissions).map_err(|error| cannot_allow(&self.bind, &error))?;
        if !file.stands() {
            let bind = &self.bind;
            tracing::warn!(
                "what stands at {bind} is not the socket that Weir made: nobody finds the admin API until a restart"
            );
        }
        Ok(())
    }

    /// The files that a reload reads again.
    pub fn files(&self) -> Arc<AdminFiles> {
        self.files.clone()
    }

    /// Where it listens: for port 0 the port that the kernel chose.
    pub fn place(&self) -> AdminBind {
        match &self.listener {
            Listener::Inet(listener) => listener.local_addr().map_or(self.bind.clone(), AdminBind::Inet),
            Listener::Unix(_) => self.bind.clone(),
        }
    }

    /// A duplicate of the socket and its file, for a new process.
    pub fn listening(&self) -> io::Result<Listening> {
        use std::os::fd::AsFd as _;
        let socket = self.listener.as_fd().try_clone_to_owned()?;
        Ok(Listening { socket, file: self.file.clone() })
    }

    /// Serves until `leaving` says that another process has taken over accepting; requests in progress are
    /// then answered within [`LAST_ANSWERS`]. Dropping the future ends its connections.
    pub async fn serve(self, control: Arc<Control>, mut leaving: watch::Receiver<bool>) {
        let router = router(control, self.files.auth.clone());
        let slots = Arc::new(Slots::default());
        let mut connections = tokio::task::JoinSet::new();
        let mut reported: Option<Instant> = None;
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = poll_fn(|context| self.listener.poll_accept(context)) => accepted,
                () = left(&mut leaving) => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (slot, is_full) = slots.take(peer.ip()).await;
                    if is_full && reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
                        reported = Some(Instant::now());
                        tracing::warn!(
                            connections = CONNECTIONS,
                            "the admin API is full: silent connections are closed for newcomers"
                        );
                    }
                    let slot = Arc::new(slot);
                    let (router, auth) = (router.clone(), self.files.auth.clone());
                    let task = match self.files.tls() {
                        None => connections.spawn(serve_connection(stream, router, slot.clone(), auth)),
                        Some(tls) => {
                            connections.spawn(serve_secured(tls, stream, router, slot.clone(), auth))
                        }
                    };
                    slot.belongs_to(task);
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin API could not accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        let answered = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
    }
}

/// Waits until another process serves.
async fn left(leaving: &mut watch::Receiver<bool>) {
    let _ = leaving.wait_for(|has_left| *has_left).await;
}

fn cannot_allow(bind: &AdminBind, error: &io::Error) -> String {
    format!("who may connect to the admin API at {bind} can't be changed: {error}")
}

/// Opens the socket.
fn open(
    config: &weir_config::Admin,
    permissions: &Permissions,
    when_taken: WhenTaken,
) -> io::Result<Listening> {
    let address = match &config.bind {
        AdminBind::Inet(address) => *address,
        AdminBind::Unix(name) => return unix_socket::listen(&UnixName::new(name), permissions, BACKLOG),
    };
    let listener = match std::net::TcpListener::bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && when_taken == WhenTaken::TakeFreePort => {
            elsewhere(address)?
        }
        opened => opened?,
    };
    listener.set_nonblocking(true)?;
    Ok(Listening { socket: listener.into(), file: None })
}

/// Listens on a free port where `taken` is in use; says which option a client needs to find it.
fn elsewhere(taken: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(SocketAddr::new(taken.ip(), 0))?;
    let address = listener.local_addr()?;
    tracing::warn!("{taken} is taken, so the admin API is at {address}: `weir status --admin {address}`");
    Ok(listener)
}

/// One route per entry of the table, so that neither can have an endpoint that the other lacks.
pub(crate) fn router(control: Arc<Control>, auth: Arc<Auth>) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let filter = match endpoint.method {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Patch => MethodFilter::PATCH,
            Method::Delete => MethodFilter::DELETE,
        };
        let context = Context { control: control.clone(), auth: auth.clone(), endpoint };
        router = router
            .route(endpoint.path, on(filter, move |request: Request| api::answer(context.clone(), request)));
    }
    router.fallback(api::no_such_path).method_not_allowed_fallback(api::no_such_method)
}

/// Serves a connection over TLS, once TLS is available.
async fn serve_secured(
    tls: TlsAcceptor,
    stream: TcpStream,
    router: Router,
    slot: Arc<Slot>,
    auth: Arc<Auth>,
) {
    match tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, router, slot, auth).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS came about with a caller of the admin API"),
        Err(_) => tracing::debug!("a caller of the admin API began no TLS in time"),
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    router: Router,
    slot: Arc<Slot>,
    auth: Arc<Auth>,
) {
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut router = router.clone();
        let call = slot.begin(auth.has_token(request.headers()));
        async move {
            let response: Response = match router.call(request.map(Body::new)).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            Ok::<_, Infallible>(response.map(|body| During::new(body, call)))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "an admin connection ended early");
    }
}
