//! Field lines: the hot loop of all parsing, for requests, responses and trailers (RFC 9112 §5).

use crate::known::{KnownHeader, PROTECTED};
use crate::limits::Limits;
use crate::message::{
    CANONICAL, Cursor, FieldLine, Fields, NOMINATED, Phase, Span, TABBED, UNDERSCORE_TWIN, UNDERSCORED,
};
use crate::scan::{self, CLASS, TOKEN, UNDERSCORE};
use crate::violation::Violation;

/// Limits of one field block.
pub(crate) struct BlockLimits {
    pub bytes: usize,
    pub count: usize,
    /// The violation when `bytes` is exceeded.
    pub too_large: Violation,
    /// The violation when `count` is exceeded.
    pub too_many: Violation,
}

impl BlockLimits {
    /// For a head, of a request or a response.
    pub fn of_head(limits: &Limits) -> BlockLimits {
        BlockLimits {
            bytes: limits.block_bytes(),
            count: limits.field_count,
            too_large: Violation::HeaderBlockTooLarge,
            too_many: Violation::TooManyFields,
        }
    }
}

/// Parses field lines up to and including the empty line. Continues where the last call stopped, according to
/// `cursor`.
///
/// `Some` is the position after the empty line; `None` means more bytes are needed. How the bytes were split
/// makes no difference to the result: errors depend on the bytes inside the limit, in order.
#[inline]
pub(crate) fn parse_fields(
    buffer: &[u8],
    cursor: &mut Cursor,
    fields: &mut Fields,
    limits: &BlockLimits,
) -> Result<Option<usize>, Violation> {
    let window_end = fields.start + limits.bytes;
    let window = buffer.get(..window_end).unwrap_or(buffer);
    let Cursor { mut phase, mut at, mut line_start, mut mark, mut classes, .. } = *cursor;
    'more: {
        loop {
            if phase == Phase::FieldStart {
                if fields.lines.len() < limits.count
                    && let Some(line) = plain_line(window, at)
                {
                    at = line.value.end() + 2;
                    fields.push(line);
                    continue;
                }
                match window.get(at) {
                    None => break 'more,
                    Some(b'\r') => match window.get(at + 1) {
                        None => break 'more,
                        Some(b'\n') => {
                            fields.end = at;
                            cursor.phase = Phase::Complete;
                            return Ok(Some(at + 2));
                        }
                        Some(_) => return Err(Violation::BareCarriageReturn),
                    },
                    Some(&byte) if byte <= b' ' || byte == b':' => return Err(bad_line_start(byte, fields)),
                    Some(_) if fields.lines.len() >= limits.count => return Err(limits.too_many),
                    Some(_) => {}
                }
                line_start = at;
                classes = 0;
                phase = Phase::FieldName;
            }
            if phase == Phase::FieldName {
                let Some(stop) = token_end(window, &mut at, &mut classes) else { break 'more };
                if stop != b':' {
                    return Err(bad_name_byte(stop));
                }
                mark = at;
                at += 1;
                phase = Phase::FieldValue;
            }
            let Some(stop) = scan::control_from(window, at) else {
                at = window.len();
                break 'more;
            };
            at = stop;
            match (window.get(stop), window.get(stop + 1)) {
                (Some(b'\r'), Some(b'\n')) => {}
                (Some(b'\r'), None) => break 'more,
                (Some(b'\r'), Some(_)) => return Err(Violation::BareCarriageReturn),
                (Some(b'\n'), _) => return Err(Violation::BareLineFeed),
                _ => return Err(Violation::FieldValueSyntax),
            }
            let name = window.get(line_start..mark).unwrap_or_default();
            let known = KnownHeader::classify(name);
            fields.push(field_line(window, line_start, mark, stop, classes, known));
            at = stop + 2;
            phase = Phase::FieldStart;
        }
    }
    if buffer.len() >= window_end {
        return Err(limits.too_large);
    }
    *cursor = Cursor { phase, at, line_start, mark, classes, ..*cursor };
    Ok(None)
}

/// The line that begins at `at`, if it is complete, in the form in which Weir would write it, and without an
/// underscore in its name, as most lines are. `None` allows no conclusion about the line.
#[inline(always)]
fn plain_line(window: &[u8], at: usize) -> Option<FieldLine> {
    let rest = window.get(at..)?;
    let length = scan::name_length(rest)?;
    let (name, behind) = rest.split_at_checked(length)?;
    let known = KnownHeader::classify(name);
    // A known name is a token without an underscore.
    if known == KnownHeader::Other
        && (name.is_empty() || !name.iter().all(|&byte| CLASS[byte as usize] & (TOKEN | UNDERSCORE) == TOKEN))
    {
        return None;
    }
    let [b':', b' ', value @ ..] = behind else { return None };
    let bytes = scan::control_from(value, 0)?;
    let (value, behind) = value.split_at_checked(bytes)?;
    let (([b'\r', b'\n', ..], Some(first)), Some(last)) = ((behind, value.first()), value.last()) else {
        return None;
    };
    // It contains no control byte except tab.
    if *first <= b' ' || *last <= b' ' {
        return None;
    }
    let name_end = at + length;
    let value = Span::new(name_end + 2, name_end + 2 + bytes);
    Some(FieldLine { name: Span::new(at, name_end), value, known, flags: CANONICAL })
}

/// Moves `at` to the first byte that is not of a token and returns that byte; collects the classes of the
/// bytes before it.
#[inline(always)]
fn token_end(window: &[u8], at: &mut usize, classes: &mut u8) -> Option<u8> {
    let rest = window.get(*at..)?;
    let mut union = *classes;
    for (offset, &byte) in rest.iter().enumerate() {
        let class = CLASS[byte as usize];
        if class & TOKEN == 0 {
            *at += offset;
            *classes = union;
            return Some(byte);
        }
        union |= class;
    }
    *at = window.len();
    *classes = union;
    None
}

#[inline(always)]
fn field_line(
    window: &[u8],
    line_start: usize,
    name_end: usize,
    line_end: usize,
    classes: u8,
    known: KnownHeader,
) -> FieldLine {
    let raw = window.get(name_end + 1..line_end).unwrap_or_default();
    let mut flags = 0;
    let mut value = Span::new(name_end + 2, line_end);
    // Nearly every line is `name: value`; only the others need trimming.
    let canonical = match raw {
        [b' '] => true,
        [b' ', first, .., last] => !matches!(first, b' ' | b'\t') && !matches!(last, b' ' | b'\t'),
        [b' ', only] => !matches!(only, b' ' | b'\t'),
        _ => false,
    };
    if canonical {
        flags |= CANONICAL;
    } else {
        let trimmed = scan::trim(raw);
        // If there is only whitespace, the value is empty and at the end of the line.
        let leading = raw.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let start = name_end + 1 + leading;
        value = Span::new(start, start + trimmed.len());
        let trailing = raw.len() - leading - trimmed.len();
        let outer = raw.iter().take(leading).chain(raw.iter().rev().take(trailing));
        flags |= if outer.into_iter().any(|byte| *byte == b'\t') { TABBED } else { 0 };
    }
    if classes & UNDERSCORE != 0 {
        flags |= underscore_flags(window.get(line_start..name_end).unwrap_or_default());
    }
    FieldLine { name: Span::new(line_start, name_end), value, known, flags }
}

/// Many backends (CGI, WSGI, PHP) read `x_forwarded_for` as `x-forwarded-for` (threat A24).
#[cold]
pub(crate) fn underscore_flags(name: &[u8]) -> u8 {
    let mut dashed = [0; 32];
    let Some(text) = dashed.get_mut(..name.len()) else { return UNDERSCORED };
    for (to, from) in text.iter_mut().zip(name) {
        *to = if *from == b'_' { b'-' } else { *from };
    }
    let twin = KnownHeader::classify(text);
    let protected = PROTECTED.union(crate::known::HOP_BY_HOP).has(twin);
    if protected { UNDERSCORED | UNDERSCORE_TWIN } else { UNDERSCORED }
}

#[cold]
fn bad_line_start(byte: u8, fields: &Fields) -> Violation {
    match byte {
        b'\n' => Violation::BareLineFeed,
        b':' => Violation::FieldNameEmpty,
        b' ' | b'\t' if fields.lines.is_empty() => Violation::WhitespaceBeforeFields,
        b' ' | b'\t' => Violation::LineFolding,
        _ => Violation::FieldNameSyntax,
    }
}

#[cold]
fn bad_name_byte(byte: u8) -> Violation {
    match byte {
        b'\r' | b'\n' => Violation::FieldWithoutColon,
        _ => Violation::FieldNameSyntax,
    }
}

/// Marks the fields that `Connection` options name, but never those for framing, routing or identity (A23).
pub(crate) fn nominate(fields: &mut Fields, options: &[Span], buffer: &[u8]) {
    for option in options {
        let name = option.of(buffer);
        if PROTECTED.has(KnownHeader::classify(name)) {
            continue;
        }
        for line in &mut fields.lines {
            if line.name.of(buffer).eq_ignore_ascii_case(name) {
                line.flags |= NOMINATED;
                fields.any_flags |= NOMINATED;
            }
        }
    }
}
