//! Converts heads between the `h2` crate's types and Weir's.

use std::io;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use weir_http::section::{Asked, RequestBuilder, ResponseBuilder, TrailerBuilder};
use weir_http::{Limits, RequestHead, ResponseHead, Scheme, TrailerLimits, Trailers, Version, Violation};

/// Reads a request; its text is appended to `text`. `scheme` is that of the connection: for a request without
/// `:authority` the `h2` crate does not give out the scheme that was sent.
pub fn read_request(
    parts: &Parts,
    scheme: Scheme,
    is_whole: bool,
    limits: &Limits,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
) -> Result<(), Violation> {
    let mut builder = RequestBuilder::new(Version::Http2, limits, head, text);
    builder.field(b":method", parts.method.as_str().as_bytes())?;
    let is_without_authority = parts.uri.authority().is_none() && parts.method != Method::CONNECT;
    let implied = is_without_authority.then(|| scheme.word());
    if let Some(scheme) = parts.uri.scheme_str().or(implied) {
        builder.field(b":scheme", scheme.as_bytes())?;
    }
    if let Some(authority) = parts.uri.authority() {
        builder.field(b":authority", authority.as_str().as_bytes())?;
    }
    if let Some(path) = parts.uri.path_and_query() {
        builder.field(b":path", path.as_str().as_bytes())?;
    }
    if let Some(protocol) = parts.extensions.get::<h2::ext::Protocol>() {
        builder.field(b":protocol", protocol.as_str().as_bytes())?;
    }
    for (name, value) in &parts.headers {
        builder.field(name.as_str().as_bytes(), value.as_bytes())?;
    }
    builder.finish(is_whole)
}

/// Reads a response, interim or final; its text is appended to `text`.
pub fn read_response(
    response: &Response<()>,
    is_whole: bool,
    limits: &Limits,
    asked: Asked<'_>,
    head: &mut ResponseHead,
    text: &mut Vec<u8>,
) -> Result<(), Violation> {
    let mut builder = ResponseBuilder::new(Version::Http2, limits, asked, head, text);
    builder.field(b":status", response.status().as_str().as_bytes())?;
    for (name, value) in response.headers() {
        builder.field(name.as_str().as_bytes(), value.as_bytes())?;
    }
    builder.finish(is_whole)
}

/// Reads trailers.
pub fn read_trailers(map: &HeaderMap, limits: TrailerLimits) -> Result<Box<Trailers>, Violation> {
    let mut builder = TrailerBuilder::new(limits);
    for (name, value) in map {
        builder.field(name.as_str().as_bytes(), value.as_bytes())?;
    }
    Ok(builder.finish())
}

/// Converts trailers for sending.
pub fn write_trailers<'a>(fields: impl IntoIterator<Item = weir_http::Field<'a>>) -> io::Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for field in fields {
        push(&mut map, field.name, field.value)?;
    }
    Ok(map)
}

/// A response's head that is being built. The first error is kept for [`ResponseParts::into_response`].
#[derive(Default)]
pub struct ResponseParts {
    response: Response<()>,
    error: Option<io::Error>,
}

impl ResponseParts {
    /// Appends a field; `:status` is one too.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        let put = match name {
            b":status" => StatusCode::from_bytes(value)
                .map(|status| *self.response.status_mut() = status)
                .map_err(io::Error::other),
            _ => push(self.response.headers_mut(), name, value),
        };
        if let Err(error) = put {
            self.error.get_or_insert(error);
        }
    }

    /// The head in the form that `h2` sends.
    pub fn into_response(self) -> io::Result<Response<()>> {
        match self.error {
            None => Ok(self.response),
            Some(error) => Err(error),
        }
    }
}

/// A request's head that is being built. The first error is kept for [`RequestParts::into_request`].
pub struct RequestParts {
    request: Request<()>,
    error: Option<io::Error>,
    scheme: Vec<u8>,
    authority: Vec<u8>,
    path: Vec<u8>,
}

impl Default for RequestParts {
    fn default() -> RequestParts {
        let (scheme, authority, path) = Default::default();
        RequestParts { request: Request::new(()), error: None, scheme, authority, path }
    }
}

impl RequestParts {
    /// Appends a field; pseudo-headers come first.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        if let Err(error) = self.put(name, value) {
            self.error.get_or_insert(error);
        }
    }

    fn put(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        match name {
            b":method" => *self.request.method_mut() = Method::from_bytes(value).map_err(io::Error::other)?,
            b":scheme" => self.scheme = value.to_vec(),
            b":authority" => self.authority = value.to_vec(),
            b":path" => self.path = value.to_vec(),
            b":protocol" => {
                let protocol = std::str::from_utf8(value).map_err(io::Error::other)?;
                self.request.extensions_mut().insert(h2::ext::Protocol::from(protocol));
            }
            _ => push(self.request.headers_mut(), name, value)?,
        }
        Ok(())
    }

    /// The head in the form that `h2` sends.
    ///
    /// # Errors
    /// The parts do not make a URI that the `http` crate accepts.
    pub fn into_request(self) -> io::Result<Request<()>> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut uri = Uri::builder();
        if !self.scheme.is_empty() {
            uri = uri.scheme(&self.scheme[..]);
        }
        if !self.authority.is_empty() {
            uri = uri.authority(&self.authority[..]);
        }
        if !self.path.is_empty() {
            uri = uri.path_and_query(&self.path[..]);
        }
        let mut request = self.request;
        *request.uri_mut() = uri.build().map_err(io::Error::other)?;
        *request.version_mut() = http::Version::HTTP_2;
        Ok(request)
    }
}

/// The values were checked when they were received or configured. If the `http` crate still refuses one, that
/// is an error, and the field does not silently vanish.
fn push(map: &mut HeaderMap, name: &[u8], value: &[u8]) -> io::Result<()> {
    let name = HeaderName::from_bytes(name).map_err(io::Error::other)?;
    let mut value = HeaderValue::from_bytes(value).map_err(io::Error::other)?;
    // Its value is never the same twice: in the encoder's table it would only push out others.
    value.set_sensitive(name == "x-request-id");
    map.try_append(name, value).map_err(io::Error::other)?;
    Ok(())
}
