//! Explains a client's handshake, by the data path's own choice of certificate.

use weir_tls::{ServerTls, ShownCertificates, hello};

use super::Answer;
use crate::on_demand;

/// Names of a certificate that are listed (count); the others are only counted.
const SHOWN_NAMES: usize = 3;

/// The server name that a client asks for by `text`, in the form in which it is compared; `None` for an
/// address, which is not a server name.
///
/// # Errors
/// No client can ask for this text.
pub(super) fn asked_for(text: &str) -> Result<Option<String>, String> {
    hello::server_name(text.as_bytes()).ok_or_else(|| {
        format!("no client can ask for the server name {text:?}, expected one such as shop.example")
    })
}

/// Adds the certificate that a client asking for `name` is shown, and a warning if there is none.
pub(super) fn tell(answer: &mut Answer, server: &ServerTls, name: Option<&str>) {
    let expected = name.and_then(|name| on_demand::explain(server, name));
    let shown = || server.shown(name).map(|shown| words(&shown, name));
    let (words, is_refused) = match expected {
        Some(expected) if !expected.is_served_otherwise => (expected.words, false),
        Some(expected) => match shown() {
            Some(shown) => (format!("{}: {shown}", expected.words), false),
            None => (format!("{}, and is refused: {NONE}", expected.words), true),
        },
        None => match shown() {
            Some(shown) => (shown, false),
            None => (format!("the handshake is refused: {NONE}"), true),
        },
    };
    answer.certificate = Some(words);
    if is_refused {
        answer.warnings.push("the TLS handshake is refused: nothing of what follows takes place".to_owned());
    }
}

/// Why a handshake is refused.
const NONE: &str = "the listener has no certificate yet";

fn words(shown: &ShownCertificates, name: Option<&str>) -> String {
    let each = shown.certificates.iter().map(|facts| {
        let (said, more) = facts.names.split_at(facts.names.len().min(SHOWN_NAMES));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        match said {
            [] => facts.file.display().to_string(),
            said => format!("{} ({}{more})", facts.file.display(), said.join(", ")),
        }
    });
    let each = each.collect::<Vec<_>>().join(", or by the signatures that the client takes ");
    match name {
        Some(_) if shown.are_for_name => each,
        Some(name) => format!("{each}: none is for {name}"),
        None => format!("{each}: the client asks for no name"),
    }
}
