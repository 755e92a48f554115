//! Redirects browsers to a login page in place of a service's 401.

use weir_http::{AddedField, KnownHeader, Method};
use weir_template::Template;

use super::Refused;
use crate::http::exchange::Exchange;
use crate::http::request_values::Values;
use crate::http::requester::Requester;

/// Whether `refused` is a 401 for a browser that loads a page: a script can't use a redirect to another site.
pub(super) fn is_due(requester: &Requester, exchange: &Exchange, refused: &Refused) -> bool {
    let Exchange { request, .. } = exchange;
    let mut accepted = request.values(KnownHeader::Accept, requester.received());
    refused.status == 401
        && matches!(request.method(), Method::Get | Method::Head)
        && accepted.any(|line| {
            let mut types = line.split(|byte| matches!(byte, b',' | b';')).map(<[u8]>::trim_ascii);
            types.any(|name| name.eq_ignore_ascii_case(b"text/html"))
        })
}

/// The redirect to `to`. It keeps the cookies of the service's answer, by which the service recognises the
/// client.
pub(super) fn redirect(to: &Template, values: &Values<'_>, refused: Refused) -> Refused {
    let location = location(to, values);
    let mut fields: Vec<AddedField> = refused.fields;
    fields.retain(|field| field.name().eq_ignore_ascii_case(b"set-cookie"));
    fields.extend(AddedField::new(b"location", &location));
    fields.extend(AddedField::new(b"cache-control", b"no-store"));
    Refused { status: 302, fields, content: Vec::new() }
}

/// The target. Values that are filled in are percent-encoded, except for letters, digits and `-._~/:`, so
/// that they can't begin or end a parameter. A target that is a path stays on its site.
fn location(to: &Template, values: &Values<'_>) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(to.as_written().len() + 64);
    to.render_mended(values, &mut out, |_, out, start| {
        let value = out.split_off(start);
        for byte in value {
            match byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
                true => out.push(byte),
                false => out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
            }
        }
    });
    if out.starts_with(b"//") && !to.as_written().starts_with("//") {
        let slashes = out.iter().take_while(|byte| **byte == b'/').count();
        out.drain(..slashes - 1);
    }
    out
}
