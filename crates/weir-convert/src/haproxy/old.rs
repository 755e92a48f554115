//! Rules of HAProxy before 2.1, which are about whole lines of a request, by what they are called since.

/// The rule as it is written now, where it is one of those that people have: `reqrep` of the path or of the
/// host, and what takes fields out. One that refuses requests becomes a rule whose condition nobody knows.
pub fn present(words: Vec<String>) -> Vec<String> {
    let rule = match words[0].as_str() {
        "reqrep" | "reqirep" => replaced(&words).or_else(|| of_field("http-request", &words)),
        "rsprep" | "rspirep" => of_field("http-response", &words),
        "reqdel" | "reqidel" => removed("http-request", &words),
        "rspdel" | "rspidel" => removed("http-response", &words),
        "reqdeny" | "reqideny" | "reqtarpit" | "reqitarpit" => {
            let mut rule = vec!["http-request".to_owned(), "deny".to_owned(), "if".to_owned()];
            rule.extend(["{", words[0].as_str(), "}"].map(str::to_owned));
            Some(rule)
        }
        _ => None,
    };
    rule.unwrap_or(words)
}

/// `reqrep ^([^\ :]*)\ /old/(.*) \1\ /new/\2`, or `reqirep ^Host:.* Host:\ NAME`.
fn replaced(words: &[String]) -> Option<Vec<String>> {
    let (search, new) = (words.get(1)?, words.get(2)?);
    let condition = words.get(3..).unwrap_or_default();
    let mut rule = vec!["http-request".to_owned()];
    let lower = search.to_ascii_lowercase();
    if let (Some(rest), Some(host)) = (lower.strip_prefix("^host:"), after_host(new)) {
        if !matches!(rest, "" | ".*" | " .*" | "(.*)" | " (.*)" | ".*$" | " .*$") || host.contains('\\') {
            return None;
        }
        rule.extend(["set-header".to_owned(), "Host".to_owned(), host.to_owned()]);
    } else {
        let methods = ["^([^ :]*) ", "^([^ ]*) ", "^(.*) ", "^([^\\ :]*) ", "^([^\\ ]*) "];
        let path = methods.iter().find_map(|front| search.strip_prefix(front))?;
        let target = new.strip_prefix("\\1 ")?;
        if path.contains(' ')
            || target.contains([' ', '?'])
            || !path.starts_with('/')
            || !target.starts_with('/')
        {
            return None;
        }
        // The first group was the method.
        let mut shifted = String::new();
        let mut rest = target;
        while let Some(at) = rest.find('\\') {
            let number =
                rest[at + 1..].chars().next()?.to_digit(10)?.checked_sub(1).filter(|number| *number > 0)?;
            shifted.push_str(&format!("{}\\{number}", &rest[..at]));
            rest = &rest[at + 2..];
        }
        shifted.push_str(rest);
        rule.extend(["replace-path".to_owned(), format!("^{path}"), shifted]);
    }
    rule.extend(condition.iter().cloned());
    Some(rule)
}

/// `rspirep ^Location:\ http://(.*) Location:\ https://\1`, where the name of the field stays.
fn of_field(rule: &str, words: &[String]) -> Option<Vec<String>> {
    let (search, new) = (words.get(1)?.strip_prefix('^')?, words.get(2)?);
    let ((name, before), (same, after)) = (search.split_once(':')?, new.split_once(':')?);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_name || !name.eq_ignore_ascii_case(same) {
        return None;
    }
    // Of the line, the blanks behind the colon are none of the value.
    let before = ["\\s*", "[ ]*", " *", " "].iter().find_map(|blank| before.strip_prefix(blank))?;
    let case = if words[0].contains("irep") { "(?i)" } else { "" };
    let expression = format!("{case}^{}", before.trim_start_matches('^'));
    let mut rule = vec![rule.to_owned(), "replace-header".to_owned(), name.to_owned(), expression];
    rule.push(after.trim().to_owned());
    rule.extend(words.get(3..).unwrap_or_default().iter().cloned());
    Some(rule)
}

fn after_host(new: &str) -> Option<&str> {
    let (name, value) = new.split_once(':')?;
    name.eq_ignore_ascii_case("host").then(|| value.trim())
}

/// `rspidel ^Server:.*`
fn removed(rule: &str, words: &[String]) -> Option<Vec<String>> {
    let name = words.get(1)?.strip_prefix('^')?;
    let name = name.split(':').next()?;
    let name = name.strip_suffix(".*").unwrap_or(name);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let mut rule = vec![rule.to_owned(), "del-header".to_owned(), name.to_owned()];
    rule.extend(words.get(2..).unwrap_or_default().iter().cloned());
    is_name.then_some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(words: &[&str]) -> String {
        present(words.iter().map(|word| (*word).to_owned()).collect()).join(" ")
    }

    #[test]
    fn rules_about_lines_are_rules_about_paths_and_fields() {
        assert_eq!(
            now(&["reqrep", "^([^ :]*) /printer/(.*)", "\\1 /\\2", "if", "a"]),
            "http-request replace-path ^/printer/(.*) /\\1 if a"
        );
        assert_eq!(now(&["reqirep", "^Host:", "Host: a.example"]), "http-request set-header Host a.example");
        assert_eq!(now(&["rspidel", "^Server:.*"]), "http-response del-header Server");
        assert_eq!(
            now(&["rspirep", "^Location: http://(.*)", "Location: https://\\1"]),
            "http-response replace-header Location (?i)^http://(.*) https://\\1"
        );
        assert_eq!(now(&["reqdeny", "^x"]), "http-request deny if { reqdeny }");
        for left in [
            ["reqrep", "^Cookie:(.*)", "x"],
            ["reqrep", "^([^ :]*) /a(.*) HTTP", "\\1 /\\2"],
            ["reqdel", ".*", ""],
        ] {
            assert_eq!(now(&left), left.join(" "));
        }
    }
}
