//! Certificate revocation lists (RFC 5280 section 5): which of those in files are used, and until when.
//!
//! rustls looks a certificate up only in the first list with its issuer's name. So of two lists from one
//! authority only the newer one is passed on, and two lists with the same issuer name but different keys are
//! refused: the second one would never be consulted.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::files::{self, LoadError};
use crate::x509;

/// Facts about a revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFacts {
    /// The file it was read from.
    pub file: PathBuf,
    /// The name of its issuer, as text (RFC 4514).
    pub issuer: String,
    /// When the next list is due, in seconds since 1970. From then on this list is no longer valid, and
    /// certificates that it covers are rejected. `None` if it does not expire.
    pub next_update: Option<i64>,
}

impl ListFacts {
    /// Whether it has expired.
    pub fn is_out_of_date(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.next_update.is_some_and(|end| i64::try_from(now).is_ok_and(|now| end <= now))
    }
}

/// The lists in use.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    pub lists: Vec<CertificateRevocationListDer<'static>>,
    /// Facts about each of them, in the same order.
    pub facts: Vec<ListFacts>,
}

struct Read {
    list: CertificateRevocationListDer<'static>,
    facts: ListFacts,
    /// DER.
    issuer: Vec<u8>,
    /// The identifier of the key that has signed it.
    key: Option<Vec<u8>>,
    this_update: i64,
}

impl Revocations {
    /// Reads `files`, for certificates issued by `authorities`.
    ///
    /// # Errors
    /// A file can't be used, or no list is from one of the authorities: then every certificate would be
    /// rejected.
    pub fn load(
        files: &[PathBuf],
        authorities: &[CertificateDer<'static>],
    ) -> Result<Revocations, LoadError> {
        let mut read: Vec<Read> = Vec::new();
        for file in files {
            for list in files::revocations(file)? {
                let next = describe(file, list)?;
                let Some(same) = read.iter_mut().find(|it| it.issuer == next.issuer) else {
                    read.push(next);
                    continue;
                };
                if same.key.is_some() && next.key.is_some() && same.key != next.key {
                    let reason = format!(
                        "holds a list of {}, and so does {}, by another key; expected one list for each name",
                        next.facts.issuer,
                        same.facts.file.display()
                    );
                    return Err(LoadError::new(file, reason));
                }
                if next.this_update > same.this_update {
                    *same = next;
                }
            }
        }
        let is_of = |list: &Read| authorities.iter().any(|it| x509::has_subject(it, &list.issuer));
        if let (Some(first), false) = (files.first(), read.iter().any(is_of)) {
            let reason =
                "holds no list of an authority in `ca` or `client_ca`: every certificate would be refused";
            return Err(LoadError::new(first, reason));
        }
        let (lists, facts) = read.into_iter().map(|it| (it.list, it.facts)).unzip();
        Ok(Revocations { lists, facts })
    }

    /// When the first of them expires; `None` if none does.
    pub fn end(&self) -> Option<i64> {
        self.facts.iter().filter_map(|list| list.next_update).min()
    }
}

fn describe(file: &Path, list: CertificateRevocationListDer<'static>) -> Result<Read, LoadError> {
    let Ok((_, parsed)) = CertificateRevocationList::from_der(&list) else {
        return Err(LoadError::new(file, "holds a list that can't be read"));
    };
    let key = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(authority) => authority.key_identifier.as_ref(),
        _ => None,
    });
    let facts = ListFacts {
        file: file.to_owned(),
        issuer: x509::name_text(parsed.issuer()),
        next_update: parsed.next_update().map(|end| end.timestamp()),
    };
    let (issuer, key) = (parsed.issuer().as_raw().to_vec(), key.map(|key| key.0.to_vec()));
    let this_update = parsed.last_update().timestamp();
    Ok(Read { issuer, key, this_update, facts, list })
}
