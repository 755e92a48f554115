//! What the access log is told of a session, from its login on.

use std::rc::Rc;
use std::time::Duration;

use weir_io::handshake::Secure;

use crate::backends::WorkerPool;

/// What the log is told at the end.
#[derive(Default)]
pub struct Report {
    pub pool: Option<Rc<WorkerPool>>,
    /// Index of the backend used last.
    pub backend: Option<usize>,
    pub queue: Option<Duration>,
    pub connect: Option<Duration>,
    pub retries: u32,
    pub from_client: u64,
    pub to_client: u64,
    /// What the client's TLS handshake came to; `None` without TLS.
    pub secure: Option<Rc<Secure>>,
}
