//! **What do these bytes mean, and which bytes say this?**
//!
//! This crate parses HTTP heads, bodies and PROXY protocol headers into typed messages, and writes typed
//! messages as fresh bytes. It applies RFC 9112 strictly on both sides: framing that two readers could
//! understand differently is an error, never a guess. It never does I/O, reads a clock, draws random numbers,
//! picks a backend, or panics on input.
//!
//! Where to start reading: [`h1::parse_request`] turns bytes into a [`RequestHead`], [`body::BodyReader`]
//! says which of the following bytes are its body, [`forward::write_request`] and [`forward::request_fields`]
//! write what a backend gets, and [`Violation`] lists everything a peer can do wrong. The types in
//! [`message`] and [`body`] are the same for all versions: [`section`] fills them from decoded HTTP/2 and
//! HTTP/3 fields. HTTP/3 frames, streams and QPACK are in [`h3`]; what the `h2` crate does not report about
//! HTTP/2 is in [`hpack`]. Parsers for the values of single fields (dates, entity tags, `cache-control` …)
//! are in [`values`].
#![forbid(unsafe_code)]

pub mod added;
pub mod body;
mod body_length;
mod edits;
pub mod form;
pub mod forward;
pub mod h1;
pub mod h3;
pub mod hpack;
mod huffman;
mod huffman_codes;
mod identity;
mod known;
pub mod limits;
pub mod message;
mod own;
pub mod path;
pub mod proxy_protocol;
mod response_head;
mod scan;
mod scheme;
pub mod section;
mod sink;
mod stream_error;
mod trailers;
pub mod values;
mod violation;
pub mod websocket;

pub use added::{AddedField, AddedFieldError, SetCookie};
pub use body::{BodyReader, BodyStep};
pub use body_length::BodyLength;
pub use edits::{DroppedNames, FieldEdits, ReplaceValues, ReplacedValue, ValueEdits};
pub use forward::{
    CacheFields, Conditions, Query, RequestContext, ResponseContext, SentFraming, Underscores,
    request_fields, response_fields, write_request, write_response,
};
pub use h1::encode::write_decimal as encode_decimal;
pub use h1::target::is_host;
pub use h1::{Progress, parse_request, parse_response};
pub use identity::{ClientIdentity, write_address};
pub use known::KnownHeader;
pub use limits::{InterimAllowance, Limits, TrailerLimits};
pub use message::{Field, Method, RequestHead, ResponseHead, Span, TargetForm, Version};
pub use own::{ErrorForm, OwnAnswer, OwnResponse, continue_fields};
pub use scheme::Scheme;
pub use section::{Asked, RequestBuilder, ResponseBuilder, TrailerBuilder};
pub use stream_error::StreamError;
pub use trailers::Trailers;
pub use violation::Violation;
