//! The cookie that keeps a client on its backend.

use weir_http::values::cookies;
use weir_http::{AddedField, SetCookie};
use weir_state::Pool;
use weir_tls::StickyKey;

use crate::backends::Chosen;

/// What the request's cookies say about stickiness, and the cookie for the response.
#[derive(Default)]
pub struct Sticky {
    /// The backend id that the client's cookie names.
    pub wanted: Option<u64>,
    set: Option<SetCookie>,
}

impl Sticky {
    /// Reads the pool's cookie out of a request's `cookie` values.
    pub fn of<'a>(pool: &Pool, lines: impl Iterator<Item = &'a [u8]>) -> Sticky {
        let Some((config, key)) = cookie_of(pool) else { return Sticky::default() };
        let name = config.cookie.as_bytes();
        Sticky { wanted: cookies::first(lines, name).and_then(|value| key.open(value)), set: None }
    }

    /// Prepares the cookie if the client does not have that of `chosen` yet. A cookie for a client with TLS
    /// is `secure`, unless the config says otherwise.
    pub(super) fn answered_by(&mut self, chosen: &Chosen, is_secure: bool) {
        let Some((config, key)) = cookie_of(&chosen.pool.shared) else { return };
        let id = chosen.backend().shared.balance.id();
        if self.wanted != Some(id) {
            let value = format!("{}={}{}", config.cookie, key.seal(id), config.attributes(is_secure));
            let field = AddedField::new(b"set-cookie", value.as_bytes()).ok();
            self.set = field.map(|field| SetCookie { field, is_private: config.private });
        }
    }

    /// The cookie that the response sets.
    pub fn cookie(&self) -> Option<&SetCookie> {
        self.set.as_ref()
    }
}

/// The cookie that backends of the pool do not see.
pub fn hidden(pool: &weir_config::Pool) -> Option<&[u8]> {
    let cookie = pool.sticky.as_ref().filter(|sticky| sticky.hidden);
    cookie.map(|sticky| sticky.cookie.as_bytes())
}

/// The pool's cookie settings, and the key that seals the cookie.
fn cookie_of(pool: &Pool) -> Option<(&weir_config::Sticky, &StickyKey)> {
    Some((pool.config.sticky.as_ref()?, pool.sticky.as_deref()?))
}
