//! The file format in which a Weir stores proofs, so that other Weirs can present them to an authority in its
//! place.
//!
//! Each proof has its own file, and nothing that a client requests becomes part of a path. The content of a
//! file is accepted only if it has the form of a proof, so that it can't be used to answer anything else.

use std::fmt::Write as _;

/// Longest token that is shared, in bytes; those of authorities have 22 to 43.
const TOKEN_BYTES: usize = 128;
/// Longest answer: a token, a dot, and a key digest in base64url.
const AUTHORIZATION_BYTES: usize = TOKEN_BYTES + 1 + 64;
/// Longest domain name (RFC 1035 section 2.3.4).
const DOMAIN_BYTES: usize = 253;

/// Largest file with a proof, in bytes.
pub const PROOF_BYTES: u64 = 1024;

/// A proof of control of a domain, for an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedProof {
    /// The answer to a request for this token (RFC 8555 section 8.3).
    Token {
        /// The last part of the requested path.
        token: String,
        /// The answer to the request.
        authorization: String,
    },
    /// The digest in the certificate to present in a handshake for this domain (RFC 8737).
    Handshake {
        /// The domain.
        domain: String,
        /// Digest of the key authorization.
        digest: [u8; 32],
    },
}

impl SharedProof {
    /// The content of its file; `None` if the proof is malformed.
    pub fn to_text(&self) -> Option<String> {
        let text = match self {
            SharedProof::Token { token, authorization } => format!("token {token} {authorization}\n"),
            SharedProof::Handshake { domain, digest } => {
                let digest = digest.iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                });
                format!("handshake {domain} {digest}\n")
            }
        };
        // A proof that others would not accept is not written.
        (SharedProof::parse(&text).as_ref() == Some(self)).then_some(text)
    }

    /// Parses [`Self::to_text`]; `None` for anything else, or an incomplete file.
    pub fn parse(text: &str) -> Option<SharedProof> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let (kind, name, value) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        match kind {
            "token" => {
                let thumbprint = value.strip_prefix(name)?.strip_prefix('.')?;
                let is_one = is_token(name) && is_base64url(thumbprint) && value.len() <= AUTHORIZATION_BYTES;
                is_one.then(|| SharedProof::Token { token: name.to_owned(), authorization: value.to_owned() })
            }
            "handshake" if is_domain(name) => {
                Some(SharedProof::Handshake { domain: name.to_owned(), digest: digest_of(value)? })
            }
            _ => None,
        }
    }
}

/// Whether a text has the form of a token: base64url (RFC 8555 section 8.3).
pub(super) fn is_token(text: &str) -> bool {
    text.len() <= TOKEN_BYTES && is_base64url(text)
}

fn is_base64url(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Whether a text has the form of a host name in lower case.
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.bytes().all(plain)
    };
    text.len() <= DOMAIN_BYTES && text.split('.').all(is_label)
}

fn digest_of(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = (value(*high)? << 4 | value(*low)?) as u8;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: &str, authorization: &str) -> SharedProof {
        SharedProof::Token { token: token.to_owned(), authorization: authorization.to_owned() }
    }

    #[test]
    fn what_is_written_is_read() {
        let digest = std::array::from_fn(|place| place as u8 * 7);
        for proof in [
            token(
                "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA",
                "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA.x_-9",
            ),
            SharedProof::Handshake { domain: "www.shop.example".to_owned(), digest },
        ] {
            let text = proof.to_text().unwrap();
            assert!(text.len() as u64 <= PROOF_BYTES);
            assert_eq!(SharedProof::parse(&text), Some(proof));
            // Half of a file is none.
            assert!((0..text.len()).all(|end| SharedProof::parse(&text[..end]).is_none()));
        }
    }

    /// Threat J34.
    #[test]
    fn j34_a_file_that_has_not_the_form_of_a_proof_has_nobody_answer_anything() {
        for text in [
            "",
            "\n",
            "token a\n",
            "token a b.c\n",
            "token a a.\n",
            "token a a.<script>\n",
            "token a a.b c\n",
            "token ../a ../a.b\n",
            "token a/b a/b.c\n",
            "token a a.b\nset-cookie: x\n",
            "handshake shop.example 00\n",
            "handshake SHOP.example 0000000000000000000000000000000000000000000000000000000000000000\n",
            "handshake shop..example 0000000000000000000000000000000000000000000000000000000000000000\n",
            "handshake shop.example 000000000000000000000000000000000000000000000000000000000000000g\n",
            "other a a.b\n",
        ] {
            assert_eq!(SharedProof::parse(text), None, "{text:?}");
        }
        let long = "a".repeat(TOKEN_BYTES + 1);
        assert_eq!(token(&long, &format!("{long}.b")).to_text(), None);
        for name in ["", ".", "..", "a/b", "a.b", "a%2f", "a b", "é", &*long] {
            assert!(!is_token(name), "{name:?}");
        }
    }
}
