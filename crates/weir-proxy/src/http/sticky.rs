//! The cookie that keeps a client on its backend.

use weir_http::AddedField;

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
    pub fn of<'a>(pool: &weir_config::Pool, cookies: impl Iterator<Item = &'a [u8]>) -> Sticky {
        let Some(weir_config::Sticky { cookie: name }) = &pool.sticky else { return Sticky::default() };
        let wanted = cookie(cookies, name.as_bytes())
            .and_then(|value| std::str::from_utf8(value).ok())
            .and_then(|value| u64::from_str_radix(value, 16).ok());
        Sticky { wanted, set: None }
    }

    /// Prepares the cookie when the client does not have that of `chosen` yet.
    pub(super) fn answered_by(&mut self, chosen: &Chosen) {
        let Some(weir_config::Sticky { cookie: name }) = &chosen.pool.shared.config.sticky else { return };
        let id = chosen.backend().shared.balance.id();
        if self.wanted != Some(id) {
            let value = format!("{name}={id:016x}; Path=/; HttpOnly; SameSite=Lax");
            self.set = AddedField::appending(b"set-cookie", value.as_bytes()).ok();
        }
    }

    /// The field for the response.
    pub fn field(&self) -> Option<&AddedField> {
        self.set.as_ref()
    }
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
