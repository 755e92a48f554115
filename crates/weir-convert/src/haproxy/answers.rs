//! Rules that answer: refusals, redirects, texts from the config.

use super::actions::Became;
use super::headers::{Act, Edit, Outcome, Side, outcome};
use super::maps::Maps;
use super::monitors;
use super::output::{Keys, said};
use super::rules::{Answer, StepAct};
use super::samples::{Value, constant, format};
use super::sections::Line;

/// An answer, and what differs.
pub type Told = (Answer, Vec<String>);

/// A refusal with this status.
pub fn refusal(status: u16) -> Answer {
    let mut table = Keys::default();
    table.set("status", status.to_string());
    let (body, fields) = (Keys::default(), Vec::new());
    Answer { key: "respond", table: table.inline(), status, body, fields, takes_page: true }
}

/// `monitor-uri`: 200.
pub fn well(line: &Line) -> Result<Became, String> {
    let when = Some(monitors::asked(line).ok_or("it names no path")?);
    let mut table = Keys::default();
    table.set("status", "200");
    table.set("body", said("<html><body><h1>200 OK</h1>\nService ready.\n</body></html>\n"));
    table.set("content_type", said("text/html"));
    let (table, body, fields) = (table.inline(), Keys::default(), Vec::new());
    let answer = Answer { key: "respond", table, status: 200, body, fields, takes_page: false };
    Ok(Became {
        acts: vec![StepAct::Answer(answer)],
        what: "the first route, which answers 200".to_owned(),
        notes: vec!["also with a query behind the path; such requests are in the log".to_owned()],
        when,
    })
}

/// `monitor fail`: 503, before the other one.
pub fn unwell() -> Became {
    Became {
        acts: vec![StepAct::Unwell(refusal(503))],
        what: "a route that answers 503 before that of `monitor-uri`".to_owned(),
        ..Became::default()
    }
}

/// `deny`, `tarpit`, `return` with their arguments. Those of a rule that refuses get the page of their status
/// where they say no content.
pub fn answer(words: &[String], default: u16, maps: &mut Maps) -> Result<Told, String> {
    let mut status = default;
    let mut table = Keys::default();
    let mut fields = Vec::new();
    let mut notes = Vec::new();
    let mut is_default = default >= 400;
    let mut left = words.iter();
    while let Some(word) = left.next() {
        let mut next =
            || left.next().map(String::as_str).ok_or_else(|| format!("`{word}` lacks its argument"));
        match word.as_str() {
            "status" | "deny_status" => {
                status = next()?
                    .parse()
                    .ok()
                    .filter(|status| (200..600).contains(status))
                    .ok_or("its status is none")?;
            }
            "content-type" => match next()? {
                kind if kind.is_ascii() && kind.contains('/') => table.set("content_type", said(kind)),
                kind => notes.push(format!("`{kind}` is no media type")),
            },
            "string" => table.set("body", said(next()?)),
            "lf-string" => {
                let text = next()?;
                let Value { text: variables, .. } = format(text, maps)?;
                if variables.replace("$$", "").contains('$') {
                    return Err("an answer from the config is a text without variables".to_owned());
                }
                table.set("body", said(&variables.replace("$$", "$")));
            }
            "hdr" => {
                let name = next()?.to_owned();
                let value = format(next()?, maps)?;
                notes.extend(value.notes);
                if let Outcome::Edit(edit) = outcome(Side::Response, &name, Act::Set(value.text))? {
                    fields.push(edit);
                }
            }
            "default-errorfiles" => is_default = true,
            "file" | "lf-file" | "errorfile" | "errorfiles" => {
                next()?;
                is_default = false;
                notes.push("its content is no file: the answer is empty".to_owned());
            }
            other => return Err(format!("an answer has no `{other}`")),
        }
    }
    let mut all = Keys::default();
    all.set("status", status.to_string());
    table.entries().iter().for_each(|(key, value)| all.set(key, value.clone()));
    let takes_page = is_default && table.is_empty();
    Ok((Answer { key: "respond", table: all.inline(), status, body: table, fields, takes_page }, notes))
}

/// `redirect` with its arguments.
pub fn redirect(words: &[String], maps: &mut Maps) -> Result<Told, String> {
    let (mut to, mut code) = (None, 302_u16);
    let (mut drops_query, mut fields, mut notes) = (false, Vec::new(), Vec::new());
    let mut left = words.iter();
    while let Some(word) = left.next() {
        let mut next =
            || left.next().map(String::as_str).ok_or_else(|| format!("`{word}` lacks its argument"));
        match word.as_str() {
            kind @ ("location" | "prefix" | "scheme") => to = Some((kind, format(next()?, maps)?)),
            "code" => {
                let text = next()?;
                code = match text.parse() {
                    Ok(code @ (301 | 302 | 303 | 307 | 308)) => code,
                    _ => return Err(format!("a redirect has no status `{text}`")),
                };
            }
            "drop-query" => drops_query = true,
            "keep-query" => notes.push("`keep-query` is not looked at".to_owned()),
            "ignore-empty" => {}
            "append-slash" => notes.push("no slash is appended".to_owned()),
            "set-cookie" => {
                let value = constant(&format!("{}; path=/;", next()?));
                fields.push(Edit { name: "set-cookie".to_owned(), act: Act::Add(value) });
            }
            "clear-cookie" => {
                let value = constant(&format!("{}; Max-Age=0; path=/;", next()?));
                fields.push(Edit { name: "set-cookie".to_owned(), act: Act::Add(value) });
            }
            other => return Err(format!("a redirect has no `{other}`")),
        }
    }
    let (kind, Value { text, notes: differing }) = to.ok_or("it leads nowhere")?;
    notes.extend(differing);
    let rest = if drops_query { "$path" } else { "$path$query" };
    let to = match kind {
        "location" => text,
        "prefix" if text == "/" => rest.to_owned(),
        "prefix" => format!("{text}{rest}"),
        _ => format!("{text}://$host{rest}"),
    };
    let to = target(&to)?;
    let mut table = Keys::default();
    table.set("to", said(&to));
    table.set("status", code.to_string());
    let (table, body) = (table.inline(), Keys::default());
    let answer = Answer { key: "redirect", table, status: code, body, fields, takes_page: false };
    Ok((answer, notes))
}

/// A target as Weir takes it. `Err` where a client could choose the site.
fn target(to: &str) -> Result<String, String> {
    if to.is_empty() {
        return Err("it leads nowhere".to_owned());
    }
    let mut encoded = String::with_capacity(to.len());
    for c in to.chars() {
        match c {
            c if super::words::has_variable(c.encode_utf8(&mut [0; 4])) => encoded.push(c),
            c if !c.is_ascii_graphic()
                || matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}') =>
            {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    encoded.push_str(&format!("%{byte:02X}"));
                }
            }
            c => encoded.push(c),
        }
    }
    let behind = encoded.split_once("://").map_or("", |(_, rest)| rest);
    let site = behind.split('/').next().unwrap_or_default();
    let mut left = site.replace("$host", "").replace("$server_name", "");
    // A path begins with a slash, and ends the site.
    if let Some(at) = left.find("$path") {
        left.truncate(at);
    }
    if left.contains('$') && !left.starts_with("$map.") {
        return Err("what a client sends would choose the site that it leads to".to_owned());
    }
    if let Some(rest) = encoded.strip_prefix('$')
        && !["map.", "path", "scheme"].iter().any(|name| rest.starts_with(name))
    {
        return Err("what a client sends would choose where it leads".to_owned());
    }
    Ok(encoded)
}

/// The step of an answer.
pub fn step(answer: Answer) -> StepAct {
    StepAct::Answer(answer)
}
