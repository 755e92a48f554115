//! Values of a request and its response that logs need, copied while the bytes are there.

use std::ops::Range;

use weir_http::ResponseHead;
use weir_template::{Source, Variable};

use crate::seldom::Reused;

/// The values that a listener's logs need and that records do not have.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Values of the request.
    request: Vec<Variable>,
    /// Values of its response: [`Variable::ResponseHeader`] only.
    response: Vec<Variable>,
    /// Values of the authenticated user: [`Variable::Claim`] only.
    user: Vec<Variable>,
}

impl Asked {
    /// Adds those of `variables` that records do not have.
    pub fn add<'v>(&mut self, variables: impl IntoIterator<Item = &'v Variable>) {
        for variable in variables {
            let side = match variable {
                Variable::ClientIp
                | Variable::ClientPort
                | Variable::Method
                | Variable::RequestId
                | Variable::ServerName
                | Variable::TlsVersion
                | Variable::ClientCertSubject
                | Variable::User
                | Variable::Outcome(_)
                | Variable::Capture(_) => continue,
                Variable::ResponseHeader(_) => &mut self.response,
                Variable::Claim(_) => &mut self.user,
                Variable::Scheme
                | Variable::Host
                | Variable::Path
                | Variable::Query
                | Variable::ListenerPort
                | Variable::Header(_)
                | Variable::Cookie(_)
                | Variable::Map(_)
                | Variable::Parameter(_) => &mut self.request,
            };
            if !side.contains(variable) {
                side.push(variable.clone());
            }
        }
    }

    /// Whether no values are needed.
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty() && self.user.is_empty()
    }

    /// Whether values of the authenticated user are needed.
    pub fn is_of_user(&self) -> bool {
        !self.user.is_empty()
    }
}

/// The values of one exchange, as they were sent. Reused from one exchange to the next.
#[derive(Debug, Default)]
pub struct Captured {
    bytes: Vec<u8>,
    values: Vec<(Variable, Range<usize>)>,
}

/// Buffers larger than this, in bytes, are freed after use.
const KEPT_BYTES: usize = 16 << 10;

impl Reused for Captured {
    const UNUSED: &'static Captured = &Captured { bytes: Vec::new(), values: Vec::new() };

    fn clear(&mut self) {
        self.bytes.clear();
        self.values.clear();
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
    }
}

impl Captured {
    /// Copies the needed values of a request.
    pub fn note_request(&mut self, asked: &Asked, source: &impl Source) {
        for variable in &asked.request {
            self.note(variable, |variable, out| source.put(variable, out));
        }
    }

    /// Copies the needed values of the authenticated user.
    pub fn note_user(&mut self, asked: &Asked, source: &impl Source) {
        for variable in &asked.user {
            self.note(variable, |variable, out| source.put(variable, out));
        }
    }

    /// Copies the needed values of the response that the client gets, from before rules changed it; if there
    /// are several responses, the last one counts.
    pub fn note_response(&mut self, asked: &Asked, head: &ResponseHead, text: &[u8]) {
        self.values.retain(|(variable, _)| !matches!(variable, Variable::ResponseHeader(_)));
        for variable in &asked.response {
            let Variable::ResponseHeader(name) = variable else { continue };
            self.note(variable, |_, out| {
                let lines =
                    head.fields(text).filter(|field| field.name.eq_ignore_ascii_case(name.as_bytes()));
                for (number, line) in lines.enumerate() {
                    if number > 0 {
                        out.extend_from_slice(b", ");
                    }
                    out.extend_from_slice(line.value);
                }
            });
        }
    }

    fn note(&mut self, variable: &Variable, put: impl FnOnce(&Variable, &mut Vec<u8>)) {
        let start = self.bytes.len();
        put(variable, &mut self.bytes);
        if self.bytes.len() > start {
            self.values.push((variable.clone(), start..self.bytes.len()));
        }
    }

    /// The value of a variable; `None` if it has none, or was not needed.
    pub fn value(&self, variable: &Variable) -> Option<&[u8]> {
        let (_, range) = self.values.iter().find(|(noted, _)| noted == variable)?;
        self.bytes.get(range.clone())
    }
}
