//! Names of tables and views of a MySQL server whose stored code leaves state behind on a connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use crate::Pool;

/// Whether any pool has, or had, such a name. Most never do, and then each statement costs one load of this.
static ANY: AtomicBool = AtomicBool::new(false);

/// Names that were found on the servers, in lower case; kept across reloads.
#[derive(Default)]
pub struct HiddenNames(ArcSwapOption<HashSet<Box<[u8]>>>);

impl HiddenNames {
    /// Replaces the names found before.
    pub fn found(&self, names: HashSet<Box<[u8]>>) {
        if !names.is_empty() {
            ANY.store(true, Ordering::Relaxed);
        }
        self.0.store((!names.is_empty()).then(|| Arc::new(names)));
    }

    /// Whether nothing has been found so far.
    pub fn is_empty(&self) -> bool {
        self.0.load().is_none()
    }
}

/// Whether statements of any pool have to be checked for such names.
#[inline]
pub fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Notes the names in a config, so that statements are checked.
pub(crate) fn note_config(config: &weir_config::Pool) {
    if config.mysql.as_ref().is_some_and(|mysql| !mysql.hidden_code.is_empty()) {
        ANY.store(true, Ordering::Relaxed);
    }
}

impl Pool {
    /// Whether stored code behind this table or view leaves state behind, according to the config or to what
    /// was found. Ignores the case of ASCII letters.
    pub fn has_code_behind(&self, name: &[u8]) -> bool {
        let mysql = self.config.mysql.as_ref();
        let configured = mysql.map_or(&[][..], |mysql| &mysql.hidden_code);
        configured.iter().any(|it| it.as_bytes().eq_ignore_ascii_case(name))
            || self.hidden.0.load().as_ref().is_some_and(|found| found.contains(&*name.to_ascii_lowercase()))
    }
}
