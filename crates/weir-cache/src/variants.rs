//! Selects one of several responses with the same key (RFC 9111 §4.1).

use weir_http::values::accept_encoding;
use weir_http::values::vary::Vary;
use weir_http::{KnownHeader, RequestHead};

use crate::key::KeyBuffer;
use crate::request::same_to_backends;

/// Most names in `vary` with which a response is stored: each is looked up in every request.
const NAMES: usize = 16;

/// Fields that Weir itself writes for each client: the values that a client sends under these names are not
/// what the origin has chosen by.
const WRITTEN: [KnownHeader; 7] = [
    KnownHeader::XForwardedFor,
    KnownHeader::XRealIp,
    KnownHeader::Forwarded,
    KnownHeader::ClientCert,
    KnownHeader::ClientCertChain,
    KnownHeader::Via,
    KnownHeader::XRequestId,
];

/// Whether the clients' fields with these names (in lower case) distinguish requests as the origin does
/// (threat E4).
pub(crate) fn can_tell(names: &[Box<[u8]>]) -> bool {
    let is_written = |name: &[u8]| WRITTEN.iter().any(|known| known.name().as_bytes() == name);
    names.len() <= NAMES && !names.iter().any(|name| is_written(name))
}

impl KeyBuffer {
    /// Appends to the key the field values by which a response with this `vary` is selected, so that
    /// [`Self::bytes`] of two requests are equal if the response to one may answer the other. O(fields times
    /// names), does not allocate once there is capacity.
    pub fn select(&mut self, vary: &Vary, head: &RequestHead, buffer: &[u8]) {
        match vary {
            Vary::Names(names) => self.select_names(names, 0, head, buffer),
            Vary::Nothing | Vary::Anything => self.back_to_primary(),
        }
    }

    /// `generation` distinguishes the variants of one list of names from those of an earlier list that was
    /// dropped.
    pub(crate) fn select_names(
        &mut self,
        names: &[Box<[u8]>],
        generation: u64,
        head: &RequestHead,
        buffer: &[u8],
    ) {
        self.append(|out| {
            out.extend_from_slice(&generation.to_le_bytes());
            for name in names {
                write_value(name, head, buffer, out);
            }
        });
    }
}

/// Writes the values that a request has for a field, preceded by their length, so that requests with the same
/// values write the same bytes.
//= https://www.rfc-editor.org/rfc/rfc9111#section-4.1
//# *  normalizing both header field values in a way that is known to
//# have identical semantics, according to the header field's
//# specification (e.g., reordering field values when order is not
//# significant; case-normalization, where values are defined to be
//# case-insensitive)
fn write_value(name: &[u8], head: &RequestHead, buffer: &[u8], out: &mut Vec<u8>) {
    let length_at = out.len();
    out.extend_from_slice(&[0; 5]);
    let start = out.len();
    let mut present = false;
    if name == KnownHeader::AcceptEncoding.name().as_bytes() {
        let values = head.values(KnownHeader::AcceptEncoding, buffer);
        present = values.clone().next().is_some();
        accept_encoding::normalise(values, out);
    } else {
        // A backend may read a name with underscores as this one (threat E4).
        for field in head.fields(buffer).filter(|field| same_to_backends(field.name, name)) {
            // Several lines of one name mean the same as one line with all their values.
            if present {
                out.extend_from_slice(b", ");
            }
            present = true;
            out.extend_from_slice(field.value);
        }
    }
    let length = (out.len() - start) as u32;
    if let Some(place) = out.get_mut(length_at..start) {
        let [b0, b1, b2, b3] = length.to_le_bytes();
        place.copy_from_slice(&[u8::from(present), b0, b1, b2, b3]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::request;

    fn selected(vary: &str, lines: &str) -> Vec<u8> {
        let (head, buffer) = request(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}"));
        let mut key = KeyBuffer::new();
        key.select(&Vary::of(std::iter::once(vary.as_bytes())), &head, &buffer);
        key.bytes().to_vec()
    }

    #[test]
    fn requests_that_say_the_same_select_the_same() {
        let of = |lines: &str| selected("accept-encoding, x-a", lines);
        assert_eq!(
            of("accept-encoding: gzip, br\r\nx-a: 1\r\n"),
            of("X-A: 1\r\nAccept-Encoding: br,gzip;q=1\r\n")
        );
        assert_eq!(of("x-a: 1\r\nx-a: 2\r\n"), of("x-a: 1, 2\r\n"));
        assert_eq!(of("x-b: 1\r\n"), of("x-b: 2\r\n"));
        assert_eq!(selected("", "x-a: 1\r\n"), b"");
    }

    /// Threat E4.
    #[test]
    fn requests_that_say_something_else_do_not() {
        let all = [
            "",
            "x-a: \r\n",
            "x-a: 1\r\n",
            "x-a: 12\r\n",
            "x-a: 1\r\nx-b: 2\r\n",
            "x-b: 12\r\n",
            "x-b: 1\r\n",
            "x_a: 2\r\n",
            "accept-encoding: gzip\r\n",
            "accept-encoding: \r\n",
            "accept-encoding: gzip, identity;q=0\r\n",
        ];
        let keys: std::collections::BTreeSet<_> =
            all.iter().map(|lines| selected("accept-encoding, x-a, x-b", lines)).collect();
        assert_eq!(keys.len(), all.len());
    }
}
