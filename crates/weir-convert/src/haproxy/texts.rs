//! Texts that an ACL compares, as Weir writes patterns of hosts, paths and values.

use super::asks::Ask;
use super::criteria::Criterion;
use super::expressions::{literal, one_of, translated};

/// How texts are compared, and with what.
#[derive(Debug)]
pub struct Texts<'c> {
    method: &'c str,
    patterns: &'c [String],
    /// `(?i)`, or nothing.
    case: &'static str,
    /// Whether something has made the text lower or upper case before, so that some patterns never match.
    lowered: bool,
    /// Whether that was upper case.
    raised: bool,
}

/// Whether a text that was made lower or upper case is never this one.
fn is_never(pattern: &str, raised: bool) -> bool {
    match raised {
        true => pattern.contains(|c: char| c.is_ascii_lowercase()),
        false => pattern.contains(|c: char| c.is_ascii_uppercase()),
    }
}

/// Whether a text is upper case when it is compared.
fn is_raised(criterion: &Criterion) -> bool {
    let case = |name: &str| matches!(name, "lower" | "upper");
    let last = criterion.sample.converters.iter().rfind(|call| case(&call.name));
    last.is_some_and(|call| call.name == "upper")
}

impl<'c> Texts<'c> {
    /// Those of a criterion. `Err` says what there is nothing like.
    pub fn of(criterion: &'c Criterion, lowered: bool) -> Result<Texts<'c>, String> {
        let method = match criterion.method.as_str() {
            "" => "str",
            known @ ("str" | "beg" | "end" | "sub" | "dir" | "dom" | "reg" | "found" | "cnt") => known,
            "bool" => return Err("texts are no booleans".to_owned()),
            other => return Err(format!("a condition has no way to compare by `{other}`")),
        };
        let case = if criterion.ignore_case || lowered { "(?i)" } else { "" };
        if criterion.patterns.iter().any(|pattern| super::words::has_variable(pattern))
            && (method != "str" || !case.is_empty())
        {
            return Err("a variable of the environment is compared as a whole text alone".to_owned());
        }
        let (lowered, raised) = (lowered && !criterion.ignore_case, is_raised(criterion));
        Ok(Texts { method, patterns: &criterion.patterns, case, lowered, raised })
    }

    /// Whether only beginnings are compared.
    pub fn is_beginning(&self) -> bool {
        self.method == "beg"
    }

    /// The patterns that can match at all.
    fn patterns(&self) -> impl Iterator<Item = &'c String> {
        let (lowered, raised) = (self.lowered && self.method != "reg", self.raised);
        self.patterns.iter().filter(move |pattern| !lowered || !is_never(pattern, raised))
    }

    /// The paths that it is about; none where no path can match.
    pub fn path(&self) -> Result<Vec<Ask>, String> {
        if self.method == "found" {
            return Ok(vec![Ask::Path(vec!["/*".to_owned()])]);
        }
        let mut paths = Vec::new();
        for pattern in self.patterns() {
            if let Some(path) = self.one_path(pattern)?
                && !paths.contains(&path)
            {
                paths.push(path);
            }
        }
        Ok(if paths.is_empty() { Vec::new() } else { vec![Ask::Path(paths)] })
    }

    /// A path; `None` where it can never match.
    fn one_path(&self, pattern: &str) -> Result<Option<String>, String> {
        let case = self.case;
        if super::words::has_variable(pattern) {
            return Ok(Some(pattern.to_owned()));
        }
        // A path ends before the first `?`.
        if self.method != "reg" && pattern.contains('?') {
            return Ok(None);
        }
        let plain = case.is_empty() && is_plain(pattern);
        let rooted = pattern.starts_with('/');
        let escaped = literal(pattern);
        Ok(Some(match self.method {
            "str" if !rooted => return Ok(None),
            "str" if plain => pattern.to_owned(),
            "str" => format!("~{case}^{escaped}$"),
            "beg" if pattern.is_empty() => "/*".to_owned(),
            "beg" if !rooted => return Ok(None),
            "beg" if plain => format!("{pattern}*"),
            "beg" => format!("~{case}^{escaped}"),
            "end" if pattern.is_empty() => "/*".to_owned(),
            "end" if plain => format!("*{pattern}"),
            "end" => format!("~{case}{escaped}$"),
            "sub" if pattern.is_empty() => "/*".to_owned(),
            "sub" if plain => format!("*{pattern}*"),
            "sub" => format!("~{case}{escaped}"),
            "dir" => {
                let inner = literal(pattern.trim_matches('/'));
                if inner.is_empty() { "/*".to_owned() } else { format!("~{case}(?:^|/){inner}(?:/|$)") }
            }
            "reg" => {
                let expression = translated(pattern)?;
                let begins = expression.strip_prefix('^').unwrap_or("/");
                if begins.starts_with(|c: char| c.is_ascii_alphanumeric()) {
                    return Ok(None);
                }
                if expression.contains("\\?") {
                    return Err("a path is compared without its query (`\\?`)".to_owned());
                }
                format!("~{case}{expression}")
            }
            other => return Err(format!("paths are not compared by `{other}`")),
        }))
    }

    /// A pattern of values of a field, of which HAProxy compares each that commas divide; `None` where none
    /// can match.
    pub fn header(&self, by_comma: bool) -> Result<Option<String>, String> {
        if by_comma && self.patterns.iter().any(|pattern| super::words::has_variable(pattern)) {
            return Err(
                "a variable of the environment is compared with whole fields alone (`req.fhdr`)".to_owned()
            );
        }
        if !by_comma || matches!(self.method, "found" | "sub" | "reg") {
            return match (self.method, self.patterns().any(|pattern| pattern.contains(['^', '$']))) {
                ("reg", true) if by_comma => Ok(Some(self.anchored()?)),
                _ => self.value(),
            };
        }
        let one: Vec<String> = self.patterns().map(|pattern| literal(pattern)).collect();
        if one.is_empty() {
            return Ok(None);
        }
        let (case, one) = (self.case, one_of(&one));
        Ok(Some(match self.method {
            "str" => format!("~{case}(?:^|,)[ \\t]*{one}[ \\t]*(?:,|$)"),
            "beg" => format!("~{case}(?:^|,)[ \\t]*{one}"),
            "end" => format!("~{case}{one}[ \\t]*(?:,|$)"),
            "dir" => format!("~{case}(?:^|[,/])[ \\t]*{one}(?:[,/]|$)"),
            "dom" => format!("~{case}(?:^|[,./?: \\t]){one}(?:[,./?: \\t]|$)"),
            other => return Err(format!("fields are not compared by `{other}`")),
        }))
    }

    /// Expressions with anchors, which are those of each value that commas divide.
    fn anchored(&self) -> Result<String, String> {
        let mut expressions = Vec::new();
        for pattern in self.patterns() {
            let expression = translated(pattern)?;
            let (begins, rest) = match expression.strip_prefix('^') {
                Some(rest) => ("(?:^|,)[ \\t]*", rest),
                None => ("", expression.as_str()),
            };
            let (rest, ends) = match rest.strip_suffix('$').filter(|rest| !rest.ends_with('\\')) {
                Some(rest) => (rest, "[ \\t]*(?:,|$)"),
                None => (rest, ""),
            };
            let inner = rest.replace("\\^", "").replace("\\$", "").replace("[^", "[");
            let is_bound = !begins.is_empty() || !ends.is_empty();
            if inner.contains(['^', '$']) || (is_bound && !is_grouped(rest)) {
                return Err("an expression for a field has its anchors at its ends".to_owned());
            }
            expressions.push(format!("{begins}{rest}{ends}"));
        }
        Ok(format!("~{}{}", self.case, one_of(&expressions)))
    }

    /// A pattern of a whole value; `None` where none can match.
    pub fn value(&self) -> Result<Option<String>, String> {
        let case = self.case;
        if self.method == "found" {
            return Ok(Some("*".to_owned()));
        }
        let patterns: Vec<&String> = self.patterns().collect();
        if let ([one], true) = (patterns.as_slice(), case.is_empty())
            && is_plain_value(one)
        {
            match self.method {
                "str" => return Ok(Some((*one).clone())),
                "beg" => return Ok(Some(format!("{one}*"))),
                "end" => return Ok(Some(format!("*{one}"))),
                "sub" => return Ok(Some(format!("*{one}*"))),
                _ => {}
            }
        }
        if patterns.is_empty() {
            return Ok(None);
        }
        let escaped = || one_of(&patterns.iter().map(|pattern| literal(pattern)).collect::<Vec<_>>());
        Ok(Some(match self.method {
            "str" => format!("~{case}^{}$", escaped()),
            "beg" => format!("~{case}^{}", escaped()),
            "end" => format!("~{case}{}$", escaped()),
            "sub" => format!("~{case}{}", escaped()),
            "dir" => format!("~{case}(?:^|/){}(?:/|$)", escaped()),
            "dom" => format!("~{case}(?:^|[./?:]){}(?:[./?:]|$)", escaped()),
            "reg" => {
                let all: Result<Vec<String>, String> =
                    patterns.iter().map(|pattern| translated(pattern)).collect();
                format!("~{case}{}", one_of(&all?))
            }
            other => return Err(format!("values are not compared by `{other}`")),
        }))
    }
}

/// Whether alternatives (`|`) stand in a group of their own.
fn is_grouped(expression: &str) -> bool {
    let mut depth = 0_usize;
    let mut escaped = false;
    for c in expression.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return false,
            _ => {}
        }
    }
    true
}

/// Whether a text stands in a path pattern as it is.
fn is_plain(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.' | '-' | ',' | '=' | ';');
    !text.is_empty()
        && text.chars().all(good)
        && !text.contains("//")
        && !text.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Whether a text stands in a pattern of values as it is.
fn is_plain_value(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['~', '!', '*', ' ', '\t'])
        && !text.ends_with([' ', '\t'])
        && !text.contains(['*', '\n', '\r'])
        && !text.chars().any(char::is_control)
}

/// The hosts that a criterion is about, and what differs.
pub fn host(criterion: &Criterion, without_port: bool) -> Result<(Vec<Ask>, Vec<String>), String> {
    let mut notes = Vec::new();
    let (lowered, _) = criterion.sample.without_case();
    let method = if criterion.method.is_empty() { "str" } else { criterion.method.as_str() };
    if !criterion.ignore_case && !lowered && method != "found" {
        notes.push("hosts are compared without regard to case".to_owned());
    }
    if !without_port && matches!(method, "str" | "end" | "reg") {
        notes.push("hosts are compared without their port".to_owned());
    }
    if method == "found" {
        notes.push("a request without a host is answered with 400".to_owned());
        return Ok((vec![Ask::Path(vec!["/*".to_owned()])], notes));
    }
    let mut hosts: Vec<String> = Vec::new();
    for pattern in &criterion.patterns {
        let (name, port) = match pattern.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.contains(':') => {
                (name, true)
            }
            _ => (pattern.as_str(), false),
        };
        if super::words::has_variable(pattern) && method != "str" {
            return Err("a variable of the environment is compared as a whole text alone".to_owned());
        }
        if port {
            notes.push(format!("`{pattern}` is compared without its port"));
        }
        let is_exact = lowered && !criterion.ignore_case;
        if method == "str" && is_exact && is_never(name, is_raised(criterion)) {
            continue;
        }
        let one = match super::words::has_variable(name) {
            true => name.to_owned(),
            false => one_host(method, &name.to_ascii_lowercase(), pattern)?,
        };
        if !hosts.contains(&one) {
            hosts.push(one);
        }
    }
    Ok((if hosts.is_empty() { Vec::new() } else { vec![Ask::Host(hosts)] }, notes))
}

fn one_host(method: &str, name: &str, pattern: &str) -> Result<String, String> {
    let escaped = literal(name.trim_end_matches('.'));
    Ok(match method {
        "str" if is_host(name) => name.to_owned(),
        "str" => format!("~^{escaped}$"),
        "beg" => format!("~^{}", literal(name)),
        "end" if name.strip_prefix('.').is_some_and(is_host) => format!("*{name}"),
        "end" => format!("~{escaped}$"),
        "sub" => format!("~{}", literal(name)),
        "dom" => {
            let inner = literal(name.trim_matches(|c| matches!(c, '.' | '/' | '?' | ':')));
            format!("~(?:^|\\.){inner}(?:\\.|$)")
        }
        "reg" => format!("~{}", translated(pattern)?),
        other => return Err(format!("hosts are not compared by `{other}`")),
    })
}

/// Whether it is a host name or an IPv4 address.
fn is_host(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() < 64
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // What ends in a number is an address, or nothing.
    let ends_in_number =
        name.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    !name.is_empty()
        && name.len() < 254
        && name.split('.').all(label)
        && (!ends_in_number || name.parse::<std::net::Ipv4Addr>().is_ok())
}
