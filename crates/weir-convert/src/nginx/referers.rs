//! `valid_referers`, and `$invalid_referer` as conditions of routes.

use super::expression::{Compared, literal, translate};
use super::request_test::RequestTest;
use super::scope::NginxScope;

/// What `$invalid_referer` asks: tests that must hold (`true`) or must not (`false`). `Err` says what there
/// is nothing like.
pub fn invalid_referer(words: &[String]) -> Result<Vec<(bool, RequestTest)>, String> {
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    let is_special = |word: &&String| matches!(word.as_str(), "none" | "blocked");
    let mut valid = Vec::new();
    for word in words.iter().filter(|word| !is_special(word)) {
        valid.push(pattern(word)?);
    }
    let front = match (has("none"), has("blocked")) {
        // One that is no URL, or shorter than nginx's shortest, is taken for one that a proxy has changed.
        (true, true) => Some("~(?i)^(?:http://.{4}|https://.{3})"),
        (true, false) => Some("*"),
        (false, false) => None,
        (false, true) => {
            return Err("without a referer and with a wrong one, which are two conditions".to_owned());
        }
    };
    let mut tests = Vec::new();
    tests.extend(front.map(|value| (true, RequestTest::value("header", "referer", value))));
    if !valid.is_empty() {
        let value = format!("~(?i)^https?://(?:{})", valid.join("|"));
        tests.push((false, RequestTest::value("header", "referer", value)));
    }
    match tests.is_empty() {
        true => Err("it names nobody".to_owned()),
        false => Ok(tests),
    }
}

/// The words of the `valid_referers` that holds in a block, with the server's names in the place of
/// `server_names`.
pub fn words_of(scope: &NginxScope<'_>) -> Vec<String> {
    let mut words = Vec::new();
    for word in scope.all("valid_referers").iter().flat_map(|directive| &directive.words) {
        match word.as_str() {
            "server_names" => {
                let names = scope.all("server_name");
                let names = names.iter().flat_map(|directive| &directive.words);
                words.extend(names.filter(|name| !matches!(name.as_str(), "_" | "")).cloned());
            }
            word => words.push(word.to_owned()),
        }
    }
    words
}

/// The expression of what stands behind the scheme.
fn pattern(word: &str) -> Result<String, String> {
    if let Some(expression) = word.strip_prefix('~') {
        let translated = translate(expression, false, Compared::Text)?;
        if !translated.is_same {
            return Err("its expression takes more than linear time".to_owned());
        }
        return Ok(match translated.text.strip_prefix('^') {
            Some(rest) => format!("(?:{rest})"),
            None => format!(".*(?:{})", translated.text),
        });
    }
    let (name, uri) = word.split_at(word.find('/').unwrap_or(word.len()));
    let host = if let Some(rest) = name.strip_prefix("*.") {
        format!("[^/:]+\\.{}", literal(rest))
    } else if let Some(rest) = name.strip_prefix('.') {
        format!("(?:[^/:]+\\.)?{}", literal(rest))
    } else if let Some(rest) = name.strip_suffix(".*") {
        format!("{}\\.[^/:]+", literal(rest))
    } else {
        literal(name)
    };
    Ok(match uri {
        "" => format!("{host}(?:[/:]|$)"),
        uri => format!("{host}(?::[0-9]*)?{}", literal(uri)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(words: &[&str]) -> Vec<(bool, String)> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let tests = invalid_referer(&words).unwrap_or_else(|why| panic!("{why}"));
        tests.into_iter().map(|(holds, test)| (holds, test.values[0].2.clone())).collect()
    }

    #[test]
    fn names_are_those_of_the_hosts_of_referers() {
        assert_eq!(
            value(&["none", "blocked", "a.example", "*.b.example", "c.*", "d.example/x"]),
            [
                (true, "~(?i)^(?:http://.{4}|https://.{3})".to_owned()),
                (
                    false,
                    "~(?i)^https?://(?:a\\.example(?:[/:]|$)|[^/:]+\\.b\\.example(?:[/:]|$)|c\\.[^/:]+(?:[/:]|$)|d\\.example(?::[0-9]*)?/x)"
                        .to_owned()
                ),
            ]
        );
        assert_eq!(value(&["a"]), [(false, "~(?i)^https?://(?:a(?:[/:]|$))".to_owned())]);
        invalid_referer(&["blocked".to_owned()]).expect_err("two conditions");
    }
}
