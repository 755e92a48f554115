//! Samples (fetch and converters) and log-formats, as texts with Weir's variables.

use super::maps::{Maps, kind_of};

/// `req.hdr(host),lower,map(F,default)`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What is fetched.
    pub fetch: Call,
    /// What it is converted by, in order.
    pub converters: Vec<Call>,
}

/// A name with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name.
    pub name: String,
    /// The arguments; none where there are no parentheses.
    pub arguments: Vec<String>,
}

impl Call {
    /// An argument; empty where there is none.
    pub fn argument(&self, at: usize) -> &str {
        self.arguments.get(at).map_or("", String::as_str)
    }
}

impl Sample {
    /// Reads one. `Err` says what is wrong.
    pub fn parse(text: &str) -> Result<Sample, String> {
        let mut calls = Vec::new();
        let mut rest = text.trim();
        loop {
            let (call, left) = call(rest)?;
            calls.push(call);
            match left.strip_prefix(',') {
                Some(left) => rest = left.trim_start(),
                None if left.trim().is_empty() => break,
                None => return Err(format!("`{left}` stands behind a sample")),
            }
        }
        let fetch = calls.remove(0);
        Ok(Sample { fetch, converters: calls })
    }

    /// Whether a converter makes the text lower case, and the sample without such converters.
    pub fn without_case(&self) -> (bool, Sample) {
        let mut plain = self.clone();
        plain.converters.retain(|call| !matches!(call.name.as_str(), "lower" | "upper"));
        (plain.converters.len() != self.converters.len(), plain)
    }

    /// Whether it is the host that is asked for, and whether its port is taken off.
    pub fn is_host(&self) -> Option<bool> {
        let is_host = matches!(self.fetch.name.as_str(), "hdr" | "req.hdr" | "req.fhdr")
            && self.fetch.argument(0).eq_ignore_ascii_case("host");
        let takes_port = |call: &Call| match call.name.as_str() {
            "host_only" => true,
            "field" | "word" => call.argument(0) == "1" && matches!(call.argument(1), ":" | "\\:"),
            "regsub" => call.argument(0).starts_with(":[0-9]") || call.argument(0).starts_with(":.*"),
            _ => false,
        };
        let without = self.converters.iter().any(takes_port);
        let known = |call: &Call| takes_port(call) || matches!(call.name.as_str(), "lower" | "upper");
        (is_host && self.converters.iter().all(known)).then_some(without)
    }
}

/// The first call of a text, and what stands behind it.
fn call(text: &str) -> Result<(Call, &str), String> {
    let end = text.find(['(', ',']).unwrap_or(text.len());
    let name = text[..end].trim().to_owned();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')) {
        return Err(format!("`{text}` is no sample"));
    }
    if !text[end..].starts_with('(') {
        return Ok((Call { name, arguments: Vec::new() }, &text[end..]));
    }
    let mut arguments = vec![String::new()];
    let mut quote = None;
    let mut depth = 0_usize;
    let mut escaped = false;
    for (at, c) in text[end + 1..].char_indices() {
        let last = arguments.len() - 1;
        match c {
            c if escaped => {
                if c != ',' {
                    arguments[last].push('\\');
                }
                arguments[last].push(c);
                escaped = false;
                continue;
            }
            '\\' if quote != Some('\'') => escaped = true,
            c if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            '(' if quote.is_none() => {
                depth += 1;
                arguments[last].push(c);
            }
            ')' if quote.is_none() && depth > 0 => {
                depth -= 1;
                arguments[last].push(c);
            }
            ')' if quote.is_none() => return Ok((Call { name, arguments }, &text[end + 2 + at..])),
            ',' if quote.is_none() && depth == 0 => arguments.push(String::new()),
            c => arguments[last].push(c),
        }
    }
    Err(format!("`{text}` lacks a `)`"))
}

/// A text in Weir's language of values, and what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The text, with variables.
    pub text: String,
    /// What differs; none where it is the same.
    pub notes: Vec<String>,
}

/// A text without variables, in the language of values.
pub fn constant(text: &str) -> String {
    text.replace('$', "$$")
}

/// A sample as a variable. `Err` says what there is nothing like.
pub fn variable(sample: &Sample, maps: &mut Maps) -> Result<Value, String> {
    if let Some(at) = sample.converters.iter().position(|call| kind_of(&call.name).is_some()) {
        let before = Sample { fetch: sample.fetch.clone(), converters: sample.converters[..at].to_vec() };
        if let Some(after) = sample.converters.get(at + 1) {
            return Err(format!("nothing is done to what a map says (`{}`)", after.name));
        }
        let (name, notes) = maps.named(&before, &sample.converters[at])?;
        return Ok(Value { text: format!("$map.{name}"), notes });
    }
    if let Some(without_port) = sample.is_host() {
        let note = "the host without its port";
        let notes = if without_port { Vec::new() } else { vec![note.to_owned()] };
        return Ok(Value { text: "$host".to_owned(), notes });
    }
    if let Some(converter) = sample.converters.first() {
        return Err(format!("there is no converter `{}`", converter.name));
    }
    fetched(&sample.fetch)
}

/// A fetch without converters.
fn fetched(fetch: &Call) -> Result<Value, String> {
    let argument = fetch.argument(0);
    let mut notes = Vec::new();
    let member = |family: &str, name: &str| {
        let good =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if good {
            Ok(format!("${family}.{name}"))
        } else {
            Err(format!("`{name}` cannot be named in a variable"))
        }
    };
    let text = match fetch.name.as_str() {
        "src" => "$client_ip".to_owned(),
        "src_port" => "$client_port".to_owned(),
        "dst_port" => "$listener_port".to_owned(),
        "path" => "$path".to_owned(),
        "pathq" | "url" | "capture.req.uri" => "$path$query".to_owned(),
        "method" | "capture.req.method" => "$method".to_owned(),
        "base" => "$host$path".to_owned(),
        "query" => {
            notes.push("`$query` has its `?`".to_owned());
            "$query".to_owned()
        }
        "hdr" | "req.hdr" | "req.fhdr" if fetch.arguments.len() == 1 => {
            notes
                .push("several values of a field stand together (`a, b`), HAProxy takes the last".to_owned());
            member("header", &argument.to_ascii_lowercase())?
        }
        "cook" | "req.cook" => member("cookie", argument)?,
        "url_param" | "urlp" => member("query", argument)?,
        "ssl_fc_sni" | "req.ssl_sni" => "$server_name".to_owned(),
        "ssl_fc_protocol" => "$tls_version".to_owned(),
        "ssl_c_s_dn" if fetch.arguments.is_empty() => {
            notes.push("the subject is written as RFC 4514 has it".to_owned());
            "$client_cert_subject".to_owned()
        }
        "unique-id" | "uuid" => "$request_id".to_owned(),
        "str" => constant(argument),
        "http_auth_user" => "$user".to_owned(),
        name => return Err(format!("there is no variable for `{name}`")),
    };
    Ok(Value { text, notes })
}

/// A log-format as it stands in rules: a text with `%[sample]` and short names such as `%ci`.
///
/// `Err` says what there is nothing like.
pub fn format(text: &str, maps: &mut Maps) -> Result<Value, String> {
    let mut value = Value::default();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        value.text.push_str(&constant(&rest[..at]));
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            value.text.push('%');
            rest = behind;
            continue;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner).ok_or_else(|| format!("`%[{inner}` lacks its `]`"))?;
            let one = variable(&Sample::parse(&inner[..end])?, maps)?;
            // Weir's query has its `?`.
            if one.text == "$query" && value.text.ends_with('?') {
                value.text.pop();
            } else {
                value.notes.extend(one.notes);
            }
            value.text.push_str(&one.text);
            rest = &inner[end + 1..];
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let text =
            short(&rest[..end]).ok_or_else(|| format!("there is no variable for `%{}`", &rest[..end]))?;
        value.text.push_str(text);
        rest = &rest[end..];
    }
    value.text.push_str(&constant(rest));
    Ok(value)
}

/// Where the bracket of `%[` closes.
pub fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match c {
            c if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            '[' if quote.is_none() => depth += 1,
            ']' if quote.is_none() && depth == 0 => return Some(at),
            ']' if quote.is_none() => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Short names that mean something for a request, besides in logs.
fn short(name: &str) -> Option<&'static str> {
    Some(match name {
        "ci" => "$client_ip",
        "cp" => "$client_port",
        "fp" => "$listener_port",
        "ID" => "$request_id",
        "HM" => "$method",
        "HP" => "$path",
        "HU" | "HPO" => "$path$query",
        "HQ" => "$query",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Result<String, String> {
        format(text, &mut Maps::default()).map(|value| value.text)
    }

    #[test]
    fn formats_become_texts_with_variables() {
        for (from, to) in [
            ("https://%[req.hdr(host),field(1,:)]%[path]", "https://$host$path"),
            ("%ci:%cp", "$client_ip:$client_port"),
            ("100%% $5", "100% $$5"),
            ("%[req.cook(user)]", "$cookie.user"),
            ("%[path,map(/etc/moved.map)]", "$map.moved"),
            ("/new?%[query]", "/new$query"),
            ("%[str(a,b)]", "a"),
        ] {
            assert_eq!(written(from).as_deref(), Ok(to), "{from}");
        }
        for unknown in ["%[rand(100)]", "%[path,regsub(a,b)]", "%B", "%[path", "%[var(txn.a)]"] {
            written(unknown).expect_err(unknown);
        }
    }

    #[test]
    fn arguments_may_have_commas_and_parentheses_of_their_own() {
        let sample = Sample::parse(r"path,regsub('^/(a|b),',x),field(1,\,)").expect("a sample");
        assert_eq!(sample.converters[0].arguments, ["^/(a|b),", "x"]);
        assert_eq!(sample.converters[1].arguments, ["1", ","]);
        for broken in ["", "a(", "a)b", "a(b)c", ",a"] {
            Sample::parse(broken).expect_err(broken);
        }
    }
}
