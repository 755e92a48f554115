//! What a certificate authority is asked for, and by whom.

use super::address::host_name;
use super::http::uri_characters;
use super::{Shape, Value, refuse};
use crate::report::quote;
use crate::units::Refused;

/// `acme.directory`
pub(crate) static DIRECTORY_URL: Shape =
    Shape::new("a URL", "https://acme-v02.api.letsencrypt.org/directory", directory);
/// `acme.domains`
pub(crate) static DOMAIN: Shape = Shape::new("a domain", "shop.example", domain);
/// `acme.contact`
pub(crate) static CONTACT: Shape = Shape::new("a mail address", "mailto:ops@shop.example", contact);

fn directory(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not the URL of a directory", quote(text));
    let Some(rest) = text.strip_prefix("https://") else {
        let hint = match text.split_once("://") {
            Some(("http", rest)) => {
                format!("keys are agreed on with it, so only over TLS: \"https://{rest}\"")
            }
            Some(_) => "expected a URL that begins with `https://`".to_owned(),
            None => format!("did you mean \"https://{text}\"?"),
        };
        return refuse(message, hint);
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if authority.contains('@') || text.contains('#') {
        return refuse(message, "a directory has neither a user (`@`) nor a fragment (`#`)");
    }
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return refuse(message, "expected a port from 1 to 65535 behind the `:`");
    }
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_address = inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    if host.is_empty() {
        return refuse(message, "expected a host behind `https://`");
    }
    if !is_address {
        host_name(host).map_err(|hint| Refused { message: message.clone(), hint })?;
    }
    uri_characters(rest).map_err(|hint| Refused { message, hint })?;
    Ok(Value::Text(text.to_owned()))
}

fn domain(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a domain that a certificate can be got for", quote(text));
    if text.starts_with("*.") {
        return refuse(
            message,
            "a wildcard is proved by DNS, which Weir does not do: list the names, or get that certificate by other means",
        );
    }
    let lower = text.to_ascii_lowercase();
    if lower.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() {
        return refuse(message, "expected a name, not an address");
    }
    if let Some(name) = lower.strip_suffix('.') {
        return refuse(message, format!("leave out the last dot: \"{name}\""));
    }
    if let Some((_, rest)) = lower.split_once("://") {
        let host = rest.split(['/', ':']).next().unwrap_or(rest);
        return refuse(message, format!("leave out the scheme: \"{host}\""));
    }
    if lower.is_empty() || lower.contains('_') {
        return refuse(message, "expected a host name such as \"shop.example\"");
    }
    host_name(&lower).map_err(|hint| Refused { message, hint })?;
    Ok(Value::Text(lower))
}

fn contact(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a contact", quote(text));
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let is_address = address.split_once('@').is_some_and(|(user, host)| {
        let plain =
            |c: char| c.is_ascii_graphic() && !matches!(c, ',' | ';' | '<' | '>' | '"' | '?' | '&' | '%');
        !user.is_empty() && user.chars().all(plain) && host_name(host).is_ok() && !host.is_empty()
    });
    match (text.starts_with("mailto:"), is_address) {
        (true, true) => Ok(Value::Text(text.to_owned())),
        (false, true) => refuse(message, format!("a contact is a URL: \"mailto:{text}\"")),
        _ => refuse(message, "expected a mail address such as \"mailto:ops@shop.example\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(read: Result<Value, Refused>) -> String {
        read.unwrap_err().hint
    }

    #[test]
    fn a_directory_is_a_url_with_tls() {
        for good in ["https://ca.example/directory", "https://127.0.0.1:14000/dir", "https://[::1]:1/d?x=1"] {
            assert!(directory(good).is_ok(), "{good}");
        }
        assert!(hint(directory("http://ca.example/d")).ends_with("\"https://ca.example/d\""));
        assert_eq!(hint(directory("ca.example/d")), "did you mean \"https://ca.example/d\"?");
        for bad in [
            "",
            "https://",
            "https://a@b/",
            "https://b/#x",
            "https://b:0/",
            "https://b:x/",
            "https://b /",
            "ftp://b/",
        ] {
            assert!(directory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_domain_is_one_name_in_lower_case() {
        assert!(matches!(domain("Shop.Example"), Ok(Value::Text(name)) if name == "shop.example"));
        assert!(hint(domain("*.shop.example")).contains("wildcard"));
        assert!(hint(domain("10.0.0.1")).contains("not an address"));
        assert_eq!(hint(domain("https://shop.example/x")), "leave out the scheme: \"shop.example\"");
        for bad in ["", "shop.example.", "a_b.example", "[::1]", "a b", "sh\u{f6}p.example"] {
            assert!(domain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_contact_is_a_mail_url() {
        assert!(contact("mailto:ops@shop.example").is_ok());
        assert_eq!(hint(contact("ops@shop.example")), "a contact is a URL: \"mailto:ops@shop.example\"");
        for bad in
            ["", "mailto:", "mailto:ops", "mailto:a,b@shop.example", "mailto:a@shop.example?cc=b", "tel:1"]
        {
            assert!(contact(bad).is_err(), "{bad}");
        }
    }
}
