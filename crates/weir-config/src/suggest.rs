//! The nearest right word for a wrong one.

/// Longest word that is compared, in bytes.
const WORD_BYTES: usize = 128;

/// The candidate nearest to `word`, if one is near enough to have been meant.
///
/// Near is an edit distance of at most a third of the longer word (at least one, at most three), where
/// swapping two neighbours counts as one edit; case, `-` and `_` do not count at all.
pub(crate) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    // Such a long word is no typing error, and the distance costs the product of the lengths.
    if word.is_empty() || word.len() > WORD_BYTES {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let plain = plain(candidate);
            let distance = strsim::osa_distance(&word, &plain);
            let longer = word.chars().count().max(plain.chars().count());
            let most = (longer / 3).clamp(1, 3);
            (distance <= most).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The hint for a `word` that is none of the `names`: the nearest of them, or all if they are few.
pub fn meant(word: &str, names: &[&str]) -> String {
    match nearest(word, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.len() <= 8 => format!("expected {}", one_of(names.iter().copied())),
        None => format!("expected one of {}", names.len()),
    }
}

/// "`a`, `b` or `c`".
pub(crate) fn one_of<'c>(words: impl IntoIterator<Item = &'c str>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    either(&words)
}

/// "a, b or c".
pub(crate) fn either(words: &[String]) -> String {
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_the_word() {
        let words = ["least-connections", "round-robin", "first", "hash"];
        assert_eq!(nearest("least_conections", words), Some("least-connections"));
        assert_eq!(nearest("Round-Robin", words), Some("round-robin"));
        assert_eq!(nearest("hahs", words), Some("hash"));
    }

    #[test]
    fn a_different_word_finds_nothing() {
        assert_eq!(nearest("tls", ["pool", "bind"]), None);
        assert_eq!(nearest("", ["a"]), None);
    }

    #[test]
    fn a_list_of_words_reads_as_a_sentence() {
        assert_eq!(one_of(["a"]), "`a`");
        assert_eq!(one_of(["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
