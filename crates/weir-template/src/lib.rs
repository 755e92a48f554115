//! **What does this text say, once a request is known?**
//!
//! The one language for values: text with variables such as `$client_ip` or `$header.x-tenant`, compiled once
//! to a list of pieces and filled in per request. Header fields, redirects, hosts towards backends, keys of
//! hashes and of limits are all written in it. This crate does no I/O, knows no request (a [`Source`] gives
//! the values), and never says what a value is used for.
//!
//! Where to start reading: [`Template::parse`], then [`Template::render`]; the names are in [`Variable`].
#![forbid(unsafe_code)]

mod clean;
mod outcome;
mod parse;

pub use clean::clean_field_value;
pub use outcome::Outcome;
pub use parse::Mistake;

/// Something that is filled in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Variable {
    /// `$client_ip`: who asks, as every limit and the log have it.
    ClientIp,
    /// `$client_port`: its port; empty where a proxy named none.
    ClientPort,
    /// `$scheme`: `http` or `https`.
    Scheme,
    /// `$host`: the host that is asked for, without its port.
    Host,
    /// `$method`: as sent.
    Method,
    /// `$path`: in its normal form, as routes compare it.
    Path,
    /// `$query`: as sent, with its `?`; empty where there is none.
    Query,
    /// `$request_id`: what `x-request-id` says.
    RequestId,
    /// `$listener_port`: the port that the client connected to.
    ListenerPort,
    /// `$server_name`: the name in the client's TLS greeting, in lower case.
    ServerName,
    /// `$tls_version`: `TLSv1.2` or `TLSv1.3`.
    TlsVersion,
    /// `$client_cert_subject`: the subject of the client's certificate (RFC 4514).
    ClientCertSubject,
    /// `$user`: who has shown who it is; empty before anybody has asked, and where nobody does.
    User,
    /// `$header.NAME`: the field's value; several lines of it are one, separated by `, `. In lower case.
    Header(Box<str>),
    /// `$cookie.NAME`: the value of the first cookie of that name.
    Cookie(Box<str>),
    /// `$query.NAME`: the value of the first parameter of that name, as sent: nothing is decoded.
    Parameter(Box<str>),
    /// `$map.NAME`: what the map of that name has for the request.
    Map(Box<str>),
    /// `$claim.NAME`: what the token says that the request was let pass by; `a.b` is the claim `b` within
    /// `a`.
    Claim(Box<str>),
    /// `$1` to `$9`: what a group of an expression matched.
    Capture(u8),
    /// What is known when it is over: in lines of a log only.
    Outcome(Outcome),
    /// `$response_header.NAME`: the field's value in the response that came of it, in lines of a log only. In
    /// lower case.
    ResponseHeader(Box<str>),
}

/// The names of all variables that stand alone, for messages.
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

/// The family that only lines of a log have.
pub const LINE_FAMILY: &str = "response_header";

impl Variable {
    /// As it is written, without the `$`.
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

    /// The one of [`NAMES`].
    fn of_name(name: &str) -> Option<Variable> {
        ALONE.iter().find(|variable| NAMES[variable.place()] == name).cloned()
    }

    /// Its place in [`NAMES`]; 0 for those that do not stand alone.
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
    /// Stands as it is.
    Text(Box<str>),
    /// Is filled in.
    Value(Variable),
}

/// Text with variables, checked and compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    written: Box<str>,
    pieces: Box<[Piece]>,
}

/// Which variables there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of a request.
    Request,
    /// What is known when it is over, too.
    Line,
}

/// Where values come from.
pub trait Source {
    /// Appends the value of `variable`; nothing where there is none. It may hold any bytes.
    fn put(&self, variable: &Variable, out: &mut Vec<u8>);
}

/// One that has no value for anything.
impl Source for () {
    fn put(&self, _: &Variable, _: &mut Vec<u8>) {}
}

impl Template {
    /// Compiles a text. A `$` itself is written `$$`. `captures` is how many groups there are for `$1` and so
    /// on: 0 where nothing is matched, 9 where that is not known yet ([`Self::captures`]).
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(text: &str, captures: u8) -> Result<Template, Mistake> {
        Ok(Template { written: text.into(), pieces: parse::pieces(text, captures, Scope::Request)?.into() })
    }

    /// Compiles a text that is written when all is over: a line of a log, or a field of it.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse_line(text: &str) -> Result<Template, Mistake> {
        Ok(Template { written: text.into(), pieces: parse::pieces(text, 0, Scope::Line)?.into() })
    }

    /// One that says this text, whatever is in it.
    pub fn constant(text: &str) -> Template {
        let pieces = if text.is_empty() { Vec::new() } else { vec![Piece::Text(text.into())] };
        Template { written: text.replace('$', "$$").into(), pieces: pieces.into() }
    }

    /// As it was written.
    pub fn as_written(&self) -> &str {
        &self.written
    }

    /// Its pieces, in order; no two texts are neighbours.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// What it always says; `None` where something is filled in.
    pub fn as_constant(&self) -> Option<&str> {
        match &*self.pieces {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// What is filled in, in order.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Value(variable) => Some(variable),
            Piece::Text(_) => None,
        })
    }

    /// The highest number of a group that it names; 0 without any.
    pub fn captures(&self) -> u8 {
        let number = |variable: &Variable| match variable {
            Variable::Capture(number) => *number,
            _ => 0,
        };
        self.variables().map(number).max().unwrap_or(0)
    }

    /// Appends what it says of a request. Takes time in proportion to what it appends, and allocates nothing
    /// where `out` has room.
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
    /// As [`Self::render`]; `mend` gets each variable behind its value, which stands in the text from the
    /// place that it is told on.
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

    /// As [`Self::render`]; whether anything was filled in, and not only the text around it.
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
