//! Header rules of listeners, pools and routes, and how the three combine.

mod check;
mod replace;

use std::collections::BTreeMap;

use weir_template::Template;

pub use self::check::is_single_valued;
pub(crate) use self::check::{check_listener, check_pool};
pub use self::replace::{
    AttributeRule, CookieRule, CookieSite, RequestReplacement, ResponseReplacement, ValueRule, ValueRules,
};
use crate::keys::{Each, flag, list, map};
use crate::setting::{Section as _, table};
use crate::values::http::{
    ADDED_REQUEST_HEADER, ADDED_RESPONSE_HEADER, REMOVED_REQUEST_HEADER, REMOVED_RESPONSE_HEADER,
    SET_REQUEST_HEADER, SET_RESPONSE_HEADER,
};
use crate::values::template::HEADER_VALUE;

table! {
    /// Rules about header fields.
    #[derive(Eq, Default)]
    pub struct Headers {
        /// Fields of the request towards the backend that get this value, in place of all of that name. One
        /// that comes out empty is left out. What a route says comes behind what its pool says, and
        /// that behind its listener.
        set_request_header: BTreeMap<String, Template> =
            map(&SET_REQUEST_HEADER, &HEADER_VALUE)
                .http()
                .secret()
                .default("none")
                .also(&["proxy_set_header", "set_header", "request_header", "header_up"]);
        /// Fields of the request towards the backend that stand beside those of that name.
        add_request_header: BTreeMap<String, Template> =
            map(&ADDED_REQUEST_HEADER, &HEADER_VALUE).http().secret().default("none");
        /// Fields that the backend does not get.
        remove_request_header: Vec<String> =
            list(Each::Text(&REMOVED_REQUEST_HEADER))
                .http()
                .default("none")
                .also(&["del_header", "delete_request_header"]);
        /// Fields of the response towards the client that get this value, in place of all of that name; of
        /// Weir's own answers too.
        set_response_header: BTreeMap<String, Template> =
            map(&SET_RESPONSE_HEADER, &HEADER_VALUE)
                .http()
                .default("none")
                .also(&["response_header", "header_down"]);
        /// Fields of the response towards the client that stand beside those of that name; of Weir's own
        /// answers too.
        add_response_header: BTreeMap<String, Template> =
            map(&ADDED_RESPONSE_HEADER, &HEADER_VALUE).http().default("none").also(&["add_header"]);
        /// Fields that the client does not get, such as `server` and `x-powered-by`.
        remove_response_header: Vec<String> =
            list(Each::Text(&REMOVED_RESPONSE_HEADER))
                .http()
                .default("none")
                .also(&["proxy_hide_header", "more_clear_headers", "delete_response_header"]);
        /// Values of the request's fields that become others towards the backend; of the rules for a field,
        /// the first that matches counts. Those of the listener come first, then those of the pool, then
        /// those of the route. What rules set or add stays, and so does what Weir writes.
        replace_request_header: Vec<RequestReplacement> =
            list(Each::Table(RequestReplacement::TABLE)).http().default("none").also(&["replace_header"]);
        /// Values of the response's fields that become others towards the client, such as a `location` with
        /// the backend's own address.
        replace_response_header: Vec<ResponseReplacement> =
            list(Each::Table(ResponseReplacement::TABLE))
                .http()
                .default("none")
                .also(&["proxy_redirect", "replace_value", "rewrite_response_header"]);
        /// Attributes of cookies that backends set; of the rules at one place, the first for a cookie's name
        /// counts. The cookie of `sticky` stays.
        response_cookie: Vec<CookieRule> =
            list(Each::Table(CookieRule::TABLE))
                .http()
                .default("none")
                .also(&["proxy_cookie_flags", "proxy_cookie_domain", "proxy_cookie_path", "set_cookie"]);
    }
}

table! {
    /// What Weir says of itself and of the client.
    #[derive(Copy, Eq)]
    pub struct Marks {
        /// Whether `via` names Weir, to backends and to clients (RFC 9110 section 7.6.3). `false` leaves the
        /// field as others wrote it; a loop through Weir is then found by nobody.
        via: bool = flag(true).http().inherited();
        /// Whether backends are told the client with `forwarded` (RFC 7239), beside `x-forwarded-for` and its
        /// kin.
        forwarded: bool = flag(true).http().inherited();
    }
}

/// The owner of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOf {
    /// The listener's.
    Listener,
    /// The pool's.
    Pool,
    /// The route's.
    Route,
}

impl RuleOf {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            RuleOf::Listener => "listener",
            RuleOf::Pool => "pool",
            RuleOf::Route => "route",
        }
    }
}

/// A field that a rule adds or sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewField {
    /// In lower case.
    pub name: String,
    /// Its value.
    pub value: Template,
    /// Whether it is added to existing fields instead of replacing them.
    pub is_added: bool,
    /// The owner of the rule.
    pub of: RuleOf,
}

/// The combined rules for one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedSide {
    /// Names in lower case of the fields to remove, each with the owner of the rule. Includes those of
    /// [`Self::new`] that replace existing fields.
    pub dropped: Vec<(String, RuleOf)>,
    /// Fields to write, in this order.
    pub new: Vec<NewField>,
    /// Rules about the values of the other fields, in the order in which they apply.
    pub values: Vec<ValueRules>,
}

/// The combined rules of a listener, a pool and a route for an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedHeaders {
    /// For the request to a backend.
    pub request: MergedSide,
    /// For the response to the client.
    pub response: MergedSide,
}

impl MergedHeaders {
    /// Combines rules in the given order: later rules apply later.
    pub fn of<'h>(rules: impl IntoIterator<Item = (RuleOf, &'h Headers)>) -> MergedHeaders {
        let mut merged = MergedHeaders::default();
        for (of, rules) in rules {
            let Headers { set_request_header: set, add_request_header: add, .. } = rules;
            merged.request.apply(of, &rules.remove_request_header, set, add);
            let values = rules.replace_request_header.iter().map(RequestReplacement::rule).collect();
            merged.request.replace(ValueRules { of, values, cookies: Vec::new() });
            let Headers { set_response_header: set, add_response_header: add, .. } = rules;
            merged.response.apply(of, &rules.remove_response_header, set, add);
            let values = rules.replace_response_header.iter().map(ResponseReplacement::rule).collect();
            merged.response.replace(ValueRules { of, values, cookies: rules.response_cookie.clone() });
        }
        merged
    }
}

impl MergedSide {
    fn apply(
        &mut self,
        of: RuleOf,
        removed: &[String],
        set: &BTreeMap<String, Template>,
        added: &BTreeMap<String, Template>,
    ) {
        for name in removed.iter().chain(set.keys()) {
            self.new.retain(|field| field.name != *name);
            self.dropped.retain(|(dropped, _)| dropped != name);
            self.dropped.push((name.clone(), of));
        }
        let fields = set.iter().map(|field| (field, false)).chain(added.iter().map(|field| (field, true)));
        self.new.extend(fields.map(|((name, value), is_added)| NewField {
            name: name.clone(),
            value: value.clone(),
            is_added,
            of,
        }));
    }

    fn replace(&mut self, rules: ValueRules) {
        if !(rules.values.is_empty() && rules.cookies.is_empty()) {
            self.values.push(rules);
        }
    }

    /// Whether all fields with this name are removed.
    pub fn drops(&self, name: &str) -> bool {
        self.dropped.iter().any(|(dropped, _)| dropped == name)
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.new.is_empty() && self.values.is_empty()
    }
}

impl Headers {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == Headers::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &str) -> Headers {
        let text = format!(
            "[listener.a]\nbind = '127.0.0.1:1'\npool = 'p'\n{text}\n[pool.p]\nbackends = ['127.0.0.1:2']\n"
        );
        let config = crate::parse("a.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        config.listeners[0].http().headers.clone()
    }

    fn names(side: &MergedSide) -> (Vec<&str>, Vec<(&str, &str)>) {
        let new = side.new.iter().map(|field| (field.name.as_str(), field.value.as_written()));
        (side.dropped.iter().map(|(name, _)| name.as_str()).collect(), new.collect())
    }

    #[test]
    fn what_is_said_nearer_to_the_request_wins_and_what_is_added_stands_beside() {
        let listener =
            headers("set_response_header = { x-a = '1', x-b = '1' }\nadd_response_header = { link = '1' }");
        let pool = headers("set_response_header = { x-a = '2' }\nadd_response_header = { link = '2' }");
        let route = headers("remove_response_header = ['x-b']\nadd_response_header = { x-a = '3' }");
        let all = [(RuleOf::Listener, &listener), (RuleOf::Pool, &pool), (RuleOf::Route, &route)];
        let merged = MergedHeaders::of(all);
        assert_eq!(
            names(&merged.response),
            (vec!["x-a", "x-b"], vec![("link", "1"), ("x-a", "2"), ("link", "2"), ("x-a", "3")])
        );
        assert!(merged.request.is_empty());
        assert_eq!(
            merged.response.dropped,
            [("x-a".to_owned(), RuleOf::Pool), ("x-b".to_owned(), RuleOf::Route)]
        );
    }

    #[test]
    fn a_field_that_is_taken_out_first_may_be_set_again_by_a_route() {
        let listener = headers("remove_request_header = ['x-user']");
        let route = headers("set_request_header = { x-user = '$header.x-real-user' }");
        let merged = MergedHeaders::of([(RuleOf::Listener, &listener), (RuleOf::Route, &route)]);
        assert_eq!(names(&merged.request), (vec!["x-user"], vec![("x-user", "$header.x-real-user")]));
        assert!(Headers::default().is_empty() && !listener.is_empty());
    }
}
