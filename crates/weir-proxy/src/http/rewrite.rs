//! Decides the path and query for a backend if a route changes them; nothing else decides this. Pure.
//!
//! Values that are filled in come from clients. They stay in the place that the config gives them: in a path
//! they begin no query, nor a segment unless they are part of a path already; in a query they begin no
//! parameter (threat A29).

use weir_http::Violation;
use weir_http::path::{has_dot_segment, has_empty_segment, normalise_into, normalise_merging_into};
use weir_template::{Source, Template, Variable};

/// The changes of a route.
#[derive(Debug)]
pub struct Rewrite {
    path: NewPath,
    query: NewQuery,
}

#[derive(Debug)]
enum NewPath {
    Kept,
    /// Replaces the part that a `*` path matched.
    Prefix(Box<[u8]>),
    /// Replaces the whole path.
    Whole(Template),
}

#[derive(Debug)]
enum NewQuery {
    Kept,
    Replaced(Template),
    Extended(Template),
}

/// The path and query before the rewrite.
pub(super) struct Old<'a> {
    /// The normalised path.
    pub path: &'a [u8],
    /// How many bytes of it the route's own `*` path named.
    pub prefix: usize,
    /// The query as sent, without its `?`.
    pub query: Option<&'a [u8]>,
    /// Whether consecutive slashes count as one.
    pub merges_slashes: bool,
}

/// The new path and query; both are empty at first.
pub(super) struct New<'a> {
    pub path: &'a mut Vec<u8>,
    /// Empty for none.
    pub query: &'a mut Vec<u8>,
}

/// Which of both were written.
pub(super) struct Written {
    pub path: bool,
    pub query: bool,
}

impl Rewrite {
    /// Compiles a route's `rewrite`.
    pub(super) fn compile(config: &weir_config::Rewrite) -> Rewrite {
        let path = match (&config.path, &config.prefix) {
            (Some(path), _) => NewPath::Whole(path.clone()),
            (None, Some(prefix)) => NewPath::Prefix(prefix.as_bytes().into()),
            (None, None) => NewPath::Kept,
        };
        let query = match (&config.query, &config.add_query) {
            (Some(query), _) => NewQuery::Replaced(query.clone()),
            (None, Some(query)) => NewQuery::Extended(query.clone()),
            (None, None) => NewQuery::Kept,
        };
        Rewrite { path, query }
    }

    /// Writes the path and query for the backend. Allocates nothing if the buffers are large enough, except
    /// for a path that is not in its normal form.
    ///
    /// # Errors
    /// The new path has dot segments, or bytes that no path may have: answer 400. Dots are not resolved,
    /// because that would take the path out of the place that the config gives it.
    pub(super) fn write(
        &self,
        old: &Old<'_>,
        source: &impl Source,
        new: &mut New<'_>,
    ) -> Result<Written, Violation> {
        let New { path, query } = new;
        match &self.path {
            NewPath::Kept => {}
            NewPath::Prefix(prefix) => {
                path.extend_from_slice(prefix);
                path.extend_from_slice(old.path.get(old.prefix..).unwrap_or_default());
                // The rest of `/static../secret` after `/static` only becomes a dot segment after a slash;
                // and a prefix that ends in a slash with a rest that begins with one makes two.
                settle(path, old.merges_slashes)?;
            }
            NewPath::Whole(template) => {
                template.render_mended(source, path, |variable, out, start| {
                    encode(out, start, Unescaped::path(variable));
                });
                settle(path, old.merges_slashes)?;
            }
        }
        let mut put = |template: &Template| {
            template.render_mended(source, query, |variable, out, start| {
                encode(out, start, Unescaped::query(variable));
            });
        };
        match (&self.query, old.query.filter(|query| !query.is_empty())) {
            (NewQuery::Kept, _) => {}
            (NewQuery::Replaced(template), _) | (NewQuery::Extended(template), None) => put(template),
            (NewQuery::Extended(template), Some(sent)) => {
                query.extend_from_slice(sent);
                query.push(b'&');
                let before = query.len();
                template.render_mended(source, query, |variable, out, start| {
                    encode(out, start, Unescaped::query(variable));
                });
                if query.len() == before {
                    query.pop();
                }
            }
        }
        Ok(Written {
            path: !matches!(self.path, NewPath::Kept),
            query: !matches!(self.query, NewQuery::Kept),
        })
    }
}

/// Brings a new path into its normal form.
fn settle(path: &mut Vec<u8>, merges_slashes: bool) -> Result<(), Violation> {
    if has_dot_segment(path) {
        return Err(Violation::PathAboveRoot);
    }
    let is_plain = path.iter().all(|byte| byte.is_ascii_alphanumeric() || b"/-_~.".contains(byte));
    if is_plain && !(merges_slashes && has_empty_segment(path)) {
        return Ok(());
    }
    let mut normal = Vec::new();
    let is_other = match merges_slashes {
        true => normalise_merging_into(path, &mut normal)?,
        false => normalise_into(path, &mut normal)?,
    };
    if is_other {
        *path = normal;
    }
    Ok(())
}

/// Which bytes of a value are not escaped, depending on its place and its source.
#[derive(Clone, Copy)]
struct Unescaped {
    /// Bytes that stay unescaped there, in addition to letters, digits and `-._~`.
    stays: &'static [u8],
    /// Whether its escapes are already escapes, and not text.
    has_escapes: bool,
}

impl Unescaped {
    fn path(variable: &Variable) -> Unescaped {
        match variable {
            // Part of a path in its normal form, or written by an operator to be one.
            Variable::Path | Variable::Capture(_) | Variable::Map(_) => {
                Unescaped { stays: b"/!$&'()*+,;=:@", has_escapes: true }
            }
            Variable::Parameter(_) => Unescaped { stays: b"!$&'()*+,=:@", has_escapes: true },
            _ => Unescaped { stays: b"!$&'()*+,=:@", has_escapes: false },
        }
    }

    fn query(variable: &Variable) -> Unescaped {
        let has_escapes = matches!(
            variable,
            Variable::Path | Variable::Capture(_) | Variable::Map(_) | Variable::Parameter(_)
        );
        Unescaped { stays: b"/?:@!$'()*,", has_escapes }
    }
}

/// Percent-encodes, in `out` from `start` on, the bytes that must not stay as they are (RFC 3986 section
/// 2.1).
fn encode(out: &mut Vec<u8>, start: usize, unescaped: Unescaped) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let stays =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || unescaped.stays.contains(&byte);
    let value = out.get(start..).unwrap_or_default();
    if value.iter().all(|byte| stays(*byte)) {
        return;
    }
    let value = value.to_vec();
    out.truncate(start);
    for (at, byte) in value.iter().enumerate() {
        let is_escape = || {
            let digits = value.get(at + 1..at + 3).unwrap_or_default();
            digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit)
        };
        match stays(*byte) || (unescaped.has_escapes && *byte == b'%' && is_escape()) {
            true => out.push(*byte),
            false => out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the same value for each variable.
    struct Given<'a>(&'a str);

    impl Source for Given<'_> {
        fn put(&self, _: &Variable, out: &mut Vec<u8>) {
            out.extend_from_slice(self.0.as_bytes());
        }
    }

    fn template(text: &str) -> Option<Template> {
        Some(Template::parse(text, 9).unwrap())
    }

    fn written(
        config: &weir_config::Rewrite,
        query: Option<&str>,
        value: &str,
    ) -> Result<(String, String), Violation> {
        let (mut path, mut new_query) = (Vec::new(), Vec::new());
        let old = Old { path: b"/old/x", prefix: 5, query: query.map(str::as_bytes), merges_slashes: false };
        let mut new = New { path: &mut path, query: &mut new_query };
        Rewrite::compile(config).write(&old, &Given(value), &mut new)?;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ok((text(path), text(new_query)))
    }

    fn path(text: &str, value: &str) -> Result<String, Violation> {
        let config = weir_config::Rewrite { path: template(text), ..weir_config::Rewrite::default() };
        written(&config, None, value).map(|(path, _)| path)
    }

    #[test]
    fn a_value_begins_no_query_and_what_is_no_path_no_segment() {
        assert_eq!(path("/n/$1", "a/b;c=%2F").as_deref(), Ok("/n/a/b;c=%2F"));
        assert_eq!(path("/n/$header.x/z", "a/b?c#d%2F").as_deref(), Ok("/n/a%2Fb%3Fc%23d%252F/z"));
        assert_eq!(path("/n/$query.x", "a%20b/c").as_deref(), Ok("/n/a%20b%2Fc"));
        assert_eq!(path("/n/$query.x", "%7e%").as_deref(), Ok("/n/~%25"));
        assert_eq!(path("/n/$cookie.x", "\r\nhost: b").as_deref(), Err(&Violation::PathForbiddenByte));
    }

    #[test]
    fn a29_no_value_leads_out_of_the_place_that_it_has() {
        for (text, value) in [
            ("/static/$1", "../secret"),
            ("/static/.$1", "."),
            ("/static/$1/x", ".."),
            ("/static/$header.x/x", ".."),
            ("/static/$query.x/x", "%2e%2E"),
            ("/static/$1", "..;a"),
        ] {
            assert_eq!(path(text, value), Err(Violation::PathAboveRoot), "{text} with {value}");
        }
    }

    #[test]
    fn a_prefix_before_what_is_left_makes_no_empty_segment_where_slashes_are_merged() {
        let config = weir_config::Rewrite { prefix: Some("/new/".to_owned()), ..Default::default() };
        let by = |path: &str, merges_slashes: bool| {
            let (mut new_path, mut query) = (Vec::new(), Vec::new());
            let old = Old { path: path.as_bytes(), prefix: 4, query: None, merges_slashes };
            let mut new = New { path: &mut new_path, query: &mut query };
            Rewrite::compile(&config).write(&old, &Given(""), &mut new)?;
            Ok(String::from_utf8(new_path).unwrap())
        };
        assert_eq!(by("/old/x", true).as_deref(), Ok("/new/x"));
        assert_eq!(by("/old/x%2F", true).as_deref(), Ok("/new/x%2F"));
        assert_eq!(by("/old/x", false).as_deref(), Ok("/new//x"));
        assert_eq!(by("/old../x", true), Err(Violation::PathAboveRoot));
    }

    #[test]
    fn a_query_is_replaced_taken_out_or_added_to() {
        let by = |query: Option<&str>, add_query: Option<&str>, sent: Option<&str>, value: &str| {
            let config = weir_config::Rewrite {
                query: query.and_then(template),
                add_query: add_query.and_then(template),
                ..weir_config::Rewrite::default()
            };
            written(&config, sent, value).unwrap().1
        };
        assert_eq!(by(Some("id=$1&v=2"), None, Some("a=1"), "7"), "id=7&v=2");
        assert_eq!(by(Some(""), None, Some("a=1"), "7"), "");
        assert_eq!(by(None, Some("id=$1"), Some("a=1"), "7"), "a=1&id=7");
        assert_eq!(by(None, Some("id=$1"), Some(""), "7"), "id=7");
        assert_eq!(by(None, Some("id=$1"), None, "7"), "id=7");
        assert_eq!(by(None, Some("$1"), Some("a=1"), ""), "a=1");
        // No value can begin a parameter of its own.
        assert_eq!(by(Some("id=$1"), None, None, "7&admin=1;b+c#d%26"), "id=7%26admin%3D1%3Bb%2Bc%23d%26");
        assert_eq!(by(Some("id=$header.x"), None, None, "a b%26\r\n"), "id=a%20b%2526%0D%0A");
    }
}
