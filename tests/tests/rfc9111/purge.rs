//! What each kind of purge takes and leaves; `cache/purge.rs` has the rest.

use super::{Site, is_hit, site};

impl Site {
    /// How many objects a purge says it has taken.
    fn purges(&self, order: &str) -> u64 {
        let answer = self.weir.admin().calls(
            "POST",
            "/v1/cache/purge",
            &[("content-type", "application/json")],
            order,
        );
        assert_eq!(answer.status(), 200, "{order}: {answer:?}");
        answer.json()["purged"].as_u64().unwrap_or_else(|| panic!("{answer:?}"))
    }

    /// Which of the targets are answered from memory. Asking keeps them all again.
    fn kept<'a>(&self, targets: &[&'a str]) -> Vec<&'a str> {
        targets
            .iter()
            .copied()
            .filter(|target| is_hit(&self.get(target, &["cache-control: only-if-cached"])))
            .collect()
    }
}

const TARGETS: [&str; 4] = ["/x", "/x?a=1", "/x/y", "/z"];

fn filled() -> Site {
    let site = site("", |request, before| {
        let tags =
            format!("cache-control: max-age=600\nsurrogate-key: all {}\ncache-tag: one,two", request.target);
        super::ok(&tags, before.to_string())
    });
    for target in TARGETS {
        site.get(target, &[]);
    }
    assert_eq!(site.kept(&TARGETS), TARGETS);
    site
}

#[test]
fn a_purge_takes_what_it_names_and_leaves_the_rest() {
    let none: [&str; 0] = [];
    for (order, left) in [
        (r#"{"path": "/x"}"#, &["/x/y", "/z"][..]),
        (r#"{"host": "127.0.0.1", "path": "/x"}"#, &["/x/y", "/z"]),
        (r#"{"host": "other.example", "path": "/x"}"#, &TARGETS),
        (r#"{"prefix": "/x"}"#, &["/z"]),
        (r#"{"tag": "/x?a=1"}"#, &["/x", "/x/y", "/z"]),
        (r#"{"tag": "all"}"#, &none),
        (r#"{"tag": "two"}"#, &none),
        (r#"{"tag": "three"}"#, &TARGETS),
        (r#"{"all": true}"#, &none),
    ] {
        let site = filled();
        assert_eq!(site.purges(order), (TARGETS.len() - left.len()) as u64, "{order}");
        assert_eq!(site.kept(&TARGETS), left, "{order}");
    }
}
