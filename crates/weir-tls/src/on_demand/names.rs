//! Names for which a certificate may be ordered.

/// Whether `name` is a DNS host name of at least two labels, in lower case and without a trailing dot: no
/// address, no wildcard, and nothing that two parsers could interpret differently (RFC 1123 section 2.1).
pub fn is_host_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 253
        && name.contains('.')
        && name.split('.').all(is_label)
        // A last label of digits only belongs to an address (RFC 3696 section 2).
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether `name` matches one of `patterns`; without any, every name does.
pub fn is_among(patterns: &[String], name: &str) -> bool {
    let parent = name.split_once('.').map(|(_, parent)| parent);
    let is_for = |pattern: &String| match pattern.strip_prefix("*.") {
        Some(rest) => parent == Some(rest),
        None => pattern == name,
    };
    patterns.is_empty() || patterns.iter().any(is_for)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_names_are_asked_about() {
        for good in ["shop.example", "a.b.c.example", "xn--bcher-kva.example", "1.example", "a-b.example"] {
            assert!(is_host_name(good), "{good}");
        }
        let (label, long) = ("a".repeat(64), format!("{}example", "a.".repeat(124)));
        assert!(!is_host_name(&format!("{label}.example")) && !is_host_name(&long));
        for bad in [
            "",
            ".",
            "shop",
            "shop.",
            "shop.example.",
            ".shop.example",
            "shop..example",
            "*.shop.example",
            "10.0.0.1",
            "shop.1",
            "Shop.example",
            "-shop.example",
            "shop-.example",
            "sh_op.example",
            "shop.example/x",
            "shop.example&domain=own.example",
            "shop\0.example",
            "../../shop.example",
            "[::1]",
            "sh\u{f6}p.example",
        ] {
            assert!(!is_host_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_wildcard_stands_for_one_part_and_no_pattern_for_every_name() {
        let patterns = ["*.shop.example".to_owned(), "own.example".to_owned()];
        assert!(is_among(&patterns, "a.shop.example") && is_among(&patterns, "own.example"));
        for other in ["shop.example", "a.b.shop.example", "a.own.example", "ashop.example"] {
            assert!(!is_among(&patterns, other), "{other}");
        }
        assert!(is_among(&[], "a.example"));
    }
}
