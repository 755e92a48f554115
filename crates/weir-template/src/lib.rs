//! **Templates: text with variables that are filled in once a request is known.**
//!
//! The one language for values: text with variables such as `$client_ip` or `$header.x-tenant`, compiled once
//! to a list of pieces and rendered per request. Header fields, redirects, hosts towards backends, and keys
//! of hashes and limits are all written in it. This crate does no I/O, does not depend on requests (a
//! [`Source`] supplies the values), and does not decide what a value is used for.
//!
//! Where to start reading: [`Template::parse`], then [`Template::render`]; the names are in [`Variable`].
#![forbid(unsafe_code)]

mod clean;
mod outcome;
mod parse;

pub use clean::clean_field_value;
pub use outcome::Outcome;
pub use parse::Mistake;

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Variable {
    /// `$client_ip`: the client's address, the same that limits and the log use.
    ClientIp,
    /// `$client_port`: the client's port; empty if a proxy reported none.
    ClientPort,
    /// `$scheme`: `http` or `https`.
    Scheme,
    /// `$host`: the requested host, without its port.
    Host,
    /// `$method`: as sent.
    Method,
    /// `$path`: in the normal form in which routes compare it.
    Path,
    /// `$query`: as sent, with its `?`; empty if there is none.
    Query,
    /// `$request_id`: the value of `x-request-id`.
    RequestId,
    /// `$listener_port`: the port that the client connected to.
    ListenerPort,
    /// `$server_name`: the name in the client's TLS greeting, in lower case.
    ServerName,
    /// `$tls_version`: `TLSv1.2` or `TLSv1.3`.
    TlsVersion,
    /// `$client_cert_subject`: the subject of the client's certificate (RFC 4514).
    ClientCertSubject,
    /// `$user`: the authenticated user; empty before authentication, and where there is none.
    User,
    /// `$header.NAME`: the value of the field; several lines are joined by `, `. The name is in lower case.
    Header(Box<str>),
    /// `$cookie.NAME`: the value of the first cookie of that name.
    Cookie(Box<str>),
    /// `$query.NAME`: the value of the first parameter of that name, as sent: nothing is decoded.
    Parameter(Box<str>),
    /// `$map.NAME`: the value that the map of that name gives for the request.
    Map(Box<str>),
    /// `$claim.NAME`: a claim of the token that authorised the request; `a.b` is the claim `b` within `a`.
    Claim(Box<str>),
    /// `$1` to `$9`: the match of a capture group.
    Capture(u8),
    /// A fact that is known only at the end; in log lines only.
    Outcome(Outcome),
    /// `$response_header.NAME`: the value of the field in the response; in log lines only. The name is in
    /// lower case.
    ResponseHeader(Box<str>),
}

/// The names of all variables without a family, for messages.
pub const NAMES: [&str; 13] = [
    "client_ip",
    "client_port",
    "scheme",
    "host",
    "method",
    "path",
    "query",
    "request_id",
    "listener_port",
    "server_name",
    "tls_version",
    "client_cert_subject",
    "user",
];

/// The families of variables: each is followed by a dot and a name.
pub const FAMILIES: [&str; 5] = ["header", "cookie", "query", "map", "claim"];

/// The family that exists only in log lines.
pub const LINE_FAMILY: &str = "response_header";

impl Variable {
    /// The name as written in a template, without the `$`.
    pub fn name(&self) -> String {
        match self {
            Variable::Header(name) => format!("header.{name}"),
            Variable::Cookie(name) => format!("cookie.{name}"),
            Variable::Parameter(name) => format!("query.{name}"),
            Variable::Map(name) => format!("map.{name}"),
            Variable::Claim(name) => format!("claim.{name}"),
            Variable::Capture(number) => number.to_string(),
            Variable::Outcome(outcome) => outcome.name().to_owned(),
            Variable::ResponseHeader(name) => format!("{LINE_FAMILY}.{name}"),
            alone => NAMES[alone.place()].to_owned(),
        }
    }

    /// The variable with a name of [`NAMES`].
    fn of_name(name: &str) -> Option<Variable> {
        ALONE.iter().find(|variable| NAMES[variable.place()] == name).cloned()
    }

    /// Its index in [`NAMES`]; 0 for those that are not in it.
    fn place(&self) -> usize {
        ALONE.iter().position(|other| other == self).unwrap_or(0)
    }
}

/// In the order of [`NAMES`].
static ALONE: [Variable; 13] = [
    Variable::ClientIp,
    Variable::ClientPort,
    Variable::Scheme,
    Variable::Host,
    Variable::Method,
    Variable::Path,
    Variable::Query,
    Variable::RequestId,
    Variable::ListenerPort,
    Variable::ServerName,
    Variable::TlsVersion,
    Variable::ClientCertSubject,
    Variable::User,
];

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Fixed text.
    Text(Box<str>),
    /// A variable to fill in.
    Value(Variable),
}

/// A text with variables, checked and compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    written: Box<str>,
    pieces: Box<[Piece]>,
}

/// Which variables a template may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The variables of a request.
    Request,
    /// Those known only at the end, too.
    Line,
}

/// Supplies the values of variables.
pub trait Source {
    /// Appends the value of `variable`; nothing if it has none. The value may hold any bytes.
    fn put(&self, variable: &Variable, out: &mut Vec<u8>);
}

/// A source without any values.
impl Source for () {
    fn put(&self, _: &Variable, _: &mut Vec<u8>) {}
}

impl Template {
    /// Compiles a text. A literal `$` is written `$$`. `captures` is the number of groups for `$1` and so on:
    /// 0 without an expression, 9 if the number is not known yet ([`Self::captures`]).
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(text: &str, captures: u8) -> Result<Template, Mistake> {
        Ok(Template { written: text.into(), pieces: parse::pieces(text, captures, Scope::Request)?.into() })
    }

    /// Compiles a text that is rendered at the end: a log line, or a field of one.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse_line(text: &str) -> Result<Template, Mistake> {
        Ok(Template { written: text.into(), pieces: parse::pieces(text, 0, Scope::Line)?.into() })
    }

    /// A template that always renders to this text, whatever characters are in it.
    pub fn constant(text: &str) -> Template {
        let pieces = if text.is_empty() { Vec::new() } else { vec![Piece::Text(text.into())] };
        Template { written: text.replace('$', "$$").into(), pieces: pieces.into() }
    }

    /// The text as written.
    pub fn as_written(&self) -> &str {
        &self.written
    }

    /// Its pieces, in order; two texts are never adjacent.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The constant text that it renders to; `None` if it has variables.
    pub fn as_constant(&self) -> Option<&str> {
        match &*self.pieces {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Its variables, in order.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Value(variable) => Some(variable),
            Piece::Text(_) => None,
        })
    }

    /// The highest group number that it uses; 0 if none.
    pub fn captures(&self) -> u8 {
        let number = |variable: &Variable| match variable {
            Variable::Capture(number) => *number,
            _ => 0,
        };
        self.variables().map(number).max().unwrap_or(0)
    }

    /// Appends the rendered text. Takes time in proportion to what it appends, and allocates nothing if `out`
    /// has capacity.
    #[inline]
    pub fn render(&self, source: &(impl Source + ?Sized), out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Value(variable) => source.put(variable, out),
            }
        }
    }
}

impl Template {
    /// Like [`Self::render`], but calls `mend` after each variable: it gets the variable, and the position in
    /// the text at which the value begins.
    pub fn render_mended(
        &self,
        source: &(impl Source + ?Sized),
        out: &mut Vec<u8>,
        mend: impl Fn(&Variable, &mut Vec<u8>, usize),
    ) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Value(variable) => {
                    let start = out.len();
                    source.put(variable, out);
                    mend(variable, out, start);
                }
            }
        }
    }

    /// Like [`Self::render`]; returns whether any variable had a value.
    pub fn render_any(&self, source: &(impl Source + ?Sized), out: &mut Vec<u8>) -> bool {
        let mut any = false;
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Value(variable) => {
                    let before = out.len();
                    source.put(variable, out);
                    any |= out.len() > before;
                }
            }
        }
        any
    }
}

impl std::fmt::Display for Template {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.written)
    }
}

#[cfg(test)]
mod tests;
