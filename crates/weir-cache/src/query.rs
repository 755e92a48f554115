//! The part of a query that identifies a response. It is also the whole query that the origin gets: anything
//! else that reached the origin could influence what all clients get (threat E1).

use std::cmp::Ordering;

use weir_http::form::decoded;

use crate::rules::{QueryRule, Rules};

/// Positions of the relevant parameters in a query; a reusable buffer.
pub(crate) type Parameters = Vec<(usize, usize)>;

/// Finds the relevant parameters, in the order in which the origin gets them. O(n log n) in the length of the
/// query.
pub(crate) fn find(query: &[u8], rules: &Rules, found: &mut Parameters) {
    found.clear();
    let mut start = 0;
    for parameter in query.split(|&byte| byte == b'&') {
        let end = start + parameter.len();
        if !parameter.is_empty() && counts(&rules.query, name_of(parameter)) {
            found.push((start, end));
        }
        start = end + 1;
    }
    if rules.query_sort {
        // By name only, and stably: the order of several values of one name may matter.
        found.sort_by(|one, other| by_name(of(query, *one), of(query, *other)));
    }
}

/// The text at this place.
pub(crate) fn of(query: &[u8], (start, end): (usize, usize)) -> &[u8] {
    query.get(start..end).unwrap_or_default()
}

fn counts(rule: &QueryRule, name: &[u8]) -> bool {
    match rule {
        QueryRule::Whole => true,
        QueryRule::Ignore => false,
        QueryRule::Only(patterns) => patterns.iter().any(|pattern| pattern.matches(decoded(name))),
        QueryRule::Without(patterns) => !patterns.iter().any(|pattern| pattern.matches(decoded(name))),
    }
}

fn name_of(parameter: &[u8]) -> &[u8] {
    parameter.split(|&byte| byte == b'=').next().unwrap_or_default()
}

fn by_name(one: &[u8], other: &[u8]) -> Ordering {
    decoded(name_of(one)).cmp(decoded(name_of(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Pattern;

    fn asked(query: &str, rule: QueryRule, query_sort: bool) -> String {
        let (rules, mut found) = (Rules { query: rule, query_sort, ..Rules::default() }, Vec::new());
        find(query.as_bytes(), &rules, &mut found);
        let text = |place: &_| String::from_utf8(of(query.as_bytes(), *place).to_vec()).unwrap();
        found.iter().map(text).collect::<Vec<_>>().join("&")
    }

    fn patterns(names: &[&str]) -> Vec<Pattern> {
        names.iter().map(|name| Pattern::new(name.as_bytes())).collect()
    }

    #[test]
    fn names_are_compared_as_backends_decode_them() {
        let only = |query: &str| asked(query, QueryRule::Only(patterns(&["id", "a%5B*", "b+c"])), false);
        assert_eq!(only("id=1&%69d=2&i%64=3&ID=4&id%=5&id%20=6"), "id=1&%69d=2&i%64=3");
        assert_eq!(only("a[0]=1&a%5b1]=2&a=3&&b+c=4&b%20c=5&b%2Bc=6"), "a[0]=1&a%5b1]=2&b+c=4&b%20c=5");
        let without = |query: &str| asked(query, QueryRule::Without(patterns(&["utm_*"])), false);
        assert_eq!(without("utm_a=1&%75tm%5fb=2&c=3&utm=4"), "c=3&utm=4");
    }

    #[test]
    fn what_has_one_name_keeps_its_order_however_it_is_spelt() {
        assert_eq!(asked("b=1&a=1&%61=2&a=3", QueryRule::Whole, true), "a=1&%61=2&a=3&b=1");
        assert_eq!(asked("%61=2&b&a=1", QueryRule::Whole, true), "%61=2&a=1&b");
    }
}
