//! The errors for clients that are not admitted.

use std::net::IpAddr;

use weir_io::clock;
use weir_mysql::error_number::{
    CR_CONN_HOST_ERROR, ER_ACCESS_DENIED_ERROR, ER_CON_COUNT_ERROR, ER_HANDSHAKE_ERROR,
    ER_NOT_SUPPORTED_AUTH_MODE, ER_TOO_MANY_USER_CONNECTIONS, ER_UNKNOWN_ERROR, ER_USER_LIMIT_REACHED,
    ER_WRONG_COMPRESSION_ALGORITHM_CLIENT, ER_WRONG_COMPRESSION_LEVEL_CLIENT,
};
use weir_mysql::outcome::ErrPacket;
use weir_stats::table::{End, Login};

use super::{Claim, LoginTerms, count, count_bytes};
use crate::mysql::attach::{AttachError, NOT_WITH_MARIADB, ServerError};
use crate::mysql::talk::{Talk, TalkError, Wire};

/// The error for a client that is not admitted, if any, and how its session ends.
pub struct Failed {
    pub answer: Option<ServerError>,
    pub end: End,
    pub counted: Login,
}

/// Sends a client the error about why it is not admitted, and counts it; returns how its session ends.
pub async fn say_no(terms: &LoginTerms<'_>, talk: &mut Talk<impl Wire>, failed: Failed) -> End {
    terms.deadline.set_idle(None);
    count(terms, failed.counted);
    if let Some(error) = failed.answer {
        terms.deadline.set(clock::now() + terms.listener.shared.config.timeout.handshake);
        // A client that does not receive it has disconnected.
        let _ = talk.send(terms.deadline, |out| error.packet().write(out)).await;
        talk.wire().say_farewell().await;
    }
    count_bytes(terms, talk);
    failed.end
}

impl Failed {
    pub fn refused(code: u16, state: &[u8; 5], message: &[u8]) -> Failed {
        let answer = ServerError::of(&ErrPacket { code, state: *state, message });
        Failed { answer: Some(answer), end: End::LoginRefused, counted: Login::Refused }
    }

    /// mysqld's error for a malformed login.
    pub fn bad_handshake() -> Failed {
        let answer = Failed::refused(ER_HANDSHAKE_ERROR, b"08S01", b"Bad handshake");
        Failed { end: End::BadRequest, counted: Login::Malformed, ..answer }
    }

    /// mysqld's error for a denied access.
    pub fn denied(claim: &Claim, client: IpAddr, has_password: bool) -> Failed {
        let text = format!(
            "Access denied for user '{}'@'{client}' (using password: {})",
            String::from_utf8_lossy(&claim.user),
            if has_password { "YES" } else { "NO" },
        );
        Failed::refused(ER_ACCESS_DENIED_ERROR, b"28000", text.as_bytes())
    }

    pub fn limited() -> Failed {
        let text = b"too many logins show their password at the same time; try again in a moment";
        let refused = Failed::refused(ER_CON_COUNT_ERROR, b"08004", text);
        Failed { end: End::LoginLimited, counted: Login::Limited, ..refused }
    }

    /// The account's limit of full logins is exceeded.
    pub fn of_limited_account(user: &[u8], most: u32) -> Failed {
        let user = String::from_utf8_lossy(user);
        let text = format!(
            "User '{user}' has exceeded the 'full_logins_per_account' resource (current value: {most})"
        );
        let refused = Failed::refused(ER_USER_LIMIT_REACHED, b"42000", text.as_bytes());
        Failed { end: End::LoginLimited, counted: Login::Limited, ..refused }
    }

    /// The account's limit of sessions is reached.
    pub fn too_many_of_account(user: &[u8]) -> Failed {
        let user = String::from_utf8_lossy(user);
        let text =
            format!("User {user} already has more than 'max_connections_per_account' active connections");
        let refused = Failed::refused(ER_TOO_MANY_USER_CONNECTIONS, b"42000", text.as_bytes());
        Failed { end: End::AccountConnections, counted: Login::Limited, ..refused }
    }

    /// The account does not use a password, and the client cannot be asked for another plugin any more.
    pub fn of_plugin(plugin: &str) -> Failed {
        let text = format!(
            "the account is of plugin {plugin}, for which the client can not be asked any more; expected a \
             client that begins by it or by caching_sha2_password, or `passwords = \"relay\"`"
        );
        Failed::refused(ER_NOT_SUPPORTED_AUTH_MODE, b"08004", text.as_bytes())
    }

    /// The client does not use compression, which the listener requires.
    pub fn uncompressed() -> Failed {
        let text = b"Invalid compression algorithm 'uncompressed'. (`compression` of the listener)";
        Failed::refused(ER_WRONG_COMPRESSION_ALGORITHM_CLIENT, b"HY000", text)
    }

    /// zstd has no such compression level.
    pub fn of_compression_level(level: u8) -> Failed {
        let text = format!("Invalid compression level {level} for algorithm 'zstd': expected 1 to 22");
        Failed::refused(ER_WRONG_COMPRESSION_LEVEL_CLIENT, b"HY000", text.as_bytes())
    }

    /// The servers cannot do what Weir must offer, so no client is admitted.
    pub fn mariadb(pool: &str) -> Failed {
        let text = format!("pool {pool}: {NOT_WITH_MARIADB}");
        let refused = Failed::refused(ER_UNKNOWN_ERROR, b"HY000", text.as_bytes());
        Failed { end: End::ConnectFailed, counted: Login::Unavailable, ..refused }
    }

    /// No server has made a decision. The error does not reveal server addresses.
    pub fn of_server(error: AttachError) -> Failed {
        tracing::debug!(%error, "login relayed to a server");
        match error {
            AttachError::Refused(error) => Failed::refused(error.code, &error.state, &error.message),
            AttachError::Lacks(flags) => {
                let text = format!(
                    "the server lacks capabilities {:#x} that the client asks for, and the login is relayed",
                    flags.0
                );
                Failed::refused(ER_UNKNOWN_ERROR, b"HY000", text.as_bytes())
            }
            AttachError::Plugin(plugin) => {
                let text = format!(
                    "the account is of plugin {plugin}, which needs TLS on both sides of the balancer"
                );
                Failed::refused(ER_NOT_SUPPORTED_AUTH_MODE, b"08004", text.as_bytes())
            }
            _ => {
                let text = b"no server could be logged in to; try again in a moment";
                let refused = Failed::refused(CR_CONN_HOST_ERROR, b"HY000", text);
                Failed { end: End::ConnectFailed, counted: Login::Unavailable, ..refused }
            }
        }
    }

    pub fn internal() -> Failed {
        Failed { answer: None, end: End::Internal, counted: Login::Unavailable }
    }
}

impl From<TalkError> for Failed {
    fn from(error: TalkError) -> Failed {
        let (end, counted) = match error {
            TalkError::TimedOut => (End::LoginTimeout, Login::Gone),
            TalkError::Broken(_) | TalkError::Closed => (End::ClientClosed, Login::Gone),
            TalkError::NoMemory | TalkError::Shed => (End::Overload, Login::Gone),
            TalkError::TooLong | TalkError::Protocol(_) => return Failed::bad_handshake(),
        };
        Failed { answer: None, end, counted }
    }
}
