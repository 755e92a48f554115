//! Fuzzes the SQL-injection screen: no panic, the same answer twice, a bounded time, and requests of any
//! bytes in any place.
//!
//! `cargo run --release -p weir-screen --example fuzz_sqli -- --seconds 60`; `WEIR_SEED` repeats a run.

#[path = "../../weir-http/examples/fuzzing/mod.rs"]
mod fuzzing;

use std::process::ExitCode;

use weir_screen::sqli::{BodyKind, Found, Reason, Screen, Unreadable};

const SEEDS: &[&[u8]] = &[
    b"1' union select null,concat(0x3a,user()),3 from information_schema.tables where table_name like 'a%'-- -",
    b"x\" or (\"a\"=\"a\" and sleep(5)) or \"1\"=\"1",
    b"1; declare @s varchar(99); exec master..xp_cmdshell 'dir' -- x",
    b"id=1%2527+or+%25201=1&name=O'Reilly&x[]=%u0027;drop+table+a",
    b"{\"a\": [\"1\\u0027 or 1=1\", {\"b' or 1=1\": null}], \"c\": \"\\\\\\\"\"}",
    b"--B\r\nContent-Disposition: form-data; name=\"a\"; filename=\"b' or 1=1\"\r\n\r\nx\r\n--B--\r\n",
    b"/news/1/**/union/**/select/**/1,2/*!50000from*/users#",
    b"a=b; c=\"%7B%22d%22%3A%22' or 1=1%22%7D\"; e=f",
    b"case when 1 between 2 and 3 then 4 else 5 end in boolean mode) procedure analyse(1,2)",
    b"The boys' room is 5' x 7\" -- and select is a word; isn't it?",
];

const PIECES: &[&[u8]] = &[
    b"'",
    b"\"",
    b"`",
    b"(",
    b")",
    b" or ",
    b" and ",
    b"1=1",
    b"--",
    b"#",
    b"/*",
    b"*/",
    b"/*!50000",
    b";",
    b" union select ",
    b"(select ",
    b" from ",
    b" where ",
    b"case ",
    b" end",
    b"@@version",
    b"0x41",
    b"1e5",
    b"$$",
    b"[a]",
    b"\\",
    b"%27",
    b"%2527",
    b"&#39;",
    b"\xef\xbc\x87",
    b"\xc0\xa7",
    b"\0",
    b"sleep(5)",
    b".",
    b"..",
    b"::",
    b"||",
    b"&",
    b"=",
    b"\r\n--B",
    b"{",
    b"[",
    b"null",
    b" like ",
    b" between ",
    b" is not ",
];

fn main() -> ExitCode {
    let mut screen = Screen::default();
    fuzzing::run("sqli", SEEDS, PIECES, move |bytes, draws| {
        let place = draws.below(9);
        let ask = |screen: &mut Screen| -> Result<Option<Found>, Unreadable> {
            Ok(match place {
                0 => screen.path(bytes),
                1 => screen.query(bytes),
                2 => screen.header(b"cookie", bytes),
                3 => screen.header(b"referer", bytes),
                4 => screen.header(b"user-agent", bytes),
                5 => screen.body(&BodyKind::Form, bytes)?,
                6 => screen.body(&BodyKind::Json, bytes)?,
                7 => screen.body(&BodyKind::Multipart(b"B"[..].into()), bytes)?,
                _ => {
                    let kind = BodyKind::of(std::iter::once(bytes), std::iter::empty())?;
                    kind.map_or(Ok(None), |kind| screen.body(&kind, bytes))?
                }
            })
        };
        let first = ask(&mut screen);
        // Verdicts of earlier values must not show.
        let second = ask(&mut Screen::default());
        if first != second {
            return Err(format!("used screen says {first:?}, new one {second:?}"));
        }
        let first = first.ok().flatten();
        let reason = first
            .as_ref()
            .and_then(|found| Reason::ALL.iter().position(|reason| *reason == found.finding.reason));
        if let Some(found) = &first
            && found.to_string().chars().any(char::is_control)
        {
            return Err("the sentence about it holds control characters".to_owned());
        }
        Ok(place as u64 * 100 + reason.map_or(0, |reason| 1 + reason as u64))
    })
}
