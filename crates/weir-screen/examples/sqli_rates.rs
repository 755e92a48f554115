//! Prints how many values of a file the SQL-injection screen takes for injections, and which those are or are
//! not.
//!
//! `cargo run --release -p weir-screen --example sqli_rates -- [--caught | --passed] FILE…`. A value is a
//! line, with `\n`, `\\` and `\xNN`; lines that begin with `#` are skipped.
#![expect(clippy::disallowed_methods, reason = "a measurement reads its files and arguments")]

use std::process::ExitCode;

use weir_screen::sqli::Screen;

fn main() -> ExitCode {
    let mut show = None;
    let mut screen = Screen::default();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--caught" => show = Some(true),
            "--passed" => show = Some(false),
            file => {
                let Ok(text) = std::fs::read(file) else {
                    eprintln!("{file} can't be read; expected a file of values, one a line");
                    return ExitCode::FAILURE;
                };
                let (mut all, mut caught) = (0_u64, 0_u64);
                for line in text.split(|&byte| byte == b'\n') {
                    if line.is_empty() || line.starts_with(b"#") {
                        continue;
                    }
                    let value = unescaped(line);
                    let finding = screen.value(&value);
                    all += 1;
                    caught += u64::from(finding.is_some());
                    if show == Some(finding.is_some()) {
                        let why = finding.map_or(String::new(), |finding| {
                            format!("[{} {}] ", finding.reason.word(), finding.context_sentence())
                        });
                        println!("{why}{}", String::from_utf8_lossy(line));
                    }
                }
                println!(
                    "{file}: {caught} of {all} are injections, {:.3} %",
                    caught as f64 * 100.0 / all as f64
                );
            }
        }
    }
    ExitCode::SUCCESS
}

/// A value as it is written in the corpora.
fn unescaped(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        match (byte, line.get(at + 1)) {
            (b'\\', Some(b'n')) => out.push(b'\n'),
            (b'\\', Some(b'\\')) => out.push(b'\\'),
            (b'\\', Some(b'x')) => {
                let digits = line.get(at + 2..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
                out.push(digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or(b'?'));
                at += 2;
            }
            _ => {
                out.push(byte);
                at += 1;
                continue;
            }
        }
        at += 2;
    }
    out
}
