//! `cache-control` of requests and responses (RFC 9111 §5.2, RFC 5861, RFC 8246).
//!
//! If a field contradicts itself, the stricter directive holds. If it can't be parsed, nothing is considered
//! fresh, or nothing is stored (threat E8).

use super::delta_seconds;
use super::list;
use crate::scan;

/// Most field names that `no-cache` and `private` may list before they are taken to mean the whole response.
const NAMES: usize = 32;

/// Which part of a response a directive such as `private` applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The directive is absent.
    #[default]
    Absent,
    /// Only the fields it lists: [`ResponseDirectives::withheld`].
    Fields,
    /// The whole response.
    Whole,
}

/// Directives in the `cache-control` of a response. Numbers are seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseDirectives {
    /// No cache may store the response. Also set when the field is malformed.
    pub no_store: bool,
    /// Store it in spite of `no_store` if the cache understands the requirements of its status (RFC 9111
    /// §5.2.2.3).
    pub must_understand: bool,
    /// Only for the client that asked.
    pub private: Scope,
    /// Not to be used without asking the origin.
    pub no_cache: Scope,
    /// May be stored where it otherwise might not.
    pub public: bool,
    /// Never to be used when stale.
    pub must_revalidate: bool,
    /// The same for shared caches.
    pub proxy_revalidate: bool,
    /// The content must not be changed, such as compressed.
    pub no_transform: bool,
    /// The response does not change while it is fresh (RFC 8246).
    pub immutable: bool,
    /// How long the response is fresh. 0 if the directive is there but can't be parsed.
    pub max_age: Option<u32>,
    /// The same for shared caches.
    pub s_maxage: Option<u32>,
    /// How long a stale response may be used while it is being revalidated (RFC 5861 §3).
    pub stale_while_revalidate: Option<u32>,
    /// How long a stale response may be used while the origin answers with errors (RFC 5861 §4).
    pub stale_if_error: Option<u32>,
    /// Names, in lower case, that `private` or `no-cache` list: fields that must not be stored (RFC 9111
    /// §3.1).
    pub withheld: Vec<Box<[u8]>>,
}

/// Directives in the `cache-control` of a request. Numbers are seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// Store neither the request nor its response.
    pub no_store: bool,
    /// Ask the origin, whatever is stored.
    pub no_cache: bool,
    /// The content must not be changed.
    pub no_transform: bool,
    /// Answer from the cache or not at all.
    pub only_if_cached: bool,
    /// The oldest age the client accepts.
    pub max_age: Option<u32>,
    /// The longest staleness the client accepts; `u32::MAX` if the directive had no argument.
    pub max_stale: Option<u32>,
    /// The response must stay fresh for at least this long.
    pub min_fresh: Option<u32>,
    /// For how long the client accepts a stale response if the origin answers with an error (RFC 5861 §4).
    pub stale_if_error: Option<u32>,
}

/// An element of the list: `name` or `name=argument`.
struct Directive<'a> {
    name: &'a [u8],
    /// The argument without its quotes; `None` without an argument.
    argument: Option<&'a [u8]>,
}

impl<'a> Directive<'a> {
    /// `None` when the element is malformed.
    fn of(element: &'a [u8]) -> Option<Directive<'a>> {
        let equals = element.iter().position(|&byte| byte == b'=').unwrap_or(element.len());
        let (name, argument) = element.split_at(equals);
        scan::is_token(name).then_some(())?;
        let argument = match argument.get(1..) {
            None => None,
            //= https://www.rfc-editor.org/rfc/rfc9111#section-5.2
            //# For the directives defined below that define arguments, recipients
            //# ought to accept both forms, even if a specific form is required for
            //# generation.
            Some(text) if scan::is_token(text) => Some(text),
            Some(text) => Some(list::unquoted(text)?),
        };
        Some(Directive { name, argument })
    }

    fn is(&self, lower: &str) -> bool {
        self.name.eq_ignore_ascii_case(lower.as_bytes())
    }

    /// The argument as a number, or 0: a lifetime that can't be parsed counts as none (RFC 9111 §4.2.1).
    fn seconds(&self) -> u32 {
        self.argument.and_then(delta_seconds::parse).unwrap_or(0)
    }
}

/// The smaller of the earlier value and this one.
//= https://www.rfc-editor.org/rfc/rfc9111#section-4.2.1
//# When there is more than one value present for a given directive
//# (e.g., two Expires header field lines or multiple Cache-Control: max-
//# age directives), either the first occurrence should be used or the
//# response should be considered stale.
// We use the smallest, which is no longer than the first.
fn stricter(before: &mut Option<u32>, now: u32) {
    *before = Some(before.map_or(now, |before| before.min(now)));
}

impl ResponseDirectives {
    /// Parses all `cache-control` lines of a response. O(length); allocates only for names that `private` and
    /// `no-cache` list.
    pub fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> ResponseDirectives {
        let mut said = ResponseDirectives::default();
        for element in list::elements(values) {
            match Directive::of(element) {
                Some(directive) => said.take(&directive),
                // The malformed directive may have been meant as `private`.
                None => (said.no_store, said.must_understand) = (true, false),
            }
        }
        said
    }

    fn take(&mut self, directive: &Directive<'_>) {
        let flags = [
            ("no-store", &mut self.no_store),
            ("must-understand", &mut self.must_understand),
            ("public", &mut self.public),
            ("must-revalidate", &mut self.must_revalidate),
            ("proxy-revalidate", &mut self.proxy_revalidate),
            ("no-transform", &mut self.no_transform),
            ("immutable", &mut self.immutable),
        ];
        if let Some((_, flag)) = flags.into_iter().find(|(name, _)| directive.is(name)) {
            *flag = true;
            return;
        }
        let numbers = [
            ("max-age", &mut self.max_age),
            ("s-maxage", &mut self.s_maxage),
            ("stale-while-revalidate", &mut self.stale_while_revalidate),
            ("stale-if-error", &mut self.stale_if_error),
        ];
        if let Some((_, number)) = numbers.into_iter().find(|(name, _)| directive.is(name)) {
            return stricter(number, directive.seconds());
        }
        let scopes = [("private", &mut self.private), ("no-cache", &mut self.no_cache)];
        if let Some((_, scope)) = scopes.into_iter().find(|(name, _)| directive.is(name)) {
            *scope = withhold(&mut self.withheld, directive.argument).max(*scope);
        }
    }

    /// Whether it declares how long the response is fresh.
    pub fn has_lifetime(&self) -> bool {
        self.max_age.is_some() || self.s_maxage.is_some()
    }
}

/// Records the names that `private` or `no-cache` lists, and returns what the directive applies to.
pub(super) fn withhold(withheld: &mut Vec<Box<[u8]>>, argument: Option<&[u8]>) -> Scope {
    let Some(argument) = argument else { return Scope::Whole };
    let mut scope = Scope::Whole;
    for name in list::elements(std::iter::once(argument)) {
        if !scan::is_token(name) || withheld.len() >= NAMES {
            return Scope::Whole;
        }
        withheld.push(name.to_ascii_lowercase().into_boxed_slice());
        scope = Scope::Fields;
    }
    scope
}

impl RequestDirectives {
    /// Parses all `cache-control` lines of a request. O(length), does not allocate.
    pub fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> RequestDirectives {
        let mut said = RequestDirectives::default();
        for element in list::elements(values) {
            // Malformed elements are ignored: a client's directives only restrict what it is given.
            if let Some(directive) = Directive::of(element) {
                said.take(&directive);
            }
        }
        said
    }

    fn take(&mut self, directive: &Directive<'_>) {
        if directive.is("no-store") {
            self.no_store = true;
        } else if directive.is("no-cache") {
            self.no_cache = true;
        } else if directive.is("no-transform") {
            self.no_transform = true;
        } else if directive.is("only-if-cached") {
            self.only_if_cached = true;
        } else if directive.is("max-age") {
            stricter(&mut self.max_age, directive.seconds());
        } else if directive.is("min-fresh") {
            let seconds = directive.argument.and_then(delta_seconds::parse).unwrap_or(delta_seconds::MOST);
            self.min_fresh = Some(self.min_fresh.map_or(seconds, |before| before.max(seconds)));
        } else if directive.is("max-stale") {
            // Without an argument, a stale response of any age will do (RFC 9111 §5.2.1.2).
            stricter(&mut self.max_stale, directive.argument.map_or(u32::MAX, |_| directive.seconds()));
        } else if directive.is("stale-if-error") {
            stricter(&mut self.stale_if_error, directive.seconds());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn response(values: &[&str]) -> ResponseDirectives {
        ResponseDirectives::of(values.iter().map(|value| value.as_bytes()))
    }

    fn request(value: &str) -> RequestDirectives {
        RequestDirectives::of(std::iter::once(value.as_bytes()))
    }

    #[test]
    fn directives_are_read_in_any_case_and_from_all_lines() {
        let said = response(&["Public, MAX-AGE=60", "s-maxage=\"120\",must-revalidate , immutable"]);
        assert!(said.public && said.must_revalidate && said.immutable && !said.no_store);
        assert_eq!((said.max_age, said.s_maxage), (Some(60), Some(120)));
        let said = response(&["max-age=1, stale-while-revalidate=30, stale-if-error=86400, no-transform"]);
        assert_eq!((said.stale_while_revalidate, said.stale_if_error), (Some(30), Some(86_400)));
        assert!(said.no_transform);
    }

    #[test]
    fn unknown_directives_are_ignored() {
        // RFC 9111 section 5.2.3: an unknown directive falls back to the known ones beside it.
        let said = response(&["private, community=\"UCI\"", "pre-check=0"]);
        assert_eq!(said, ResponseDirectives { private: Scope::Whole, ..ResponseDirectives::default() });
        assert_eq!(response(&["max-agee=5, x-no-store, nostore"]), ResponseDirectives::default());
    }

    #[test]
    fn of_two_numbers_the_smaller_holds_and_none_is_read_as_zero() {
        assert_eq!(response(&["max-age=60, max-age=30", "max-age=90"]).max_age, Some(30));
        for unreadable in [
            "max-age",
            "max-age=\"\"",
            "max-age=1.5",
            "max-age=-1",
            "max-age='60'",
            "max-age=60s",
            "max-age=5, max-age=x",
        ] {
            assert_eq!(response(&[unreadable]).max_age, Some(0), "{unreadable}");
        }
        assert_eq!(response(&["max-age=99999999999999"]).max_age, Some(delta_seconds::MOST));
    }

    #[test]
    fn what_is_malformed_is_not_kept() {
        for malformed in [
            "max-age=60; private",
            "max-age = 60",
            "max-age=",
            "no-cache=\"set-cookie, max-age=60",
            "max-age=60 private",
            "=5",
            "max-age=\"60",
            "max-age=60\"",
            "(private)",
            "private\u{a0}, max-age=60",
        ] {
            let said = response(&["must-understand", malformed, "public"]);
            assert!(said.no_store && !said.must_understand, "{malformed}");
        }
        assert!(!response(&["", ",,", "max-age=60,"]).no_store);
    }

    #[test]
    fn lists_of_names_withhold_fields_and_no_list_withholds_all() {
        let said = response(&["no-cache=\"Set-Cookie, x-a\"", "private=x-b"]);
        assert_eq!((said.no_cache, said.private), (Scope::Fields, Scope::Fields));
        let names: Vec<&[u8]> = said.withheld.iter().map(|name| &**name).collect();
        assert_eq!(names, [b"set-cookie".as_slice(), b"x-a", b"x-b"]);
        assert_eq!(response(&["no-cache=\"a\", no-cache"]).no_cache, Scope::Whole);
        assert_eq!(response(&["private, private=\"a\""]).private, Scope::Whole);
        assert_eq!(response(&["private=\"\""]).private, Scope::Whole);
        assert_eq!(response(&["private=\"a b\""]).private, Scope::Whole);
        let many: Vec<String> = (0..100).map(|number| format!("x-{number}")).collect();
        assert_eq!(response(&[&format!("no-cache=\"{}\"", many.join(","))]).no_cache, Scope::Whole);
    }

    #[test]
    fn requests_are_read_with_their_own_defaults() {
        let said = request("no-cache, no-store, only-if-cached, no-transform, max-age=0, min-fresh=20");
        assert!(said.no_cache && said.no_store && said.only_if_cached && said.no_transform);
        assert_eq!((said.max_age, said.min_fresh, said.max_stale), (Some(0), Some(20), None));
        assert_eq!(request("max-stale").max_stale, Some(u32::MAX));
        assert_eq!(request("max-stale=60").max_stale, Some(60));
        assert_eq!(request("max-stale=x").max_stale, Some(0));
        assert_eq!(request("min-fresh=x").min_fresh, Some(delta_seconds::MOST));
        assert_eq!(request("min-fresh=1, min-fresh=5").min_fresh, Some(5));
        assert_eq!(request("stale-if-error=5").stale_if_error, Some(5));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..4)) {
            let values = || lines.iter().map(Vec::as_slice);
            let _ = (ResponseDirectives::of(values()), RequestDirectives::of(values()));
        }

        /// Other directives, before, after or on another line, cannot undo these.
        #[test]
        fn nothing_beside_it_undoes_no_store(before in "[ -~]{0,30}", after in "[ -~]{0,30}") {
            let text = format!("{before},no-store,{after}");
            prop_assert!(response(&[&text]).no_store || text.contains('"'));
            prop_assert!(response(&[&before, "no-store", &after]).no_store);
        }
    }
}
