//! `set-path`, `replace-path`, `set-query` and the like as `rewrite`.

use super::expressions::translated;
use super::maps::Maps;
use super::rules::Rewrite;
use super::samples::{Sample, constant, format};

/// What a rule changes. `Err` says what there is nothing like.
pub fn rewrite(name: &str, arguments: &[String], maps: &mut Maps) -> Result<(Rewrite, Vec<String>), String> {
    let first = arguments.first().map_or("", String::as_str);
    let second = arguments.get(1).map_or("", String::as_str);
    let no_query = vec!["the query is kept as it is".to_owned()];
    match name {
        "set-path" => set_path(first, maps),
        "replace-path" => replaced(first, second).map(|rewrite| (rewrite, Vec::new())),
        "replace-uri" | "replace-pathq" if !first.contains('?') => {
            replaced(first, second).map(|rewrite| (rewrite, no_query))
        }
        "set-query" => {
            let value = format(first, maps)?;
            let more = value.text.strip_prefix("$query&").filter(|more| !more.contains("$query"));
            if let Some(more) = more.map(str::to_owned) {
                return Ok((Rewrite { add_query: Some(more), ..Rewrite::default() }, Vec::new()));
            }
            let query = value.text.replace("$query", "");
            if query != value.text {
                return Err("a query with the old one in it would be `add_query`".to_owned());
            }
            Ok((Rewrite { query: Some(query), ..Rewrite::default() }, value.notes))
        }
        _ => Err(format!("`{name}` changes path and query at once")),
    }
}

/// `replace-path EXPRESSION FORMAT`: where the expression matches, the whole path becomes the format.
fn replaced(expression: &str, text: &str) -> Result<Rewrite, String> {
    let path = filled(text, 0)?;
    if !path.starts_with('/') {
        return Err("a path that is written begins with a slash".to_owned());
    }
    let pinned = Some(format!("~{}", translated(expression)?));
    Ok(Rewrite { pinned, path: Some(path), ..Rewrite::default() })
}

/// A text with `\1` and the like, as `$1`; the numbers are moved on by `shift`.
fn filled(text: &str, shift: u32) -> Result<String, String> {
    let mut written = String::new();
    let mut left = text.chars();
    while let Some(c) = left.next() {
        match c {
            '\\' => match left.next() {
                Some(digit) if digit.is_ascii_digit() => match digit.to_digit(10).unwrap_or(0) + shift {
                    0 => return Err("there is no `\\0`".to_owned()),
                    number @ 1..=9 => written.push_str(&format!("${number}")),
                    _ => return Err("there are no more than 9 groups".to_owned()),
                },
                Some(other) => written.push(other),
                None => return Err("it ends in a backslash".to_owned()),
            },
            '%' => return Err("a path that is replaced has no samples".to_owned()),
            c => written.push_str(&constant(&c.to_string())),
        }
    }
    Ok(written)
}

fn set_path(text: &str, maps: &mut Maps) -> Result<(Rewrite, Vec<String>), String> {
    if let Some(rewrite) = by_regsub(text)? {
        return Ok((rewrite, Vec::new()));
    }
    let value = format(text, maps)?;
    let path = value.text;
    if path.replace("$$", "").contains("$query") {
        return Err("a path has no query in it".to_owned());
    }
    if !path.starts_with('/') {
        return Err("a path that is written begins with a slash".to_owned());
    }
    Ok((Rewrite { path: Some(path), ..Rewrite::default() }, value.notes))
}

/// `%[path,regsub(^EXPRESSION,TEXT)]`, perhaps behind a text: the beginning of the path is replaced.
fn by_regsub(text: &str) -> Result<Option<Rewrite>, String> {
    let Some((before, rest)) = text.split_once("%[path,regsub(") else { return Ok(None) };
    let inner = rest.strip_suffix(']').ok_or("something stands behind the path")?;
    let sample = Sample::parse(&format!("path,regsub({inner}"))?;
    let [regsub] = sample.converters.as_slice() else {
        return Err("a path is converted once".to_owned());
    };
    let expression = translated(regsub.argument(0))?;
    let anchored = expression
        .strip_prefix('^')
        .ok_or("a part that is replaced stands at the beginning of the path (`^`)")?;
    if anchored.ends_with('$') || anchored.contains('|') {
        return Err("an expression for the beginning of a path has neither `$` nor `|`".to_owned());
    }
    let groups = u32::try_from(
        anchored.matches('(').count() - anchored.matches("(?").count() - anchored.matches("\\(").count(),
    )
    .unwrap_or(9);
    if groups >= 9 {
        return Err("there are no more than 9 groups".to_owned());
    }
    let path = format!("{}{}${}", constant(before), filled(regsub.argument(1), 0)?, groups + 1);
    if !path.starts_with('/') {
        return Err("a path that is written begins with a slash".to_owned());
    }
    let pinned = Some(format!("~^{anchored}(.*)$"));
    Ok(Some(Rewrite { pinned, path: Some(path), ..Rewrite::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, arguments: &[&str]) -> Result<(String, String), String> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let (rewrite, _) = rewrite(name, &arguments, &mut Maps::default())?;
        let to = rewrite.path.or(rewrite.query).or(rewrite.add_query);
        Ok((rewrite.pinned.unwrap_or_default(), to.unwrap_or_default()))
    }

    #[test]
    fn paths_are_replaced_by_their_groups() {
        for (name, arguments, pinned, path) in [
            ("replace-path", vec!["^/api/(.*)", "/\\1"], "~^/api/(.*)", "/$1"),
            ("set-path", vec!["/app%[path]"], "", "/app$path"),
            ("set-path", vec!["%[path,regsub(^/api/,/)]"], "~^/api/(.*)$", "/$1"),
            ("set-path", vec!["%[path,regsub(^/(v[0-9])/,/x/)]"], "~^/(v[0-9])/(.*)$", "/x/$2"),
            ("set-query", vec!["a=%[req.cook(a)]"], "", "a=$cookie.a"),
            ("set-query", vec!["%[query]&a=b"], "", "a=b"),
        ] {
            assert_eq!(written(name, &arguments), Ok((pinned.to_owned(), path.to_owned())), "{arguments:?}");
        }
        for (name, arguments) in [
            ("set-path", vec!["%[path]x"]),
            ("set-path", vec!["%[path,regsub(b,c)]"]),
            ("set-uri", vec!["/a"]),
            ("replace-path", vec!["(a)\\1", "/b"]),
        ] {
            written(name, &arguments).expect_err(name);
        }
    }
}
