//! The layout of the raw samples' file: one sample per line, so that a file of thousands can be read, and two
//! files can be compared.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

/// Objects and arrays down to this depth are spread over lines; deeper ones, which are the samples, have one
/// line each.
const SPREAD: usize = 10;

/// `value` as JSON. Err if it can't be written as JSON, which only a defect can cause.
pub fn of(value: &impl Serialize) -> io::Result<String> {
    let mut text = Vec::new();
    let layout = Layout { depth: 0, spread: PrettyFormatter::new(), dense: CompactFormatter };
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, layout))?;
    text.push(b'\n');
    String::from_utf8(text).map_err(io::Error::other)
}

struct Layout {
    depth: usize,
    spread: PrettyFormatter<'static>,
    dense: CompactFormatter,
}

/// Methods that delegate to the layout of the current depth.
macro_rules! by_depth {
    ($($name:ident($($argument:ident: $kind:ty),*) $(before $before:expr)? $(, after $after:expr)?;)*) => {$(
        fn $name<W: ?Sized + Write>(&mut self, writer: &mut W $(, $argument: $kind)*) -> io::Result<()> {
            $($before(&mut self.depth);)?
            let written = if self.depth > SPREAD {
                self.dense.$name(writer $(, $argument)*)
            } else {
                self.spread.$name(writer $(, $argument)*)
            };
            $($after(&mut self.depth);)?
            written
        }
    )*};
}

impl Formatter for Layout {
    by_depth! {
        begin_array() before |depth: &mut usize| *depth += 1;
        end_array(), after |depth: &mut usize| *depth -= 1;
        begin_array_value(first: bool);
        end_array_value();
        begin_object() before |depth: &mut usize| *depth += 1;
        end_object(), after |depth: &mut usize| *depth -= 1;
        begin_object_key(first: bool);
        begin_object_value();
        end_object_value();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_lies_deep_stands_in_one_line_and_means_the_same() {
        let sample = json!({ "round": 1, "figures": { "rate": 2.5, "curve": [[1, 2], []] } });
        let mut nested = json!([sample, sample]);
        for _ in 1..SPREAD {
            nested = json!([nested]);
        }
        let text = of(&nested).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), nested);
        let samples: Vec<&str> = text.lines().filter(|line| line.contains("round")).map(str::trim).collect();
        let line = r#"{"figures":{"curve":[[1,2],[]],"rate":2.5},"round":1}"#;
        assert_eq!(samples, [format!("{line},"), line.to_owned()]);
        assert_eq!(text.lines().count(), 2 * SPREAD + 2);
    }
}
