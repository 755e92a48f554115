//! The data about a session for the access log, from its login on.

use std::rc::Rc;
use std::time::Duration;

use weir_io::handshake::Secure;

use crate::backends::WorkerPool;

/// The data for the log line at the end of a session.
#[derive(Default)]
pub struct Report {
    pub pool: Option<Rc<WorkerPool>>,
    /// Index of the last backend.
    pub backend: Option<usize>,
    pub queue: Option<Duration>,
    pub connect: Option<Duration>,
    pub retries: u32,
    pub from_client: u64,
    pub to_client: u64,
    /// The result of the client's TLS handshake; `None` without TLS.
    pub secure: Option<Rc<Secure>>,
}
