//! `via` (RFC 9110 §7.6.3): the proxies a message has passed through.

use super::list::elements;

/// How often a message has passed through a Weir, according to the pseudonym in its `via` fields. Others can
/// forge it: it serves to stop loops, and proves nothing.
pub fn own_hops<'a>(values: impl Iterator<Item = &'a [u8]>) -> usize {
    let is_own = |element: &&[u8]| {
        // received-protocol RWS received-by [ RWS comment ]
        let mut words = element.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
        words.nth(1) == Some(b"weir")
    };
    elements(values).filter(is_own).count()
}

#[cfg(test)]
mod tests {
    use super::own_hops;

    #[test]
    fn only_the_received_by_of_each_element_counts() {
        let count = |lines: &[&'static str]| own_hops(lines.iter().map(|line| line.as_bytes()));
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&["1.1 weir", "2 weir (edge), 1.1 vegur", "HTTP/1.1  weir"]), 3);
        assert_eq!(count(&["weir", "1.1 weir.example", "1.1 other weir", ", ,"]), 0);
    }
}
