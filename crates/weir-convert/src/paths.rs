//! Which paths a pattern stands for, as glob(3) has it.

/// The paths that a pattern with `*`, `?` and `[…]` in its segments stands for, sorted. `names` gives the
/// names in a folder. A name that begins with a dot needs a pattern that does.
pub fn matching_paths(pattern: &str, names: &dyn Fn(&str) -> Vec<String>) -> Vec<String> {
    let mut found = vec![String::new()];
    for (index, segment) in pattern.split('/').enumerate() {
        let join = |folder: &String, name: &str| match index {
            0 => name.to_owned(),
            _ => format!("{folder}/{name}"),
        };
        if !is_pattern(segment) {
            for folder in &mut found {
                *folder = join(folder, segment);
            }
            continue;
        }
        let mut next = Vec::new();
        for folder in &found {
            let looked_at = match (index, folder.as_str()) {
                (0, _) => ".",
                (_, "") => "/",
                (_, folder) => folder,
            };
            let there = names(looked_at);
            next.extend(there.iter().filter(|name| matches(segment, name)).map(|name| join(folder, name)));
        }
        found = next;
    }
    found.sort();
    found
}

/// Whether a text has a wildcard in it.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether a whole path matches a pattern. A wildcard stands for no slash.
pub fn path_matches(pattern: &str, path: &str) -> bool {
    let (wanted, segments): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').collect(), path.split('/').collect());
    wanted.len() == segments.len()
        && wanted.iter().zip(&segments).all(|(wanted, segment)| matches(wanted, segment))
}

/// Whether a name matches a pattern without slashes.
fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where the last `*` stands, and how much of the name it has taken.
    let (mut star, mut at, mut seen) = (None, 0, 0);
    while seen < name.len() {
        let taken = match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
                continue;
            }
            Some(_) => one(&pattern[at..], name[seen]),
            None => None,
        };
        match (taken, &mut star) {
            (Some(length), _) => (at, seen) = (at + length, seen + 1),
            (None, Some((place, taken))) => {
                *taken += 1;
                (at, seen) = (*place + 1, *taken);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

/// The length of the pattern's first element if it stands for this character.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['[', rest @ ..] => {
            // A `]` that comes first is one of the characters.
            let end = rest.iter().skip(1).position(|c| *c == ']').map(|at| at + 1);
            let Some(end) = end else { return (c == '[').then_some(1) };
            let (negated, set) = match &rest[..end] {
                ['!' | '^', set @ ..] => (true, set),
                set => (false, set),
            };
            (in_set(set, c) != negated).then_some(end + 2)
        }
        ['\\', escaped, ..] => (*escaped == c).then_some(2),
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

fn in_set(set: &[char], c: char) -> bool {
    match set {
        [first, '-', last, rest @ ..] => (*first..=*last).contains(&c) || in_set(rest, c),
        [first, rest @ ..] => *first == c || in_set(rest, c),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_names_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", ".a.conf", false),
            ("*.conf", "a.conf.bak", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("*a*b", "xaxbxb", true),
            ("[", "[", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
        assert!(path_matches("/etc/nginx/*/a.conf", "/etc/nginx/x/a.conf"));
        assert!(!path_matches("/etc/nginx/*.conf", "/etc/nginx/x/a.conf"));
    }

    #[test]
    fn folders_are_searched_by_each_segment_that_is_a_pattern() {
        let names = |folder: &str| -> Vec<String> {
            match folder {
                "/etc" => vec!["b".to_owned(), "a".to_owned(), "c.txt".to_owned()],
                "/etc/a" | "/etc/b" => vec!["x.conf".to_owned()],
                _ => Vec::new(),
            }
        };
        assert_eq!(matching_paths("/etc/?/*.conf", &names), ["/etc/a/x.conf", "/etc/b/x.conf"]);
    }
}
