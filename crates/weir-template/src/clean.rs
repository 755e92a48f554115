//! Removes from a rendered value what must not stand in the value of a header field.

/// Makes the part of `out` from `start` on fit for a field value (RFC 9110 section 5.5): each control byte
/// becomes a space, and whitespace at either end is removed. So bytes that a peer controls can neither end
/// the field nor begin another one (threat A27), wherever they were taken from.
#[inline]
pub fn clean_field_value(out: &mut Vec<u8>, start: usize) {
    let value = out.get(start..).unwrap_or_default();
    let is_outer = |byte: Option<&u8>| byte.is_some_and(|byte| *byte == b' ');
    if !value.iter().any(|byte| is_control(*byte)) && !is_outer(value.first()) && !is_outer(value.last()) {
        return;
    }
    mend(out, start);
}

#[cold]
fn mend(out: &mut Vec<u8>, start: usize) {
    let value = out.get_mut(start..).unwrap_or_default();
    value.iter_mut().filter(|byte| is_control(**byte)).for_each(|byte| *byte = b' ');
    let end = value.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    let begin = value[..end].iter().position(|byte| *byte != b' ').unwrap_or(0);
    value.copy_within(begin..end, 0);
    out.truncate(start + end - begin);
}

/// Whether a byte is a control character. Tab counts as one too, since no value here needs it.
fn is_control(byte: u8) -> bool {
    byte < b' ' || byte == 0x7f
}
