//! Fetches one JWK set: one request, with limits on time and size.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, HeaderMap, LOCATION};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use weir_config::{FetchedKeys, KeySet, PoolProtocol, PoolTls};
use weir_tls::ClientTls;

use crate::blocking::blocking;
use crate::outgoing;

/// Longest JWK set, in bytes: the same as for a file with keys.
const SET_BYTES: usize = 1 << 20;

/// A provider's answer.
pub(super) struct Answer {
    pub set: KeySet,
    /// How long it is valid, according to the provider.
    pub max_age: Option<Duration>,
}

/// Fetches the set.
///
/// # Errors
/// Why there is none, in readable form, without the query of the URL.
pub(super) async fn set(config: &FetchedKeys) -> Result<Answer, String> {
    let fetched = tokio::time::timeout(config.timeout, ask(config)).await;
    fetched.unwrap_or_else(|_| Err(format!("no whole answer within {:?}", config.timeout)))
}

async fn ask(config: &FetchedKeys) -> Result<Answer, String> {
    let uri: Uri = config.url.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    let is_secure = uri.scheme_str() == Some("https");
    let tls = if is_secure { Some(tls(config).await?) } else { None };
    let stream = outgoing::connect(&uri, tls.as_ref()).await?;
    let request = Request::get("/")
        .header(ACCEPT, "application/jwk-set+json, application/json, */*;q=0.1")
        // A cache on the way could hide that a key was revoked.
        .header(CACHE_CONTROL, "no-cache")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let (body, max_age) = outgoing::ask(stream, &uri, request, read).await?;
    Ok(Answer { set: KeySet::read(&body)?, max_age })
}

/// Reads the authorities at each fetch: their file may have changed, and keeping all of the system's takes
/// memory.
async fn tls(config: &FetchedKeys) -> Result<ClientTls, String> {
    let config = PoolTls { ca: config.ca.clone(), ..PoolTls::default() };
    let loaded = blocking(move || ClientTls::load(&config, PoolProtocol::H1)).await;
    loaded.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Evaluates the answer. A redirect counts as no answer, since its target is not what the operator
/// configured.
async fn read(answer: Response<Incoming>) -> Result<(Bytes, Option<Duration>), String> {
    let (head, body) = answer.into_parts();
    if head.status.is_redirection()
        && let Some(to) = head.headers.get(LOCATION)
    {
        let to = String::from_utf8_lossy(to.as_bytes()).chars().take(200).collect::<String>();
        return Err(format!("it answered {} to {to:?}, which is not followed", head.status));
    }
    if head.status != StatusCode::OK {
        return Err(format!("it answered {}", head.status));
    }
    let too_long = || format!("its answer is longer than {SET_BYTES} bytes");
    let length =
        head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > SET_BYTES as u64) {
        return Err(too_long());
    }
    let body = Limited::new(body, SET_BYTES).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => too_long(),
        false => format!("its answer breaks off: {error}"),
    })?;
    Ok((body.to_bytes(), max_age(&head.headers)))
}

/// How long an answer is valid (RFC 9111 section 5.2.2.1); the shortest of several values.
fn max_age(fields: &HeaderMap) -> Option<Duration> {
    let lines = fields.get_all(CACHE_CONTROL).into_iter().filter_map(|line| line.to_str().ok());
    let directives = lines.flat_map(|line| line.split(',')).map(str::trim);
    let seconds = directives.filter_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| value.trim_matches('"').parse().ok())?
    });
    seconds.min().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_an_answer_holds_is_the_shortest_that_it_says() {
        let of = |lines: &[&'static str]| {
            let mut fields = HeaderMap::new();
            for line in lines {
                fields.append(CACHE_CONTROL, line.parse().unwrap());
            }
            max_age(&fields).map(|age| age.as_secs())
        };
        assert_eq!(of(&["public, Max-Age=15, stale-while-revalidate=15"]), Some(15));
        assert_eq!(of(&["max-age=\"60\"", "max-age=30"]), Some(30));
        assert_eq!((of(&[]), of(&["no-store"]), of(&["max-age=x, s-maxage=1"])), (None, None, None));
    }
}
