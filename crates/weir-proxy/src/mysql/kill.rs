//! Statements that nobody waits for any more.

use super::acquire::Attached;
use super::session::Session;

/// Ends the statement that runs on a connection.
pub fn abandoned(_session: &Session, attached: Attached) {
    drop(attached);
}
