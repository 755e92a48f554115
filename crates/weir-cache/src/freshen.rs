//! Updates a stored object by the 304 that confirms it (RFC 9111 §3.2, §4.3.4).

use weir_http::values::entity_tag::EntityTag;
use weir_http::values::vary::Vary;
use weir_http::{Field, KnownHeader, ResponseHead};

use crate::freshness::Said;
use crate::heads;
use crate::object::Object;
use crate::request::RequestFacts;
use crate::response::{Exchange, NotStored, Storing, assess, may_be_shared};
use crate::rules::Rules;

/// The 304 is about something other than the stored object (threat E7): drop the object, and ask again
/// without conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// It has another entity tag.
    Tag,
    /// It has another `last-modified`, and no tag.
    LastModified,
    /// It has another `vary`.
    Vary,
    /// Its fields cannot be stored.
    Head,
}

/// An object updated by a 304.
#[derive(Debug)]
pub struct Freshened {
    /// Answers the waiting request. It shares its content with the old object.
    pub object: Object,
    /// Whether it may replace the old object in the store; if not, remove the old one.
    pub kept: Result<(), NotStored>,
}

/// Updates an object by the 304 that answered a request with its [`crate::validators`]. `request` is the
/// client's request. Copies the head, not the content.
///
/// # Errors
/// The 304 is about something else.
pub fn freshen(
    object: &Object,
    head: &ResponseHead,
    buffer: &[u8],
    request: &RequestFacts,
    rules: &Rules,
    exchange: Exchange,
) -> Result<Freshened, Mismatch> {
    is_of(object, head, buffer)?;
    let (updated, text) = update(object, head, buffer, exchange).ok_or(Mismatch::Head)?;
    let said = Said::by(&updated, &text);
    let judged = may_be_shared(request, &updated, &text, rules, &said)
        .and_then(|()| assess(&updated, &text, rules, &said, exchange));
    let kept = judged.as_ref().map(|_| ()).map_err(|reason| *reason);
    let storing = judged.unwrap_or_else(|_| Storing::of_stale(*object.freshness(), exchange));
    let mut fresh = storing.object(&updated, &text, object.body().clone()).map_err(|_| Mismatch::Head)?;
    fresh.adopt_encodings(object);
    Ok(Freshened { object: fresh, kept })
}

//= https://www.rfc-editor.org/rfc/rfc9111#section-4.3.4
//# *  If the new response contains one or more strong validators (see
//# Section 8.8.1 of [HTTP]), then each of those strong validators
//# identifies a selected representation for update.  All the stored
//# responses in the initial set with one of those same strong
//# validators are identified for update.  If none of the initial set
//# contains at least one of the same strong validators, then the
//# cache MUST NOT use the new response to update any stored
//# responses.
fn is_of(object: &Object, head: &ResponseHead, buffer: &[u8]) -> Result<(), Mismatch> {
    let before = |known| object.head().value(known, object.text());
    let now = |known| head.value(known, buffer);
    if let Some(tag) = now(KnownHeader::Etag) {
        let same = match (EntityTag::parse(tag), before(KnownHeader::Etag).and_then(EntityTag::parse)) {
            (Some(tag), Some(kept)) => tag.same_weakly(&kept),
            _ => false,
        };
        if !same {
            return Err(Mismatch::Tag);
        }
    } else if now(KnownHeader::LastModified)
        .is_some_and(|date| before(KnownHeader::LastModified) != Some(date))
    {
        return Err(Mismatch::LastModified);
    }
    // The object is stored under the key that the old list selected.
    let vary = |head: &ResponseHead, buffer: &[u8]| Vary::of(head.values(KnownHeader::Vary, buffer));
    if now(KnownHeader::Vary).is_some() && vary(head, buffer) != vary(object.head(), object.text()) {
        return Err(Mismatch::Vary);
    }
    Ok(())
}

/// The fields of the object, each replaced by the 304's fields of the same name.
//= https://www.rfc-editor.org/rfc/rfc9111#section-3.2
//# When doing so, the cache MUST add each header field in the provided
//# response to the stored response, replacing field values that are
//# already present, with the following exceptions:
fn update(
    object: &Object,
    head: &ResponseHead,
    buffer: &[u8],
    exchange: Exchange,
) -> Option<(ResponseHead, Box<[u8]>)> {
    let is_new = |field: &Field<'_>| {
        !matches!(
            field.known,
            // These describe the content, which is unchanged. A cookie is for the client whose request caused
            // the validation.
            KnownHeader::ContentLength
                | KnownHeader::ContentEncoding
                | KnownHeader::ContentRange
                | KnownHeader::Etag
                | KnownHeader::SetCookie
        )
    };
    let replaced = |field: &Field<'_>| {
        // The stored date always goes: if the 304 has none, the time of the 304's arrival counts.
        field.known == KnownHeader::Date
            || head
                .end_to_end_fields(buffer)
                .filter(is_new)
                .any(|new| new.name.eq_ignore_ascii_case(field.name))
    };
    let stays = |field: &Field<'_>| field.known != KnownHeader::ContentLength && !replaced(field);
    let fields = object.head().fields(object.text()).filter(stays);
    let fields = fields.chain(head.end_to_end_fields(buffer).filter(is_new));
    heads::assembled(object.status(), fields, object.body().len(), exchange.times.wall_seconds)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::reuse::{Reuse, reuse};
    use crate::tests::{WALL, exchange_at, facts, object, response, seconds};

    const STORED: &str = "cache-control: max-age=60\r\netag: \"a\"\r\nx-kept: 1\r\nx-changed: 1\r\ncontent-type: text/plain\r\n";

    fn freshened(stored: &str, lines: &str) -> Result<Freshened, Mismatch> {
        let (head, buffer) = response(&format!("HTTP/1.1 304 Not Modified\r\n{lines}"));
        freshen(&object(stored), &head, &buffer, &facts(""), &Rules::default(), exchange_at(1100))
    }

    fn field(object: &Object, name: &str) -> Option<String> {
        let value = object.head().value_by_name(name.as_bytes(), object.text())?;
        Some(String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn fields_of_the_304_take_the_place_of_the_stored_ones() {
        let Freshened { object, kept } = freshened(
            STORED,
            "etag: \"a\"\r\nx-changed: 2\r\nX-New: 3\r\ncontent-length: 77\r\ncontent-encoding: br\r\n\
             set-cookie: a=b\r\nconnection: x-hop\r\nx-hop: 1\r\n",
        )
        .unwrap();
        assert_eq!(kept, Ok(()));
        assert_eq!(object.status(), 200);
        for (name, value) in [
            ("x-kept", Some("1")),
            ("x-changed", Some("2")),
            ("x-new", Some("3")),
            ("content-type", Some("text/plain")),
            ("content-length", Some("10")),
            ("content-encoding", None),
            ("set-cookie", None),
            ("x-hop", None),
            ("etag", Some("\"a\"")),
        ] {
            assert_eq!(field(&object, name).as_deref(), value, "{name}");
        }
        assert_eq!(object.body().chunks(), [Bytes::from_static(b"0123456789")]);
    }

    #[test]
    fn it_is_fresh_again_from_the_304_on() {
        let object = freshened(STORED, "etag: \"a\"\r\nage: 7\r\n").unwrap().object;
        assert_eq!(
            reuse(&object, &facts(""), seconds(1100)),
            Reuse::Fresh { age: seconds(7), ttl: seconds(53) }
        );
        let object = freshened(STORED, "cache-control: max-age=5\r\n").unwrap().object;
        assert_eq!(
            reuse(&object, &facts(""), seconds(1100)),
            Reuse::Fresh { age: seconds(0), ttl: seconds(5) }
        );
        // It came 100 seconds after the object, whose date says nothing of its age.
        let dated = format!(
            "{STORED}date: {}\r\n",
            str::from_utf8(&weir_http::values::http_date::text(WALL)).unwrap()
        );
        let object = freshened(&dated, "").unwrap().object;
        assert_eq!(object.freshness().date_seconds, WALL + 100);
    }

    /// Threat E7.
    #[test]
    fn a_304_of_something_else_updates_nothing() {
        let modified = "cache-control: max-age=60\r\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        for (stored, lines, mismatch) in [
            (STORED, "etag: \"b\"\r\n", Mismatch::Tag),
            (STORED, "etag: a\r\n", Mismatch::Tag),
            (modified, "etag: \"a\"\r\n", Mismatch::Tag),
            (modified, "last-modified: Sun, 06 Nov 1994 08:49:38 GMT\r\n", Mismatch::LastModified),
            (STORED, "etag: \"a\"\r\nvary: accept\r\n", Mismatch::Vary),
            (STORED, "vary: *\r\n", Mismatch::Vary),
        ] {
            assert_eq!(freshened(stored, lines).err(), Some(mismatch), "{lines}");
        }
        assert!(freshened(modified, "last-modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n").is_ok());
        assert!(freshened(&STORED.replace("\"a\"", "W/\"a\""), "etag: \"a\"\r\n").is_ok());
    }

    #[test]
    fn a_304_can_take_back_that_it_may_be_kept() {
        let Freshened { object, kept } = freshened(STORED, "cache-control: no-store\r\n").unwrap();
        assert_eq!(kept, Err(NotStored::NoStore));
        assert_eq!(object.body().len(), 10);
    }
}
