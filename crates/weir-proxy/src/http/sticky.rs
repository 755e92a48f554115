//! The cookie that keeps a client on its backend.

use weir_http::AddedField;
use weir_state::Pool;
use weir_tls::StickyKey;

use crate::backends::Chosen;

/// What the request's cookies say of stickiness, and what the response must say.
#[derive(Default)]
pub struct Sticky {
    /// The backend id that the client's cookie names.
    pub wanted: Option<u64>,
    set: Option<AddedField>,
}

impl Sticky {
    /// Reads the pool's cookie out of a request's `cookie` values.
    pub fn of<'a>(pool: &Pool, cookies: impl Iterator<Item = &'a [u8]>) -> Sticky {
        let Some((name, key)) = cookie_of(pool) else { return Sticky::default() };
        Sticky { wanted: cookie(cookies, name.as_bytes()).and_then(|value| key.open(value)), set: None }
    }

    /// Prepares the cookie when the client does not have that of `chosen` yet. One that came over TLS is not
    /// to be sent in the clear.
    pub(super) fn answered_by(&mut self, chosen: &Chosen, is_secure: bool) {
        let Some((name, key)) = cookie_of(&chosen.pool.shared) else { return };
        let id = chosen.backend().shared.balance.id();
        if self.wanted != Some(id) {
            let secure = if is_secure { "; Secure" } else { "" };
            let value = format!("{name}={}; Path=/; HttpOnly; SameSite=Lax{secure}", key.seal(id));
            self.set = AddedField::new(b"set-cookie", value.as_bytes()).ok();
        }
    }

    /// The field for the response.
    pub fn field(&self) -> Option<&AddedField> {
        self.set.as_ref()
    }
}

/// The name of the pool's cookie and what seals it.
fn cookie_of(pool: &Pool) -> Option<(&str, &StickyKey)> {
    Some((pool.config.sticky.as_ref()?.cookie.as_str(), pool.sticky.as_deref()?))
}

/// The value of the first cookie of that name (RFC 6265 §4.2.1).
pub fn cookie<'a>(mut values: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    values.find_map(|value| {
        value.split(|&byte| byte == b';').find_map(|pair| {
            let pair = pair.trim_ascii();
            let at = pair.iter().position(|&byte| byte == b'=')?;
            (pair[..at] == *name).then(|| &pair[at + 1..])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_and_only_by_its_whole_name() {
        let values = [&b"a=1; weird=2; weir=00ff"[..], b"weir=3"];
        assert_eq!(cookie(values.into_iter(), b"weir"), Some(&b"00ff"[..]));
        assert_eq!(cookie(values.into_iter(), b"wei"), None);
    }
}
