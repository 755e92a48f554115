//! The reference page of the config file, written from the table of keys.

use std::fmt::Write as _;

use weir_config::keys::{Each, Key, Kind, Only, Planes, Table};
use weir_config::units::{show_byte_rate, show_duration, show_size};
use weir_config::{ROOT, default_text};

/// `docs/reference/config.md`, whole.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    let mut written: Vec<&str> = Vec::new();
    for table in ROOT.with_all_below() {
        if !written.contains(&table.path) {
            written.push(table.path);
            section(table, &mut page);
        }
    }
    page
}

const INTRODUCTION: &str = "\
# Config reference

<!-- Generated from the tables in crates/weir-config/src by `cargo xtask docs`; a test of xtask fails when this page is stale. -->

`weir.toml` is TOML. Durations are written `\"200ms\"`, `\"30s\"`, `\"2m\"`, `\"1h\"`, `\"1d\"`; sizes `\"512B\"`, `\"64KiB\"`, `\"1MiB\"`,
`\"2GiB\"` (powers of 1024) or `\"64KB\"`, `\"10MB\"`, `\"1GB\"` (powers of 1000); byte rates `\"100B/s\"`. A bare number is never a
duration or a size. Where a list is taken, a single value may stand for a list of one.

A file with mistakes is refused whole, and every mistake is listed. Keys marked *not built yet* are known but refused by this
version, so that nothing is silently ignored. Keys marked *restart* take force only after a restart (or USR2, but for
those of `[kernel]`); all others with a reload.
";

fn section(table: &Table, page: &mut String) {
    // Writing to a String cannot fail.
    let heading =
        if table.path.contains(['[', '{']) { format!("`{}`", table.path) } else { "The file".to_owned() };
    let _ = write!(
        page,
        "\n## {}\n\n{}\n\n| key | takes | default | meaning |\n|---|---|---|---|\n",
        heading, table.doc
    );
    for key in table.keys() {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            key.name,
            cell(&takes(key)),
            cell(&default(table, key)),
            cell(&meaning(key))
        );
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn takes(key: &Key) -> String {
    let mut text = match &key.kind {
        Kind::OneOrMany(Each::Word(words), _) => {
            let words: Vec<_> =
                words.iter().map(|word| format!("`\"{}\"` ({})", word.word, word.doc)).collect();
            format!("a list of {}", words.join(", "))
        }
        Kind::Word(words, _) => {
            let words: Vec<_> =
                words.iter().map(|word| format!("`\"{}\"` ({})", word.word, word.doc)).collect();
            words.join(", ")
        }
        Kind::BoolOrWord(_, words) => {
            let words = words.iter().map(|word| format!(", `\"{}\"` ({})", word.word, word.doc));
            format!("`true`, `false`{}", words.collect::<String>())
        }
        kind => kind.expected(),
    };
    if let Some((least, most, reason)) = bounds(&key.kind) {
        let _ = write!(text, ", {least} to {most}: {reason}");
    }
    text
}

/// Bounds and their reason.
fn bounds(kind: &Kind) -> Option<(String, String, &'static str)> {
    match kind {
        Kind::Duration(l) | Kind::DurationOrOff(l, _) => {
            Some((show_duration(l.least), show_duration(l.most), l.reason))
        }
        Kind::Size(l) => Some((show_size(l.least), show_size(l.most), l.reason)),
        Kind::Rate(l) => Some((show_byte_rate(l.least), show_byte_rate(l.most), l.reason)),
        Kind::Count(l) => Some((l.least.to_string(), l.most.to_string(), l.reason)),
        Kind::Factor(l) => Some((format!("{:?}", l.least), format!("{:?}", l.most), l.reason)),
        _ => None,
    }
}

fn default(table: &Table, key: &Key) -> String {
    if key.inherited && table.path.starts_with("[[") {
        return "as the listener".to_owned();
    }
    if key.required {
        return "required".to_owned();
    }
    match (key.default, default_text(&key.kind)) {
        ("", Some(text)) => format!("`{text}`"),
        (words, _) => match words {
            "" if key.kind.table().is_some() => "see below".to_owned(),
            "" => "none".to_owned(),
            code if code.starts_with('[') || code.starts_with('"') && code.matches('"').count() == 2 => {
                format!("`{code}`")
            }
            words => words.to_owned(),
        },
    }
}

fn meaning(key: &Key) -> String {
    let mut text = key.doc.to_owned();
    match key.only {
        Only::Any => {}
        Only::Http => text.push_str(" *http only*"),
        Only::Stream => text.push_str(" *http, tcp and mysql*"),
        Only::Routed => text.push_str(" *http and tcp*"),
        Only::Tcp => text.push_str(" *tcp only*"),
        Only::Transport => text.push_str(" *tcp and udp*"),
        Only::Udp => text.push_str(" *udp only*"),
        Only::Kept => text.push_str(" *http and mysql*"),
        Only::Mysql => text.push_str(" *mysql only*"),
    }
    match key.planes {
        Planes::All => {}
        Planes::Kernel => text.push_str(" *kernel plane only*"),
        Planes::Proxy(_) | Planes::ProxyTuning(_) => text.push_str(" *not on the kernel plane*"),
    }
    if key.restart {
        text.push_str(" *restart*");
    }
    if !key.built {
        text.push_str(" *Not built yet.*");
    }
    text
}
