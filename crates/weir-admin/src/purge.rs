//! `POST /v1/cache/purge`

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use weir_proxy::http::cache::Purge;

use crate::api::{Error, ok};
use weir_control::control::Control;

/// What to purge.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PurgeRequest {
    host: Option<String>,
    path: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    soft: bool,
}

pub(crate) fn purge(control: &Control, request: &PurgeRequest) -> Result<Response, Error> {
    let purge = read(request).map_err(Error::bad_request)?;
    let compiled = control.compiled();
    let Some(cache) = &compiled.cache else {
        return Err(Error(
            StatusCode::NOT_FOUND,
            "not_found",
            "no route has a `cache`: nothing is kept".to_owned(),
        ));
    };
    let count = cache.purge(&purge, request.soft);
    tracing::info!(count, soft = request.soft, ?purge, "purged");
    Ok(ok(&json!({ "purged": count, "soft": request.soft })))
}

fn read(request: &PurgeRequest) -> Result<Purge, String> {
    let bytes = |text: &String| -> Box<[u8]> { text.as_bytes().into() };
    let host = request.host.as_ref().map(bytes);
    if let Some(path) =
        request.path.as_ref().or(request.prefix.as_ref()).filter(|path| !path.starts_with('/'))
    {
        return Err(format!("`{path}` is not a path: expected one that begins with `/`"));
    }
    match (&request.path, &request.prefix, &request.tag, request.all) {
        (None, None, Some(tag), false) if host.is_none() => Ok(Purge::Tag(bytes(tag))),
        (None, None, None, true) if host.is_none() => Ok(Purge::All),
        (Some(path), None, None, false) => {
            let bare = path.split('?').next().unwrap_or_default();
            let normal = weir_proxy::http::normal_path(bare)?;
            Ok(Purge::Path { host, path: normal.into() })
        }
        (None, Some(prefix), None, false) => Ok(Purge::Prefix { host, prefix: bytes(prefix) }),
        (None, None, None, false) if host.is_some() => Ok(Purge::Prefix { host, prefix: Box::default() }),
        (None, None, None, false) => {
            Err("nothing is named: expected `host`, `path`, `prefix`, `tag` or `\"all\": true`".to_owned())
        }
        _ => {
            Err("expected one of `path`, `prefix`, `tag` and `all`; `host` goes with the first two"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Purge, String> {
        read(&serde_json::from_str(text).map_err(|error: serde_json::Error| error.to_string())?)
    }

    #[test]
    fn what_is_named_is_what_is_purged() {
        let host = || Some(b"a.example".as_slice().into());
        for (text, expected) in [
            (r#"{"path": "/a%7e"}"#, Purge::Path { host: None, path: b"/a~".as_slice().into() }),
            (
                r#"{"host": "a.example", "path": "/a?b"}"#,
                Purge::Path { host: host(), path: b"/a".as_slice().into() },
            ),
            (
                r#"{"host": "a.example", "prefix": "/a"}"#,
                Purge::Prefix { host: host(), prefix: b"/a".as_slice().into() },
            ),
            (r#"{"host": "a.example"}"#, Purge::Prefix { host: host(), prefix: Box::default() }),
            (r#"{"tag": "news"}"#, Purge::Tag(b"news".as_slice().into())),
            (r#"{"all": true, "soft": true}"#, Purge::All),
        ] {
            assert_eq!(read_text(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_order_that_names_nothing_or_too_much_is_refused() {
        for text in [
            "{}",
            r#"{"soft": true}"#,
            r#"{"all": true, "tag": "a"}"#,
            r#"{"path": "/a", "prefix": "/"}"#,
            r#"{"hosts": "a"}"#,
            r#"{"path": "a"}"#,
        ] {
            assert!(read_text(text).is_err(), "{text}");
        }
    }
}
