//! Texts with variables: from nginx's to Weir's.

use std::collections::BTreeMap;

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NginxPart {
    /// Fixed text.
    Text(String),
    /// A variable, by its name without the `$`.
    Variable(String),
}

/// Splits a text at its variables: `$name`, `${name}`, `$1`.
pub fn parts(text: &str) -> Vec<NginxPart> {
    let mut found = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        plain.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, next) = match braced {
            Some((name, next)) => (name, next),
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = match after.starts_with(|c: char| c.is_ascii_digit()) {
                    // `$12` is `$1` and a 2.
                    true => 1,
                    false => after.find(|c| !is_name(c)).unwrap_or(after.len()),
                };
                (&after[..end], &after[end..])
            }
        };
        rest = next;
        if name.is_empty() {
            plain.push('$');
            continue;
        }
        if !plain.is_empty() {
            found.push(NginxPart::Text(std::mem::take(&mut plain)));
        }
        found.push(NginxPart::Variable(name.to_owned()));
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        found.push(NginxPart::Text(plain));
    }
    found
}

/// The variable, if a text is one and nothing else.
pub fn single_variable(text: &str) -> Option<String> {
    match parts(text).as_slice() {
        [NginxPart::Variable(name)] => Some(name.clone()),
        _ => None,
    }
}

/// What is known where a text stands.
#[derive(Clone, Debug, Default)]
pub struct NginxPlace {
    /// The server's first name; empty for one without.
    pub server_name: String,
    /// Whether its listener has TLS.
    pub is_tls: bool,
    /// Whether its listener asks clients for certificates.
    pub has_client_ca: bool,
    /// Whether a request's user is known there.
    pub has_user: bool,
    /// Variables with a value that never changes (`set`), by name.
    pub constants: BTreeMap<String, String>,
    /// The names of the groups of the expression that the path matched, in their order.
    pub groups: Vec<String>,
    /// How many of these groups there are.
    pub group_count: usize,
    /// Whether a group has the whole path, by its number.
    pub whole_path: Option<usize>,
    /// What `valid_referers` says there.
    pub referers: Vec<String>,
    /// How many maps have divided the requests that come there.
    pub divided: usize,
    /// nginx's `$proxy_host`; empty where nothing is forwarded.
    pub proxy_host: String,
    /// Weir's names of maps, by those of nginx's variables.
    pub maps: BTreeMap<String, String>,
}

impl NginxPlace {
    /// The text with the values of variables that never change in their places.
    pub fn constant(&self, text: &str) -> String {
        let mut out = String::new();
        for part in parts(text) {
            match part {
                NginxPart::Text(text) => out.push_str(&text),
                NginxPart::Variable(name) => match self.constants.get(&name) {
                    Some(value) => out.push_str(value),
                    None => out.push_str(&format!("${{{name}}}")),
                },
            }
        }
        out
    }

    /// The text in Weir's language of values. `Err` is the name of a variable that Weir lacks there.
    ///
    /// The query: `?$args`, `$is_args$args` and a last `$request_uri` are written `$query`.
    pub fn template(&self, text: &str) -> Result<String, String> {
        let text = self.constant(text);
        let all = parts(&text);
        let mut out = String::new();
        let mut at = 0;
        while let Some(part) = all.get(at) {
            at += 1;
            match part {
                NginxPart::Text(text) => {
                    let before_args = matches!(
                        all.get(at),
                        Some(NginxPart::Variable(name)) if is_query(name)
                    );
                    match text.strip_suffix('?').filter(|_| before_args) {
                        Some(text) => out.push_str(&text.replace('$', "$$")),
                        None => out.push_str(&text.replace('$', "$$")),
                    }
                    if before_args && !text.ends_with('?') {
                        return Err("args".to_owned());
                    }
                }
                NginxPart::Variable(name) if name == "is_args" => match all.get(at) {
                    Some(NginxPart::Variable(next)) if is_query(next) => {}
                    _ => return Err("is_args".to_owned()),
                },
                NginxPart::Variable(name) => {
                    let value = self.variable(name)?;
                    if let Some(NginxPart::Text(next)) = all.get(at)
                        && runs_into(&value, next)
                    {
                        return Err(name.clone());
                    }
                    out.push_str(&value);
                }
            }
        }
        Ok(out)
    }

    /// One variable, as Weir writes it.
    pub fn variable(&self, name: &str) -> Result<String, String> {
        let lacking = || Err(name.to_owned());
        if let Some(map) = self.maps.get(name) {
            return Ok(format!("$map.{map}"));
        }
        if let Some(number) = self.group(name) {
            return match (self.whole_path == Some(number), number <= self.group_count.min(9)) {
                (true, _) => Ok("$path".to_owned()),
                (false, true) => Ok(format!("${number}")),
                (false, false) => lacking(),
            };
        }
        Ok(match name {
            "remote_addr" | "binary_remote_addr" | "realip_remote_addr" => "$client_ip".to_owned(),
            "remote_port" => "$client_port".to_owned(),
            "scheme" => "$scheme".to_owned(),
            "host" => "$host".to_owned(),
            "http_host" => "$header.host".to_owned(),
            "request_method" => "$method".to_owned(),
            "uri" | "document_uri" => "$path".to_owned(),
            "request_uri" => "$path$query".to_owned(),
            "args" | "query_string" => "$query".to_owned(),
            "request_id" => "$request_id".to_owned(),
            "server_port" => "$listener_port".to_owned(),
            "server_name" => self.server_name.replace('$', "$$"),
            "proxy_host" if !self.proxy_host.is_empty() => self.proxy_host.clone(),
            "ssl_server_name" if self.is_tls => "$server_name".to_owned(),
            "ssl_protocol" if self.is_tls => "$tls_version".to_owned(),
            "ssl_client_s_dn" if self.has_client_ca => "$client_cert_subject".to_owned(),
            "remote_user" if self.has_user => "$user".to_owned(),
            "https" => (if self.is_tls { "on" } else { "" }).to_owned(),
            _ => {
                for (prefix, family) in [("http_", "header"), ("cookie_", "cookie"), ("arg_", "query")] {
                    if let Some(member) = name.strip_prefix(prefix).filter(|member| !member.is_empty()) {
                        let member =
                            if family == "header" { member.replace('_', "-") } else { member.to_owned() };
                        return Ok(format!("${family}.{member}"));
                    }
                }
                return lacking();
            }
        })
    }

    /// The number of a group, by it or its name.
    fn group(&self, name: &str) -> Option<usize> {
        match name.parse::<usize>() {
            Ok(number) if number > 0 => Some(number),
            _ => self.groups.iter().position(|group| group == name).map(|at| at + 1),
        }
    }
}

fn is_query(name: &str) -> bool {
    matches!(name, "args" | "query_string")
}

/// Whether a text behind a variable would be taken for a part of its name: Weir's have no braces.
fn runs_into(value: &str, next: &str) -> bool {
    let last = value.rsplit('$').next().unwrap_or_default();
    if !value.contains('$') || last.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let of_family = last.contains('.');
    next.starts_with(|c: char| {
        c.is_ascii_alphanumeric() || c == '_' || (c == '-' && of_family) || (c == '.' && last == "query")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_weirs_names() {
        let place = NginxPlace {
            server_name: "shop.example".to_owned(),
            constants: BTreeMap::from([("up".to_owned(), "app".to_owned())]),
            groups: vec!["id".to_owned(), String::new()],
            group_count: 2,
            ..NginxPlace::default()
        };
        for (nginx, weir) in [
            ("https://$host$request_uri", "https://$host$path$query"),
            ("https://$server_name$uri?$args", "https://shop.example$path$query"),
            ("/x$is_args$args", "/x$query"),
            ("$http_x_real_ip/$cookie_a", "$header.x-real-ip/$cookie.a"),
            ("http://${up}_1", "http://app_1"),
            ("/$id/$2x", "/$1/$2x"),
            ("100$", "100$$"),
        ] {
            assert_eq!(place.template(nginx).as_deref(), Ok(weir), "{nginx}");
        }
        for (nginx, bad) in
            [("$upstream_addr", "upstream_addr"), ("$3", "3"), ("a$args", "args"), ("${host}x", "host")]
        {
            assert_eq!(place.template(nginx), Err(bad.to_owned()), "{nginx}");
        }
    }
}
