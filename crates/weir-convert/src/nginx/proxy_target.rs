//! `proxy_pass` and `grpc_pass`: whom to ask, and for what path.

use super::locations::{LocationKind, encoded};
use super::variables::{NginxPart, parts};

/// The address in a `proxy_pass`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTarget {
    /// `https` or `grpcs`.
    pub has_tls: bool,
    /// An upstream's name, or an address.
    pub authority: String,
    /// What stands behind it, from its first slash; `None` if nothing does.
    pub uri: Option<String>,
}

impl ProxyTarget {
    /// Reads the text of a `proxy_pass`, in which variables that never change have their values.
    ///
    /// # Errors
    /// It is none.
    pub fn of(text: &str) -> Result<ProxyTarget, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let has_tls = match scheme {
            "http" | "grpc" => false,
            "https" | "grpcs" => true,
            "$scheme" | "${scheme}" => return Err("the scheme is the client's".to_owned()),
            other => return Err(format!("`{other}` is not spoken towards backends")),
        };
        if let Some(socket) = rest.strip_prefix("unix:") {
            let (path, uri) = match socket.split_once(':') {
                Some((path, "")) => (path, None),
                Some((path, uri)) => (path, Some(uri.to_owned())),
                None => (socket, None),
            };
            return Ok(ProxyTarget { has_tls, authority: format!("unix:{path}"), uri });
        }
        // A variable behind the authority begins the path as a slash does.
        let request = ["${request_uri}", "$request_uri", "${uri}", "$uri"];
        let begins = request.iter().filter_map(|variable| rest.find(variable)).chain(rest.find('/')).min();
        let (authority, uri) = match begins {
            Some(at) => (&rest[..at], Some(rest[at..].to_owned())),
            None => (rest, None),
        };
        Ok(ProxyTarget { has_tls, authority: authority.to_owned(), uri })
    }

    /// nginx's `$proxy_host`: without the port where it is the usual one.
    pub fn proxy_host(&self) -> String {
        if self.authority.starts_with("unix:") {
            return "localhost".to_owned();
        }
        let usual = if self.has_tls { ":443" } else { ":80" };
        self.authority.strip_suffix(usual).unwrap_or(&self.authority).to_owned()
    }
}

/// What becomes of the path and query of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// They stay.
    Kept,
    /// The part of the path that the location's prefix matched gives way to this.
    Prefix(String),
    /// The whole path, with variables of nginx, and what becomes of the query.
    Whole(String, QueryChange),
}

/// What becomes of the query of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryChange {
    /// It stays.
    Kept,
    /// This takes its place.
    Replaced(String),
    /// This is added.
    Added(String),
}

/// What the URI of a `proxy_pass` does in a location, where the path was not rewritten before.
pub fn path_change(uri: Option<&str>, kind: &LocationKind) -> PathChange {
    let Some(uri) = uri else { return PathChange::Kept };
    let has_variables = parts(uri).iter().any(|part| matches!(part, NginxPart::Variable(_)));
    if has_variables {
        // The whole request is what it says, and nothing is added.
        return match uri.trim_start_matches("${request_uri}").trim_start_matches("$request_uri") {
            "" => PathChange::Kept,
            _ => {
                let keeps_query = ["$is_args$args", "${is_args}${args}", "?$args", "?${args}"];
                match keeps_query.iter().find_map(|end| uri.strip_suffix(end)) {
                    Some(path) => PathChange::Whole(path.to_owned(), QueryChange::Kept),
                    None => {
                        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
                        PathChange::Whole(path.to_owned(), QueryChange::Replaced(query.to_owned()))
                    }
                }
            }
        };
    }
    let (path, query) = match uri.split_once('?') {
        Some((path, query)) => (path, QueryChange::Added(query.to_owned())),
        None => (uri, QueryChange::Kept),
    };
    match kind {
        LocationKind::Prefix(prefix) if query == QueryChange::Kept => match encoded(prefix) == path {
            true => PathChange::Kept,
            false => PathChange::Prefix(path.to_owned()),
        },
        _ => PathChange::Whole(path.to_owned(), query),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_as_nginx_reads_it() {
        let of = |text: &str| ProxyTarget::of(text).unwrap();
        let target = of("http://app");
        assert_eq!((target.authority.as_str(), target.uri, target.has_tls), ("app", None, false));
        assert_eq!(of("https://10.0.0.1:8443/x/").uri.as_deref(), Some("/x/"));
        assert_eq!(of("http://unix:/run/a.sock:/x").uri.as_deref(), Some("/x"));
        assert_eq!(of("http://unix:/run/a.sock").authority, "unix:/run/a.sock");
        assert_eq!(of("http://app$request_uri").uri.as_deref(), Some("$request_uri"));
        assert_eq!(of("http://127.0.0.1:80/").proxy_host(), "127.0.0.1");
        assert!(ProxyTarget::of("ftp://x").is_err());
    }

    #[test]
    fn a_uri_replaces_the_prefix_of_its_location() {
        let prefix = LocationKind::Prefix("/api/".to_owned());
        assert_eq!(path_change(None, &prefix), PathChange::Kept);
        assert_eq!(path_change(Some("/"), &prefix), PathChange::Prefix("/".to_owned()));
        assert_eq!(path_change(Some("/api/"), &prefix), PathChange::Kept);
        assert_eq!(path_change(Some("$request_uri"), &prefix), PathChange::Kept);
        assert_eq!(
            path_change(Some("/v2$uri$is_args$args"), &prefix),
            PathChange::Whole("/v2$uri".to_owned(), QueryChange::Kept)
        );
        assert_eq!(
            path_change(Some("/x/$1"), &prefix),
            PathChange::Whole("/x/$1".to_owned(), QueryChange::Replaced(String::new()))
        );
        let exact = LocationKind::Exact("/a".to_owned());
        assert_eq!(path_change(Some("/b"), &exact), PathChange::Whole("/b".to_owned(), QueryChange::Kept));
    }
}
