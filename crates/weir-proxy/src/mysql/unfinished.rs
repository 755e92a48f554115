//! How far a statement came at once, for the general way to continue from.

use weir_io::buffers::Buffer;

use super::exchange::ExchangeError;
use super::server::ServerConnection;
use crate::backends::Chosen;
use crate::reach::Reach;

/// How far a statement has come that is not the common case after all.
#[derive(Default)]
pub struct Unfinished {
    /// An attachment that needs a wait.
    pub attach: Option<Box<Begun>>,
    /// Whether the session is attached to a server for the statement.
    pub is_attached: bool,
    /// Whether the command was sent to the attached server; `None` if no byte of it was.
    pub sent: Option<Result<(), ExchangeError>>,
    /// What was received of the answer.
    pub answer: Option<Buffer>,
}

/// An attachment that was begun but needs a wait.
pub struct Begun {
    pub reach: Reach,
    /// The server that was chosen first, if any.
    pub chosen: Option<Chosen>,
    /// An idle connection to that server.
    pub found: Option<Box<ServerConnection>>,
}
