//! `[[listener.NAME.error_page]]` and `[[listener.NAME.route.error_page]]`: what clients get in place of
//! Weir's own error text.

use std::path::Path;
use std::sync::Arc;

use crate::fields::{Fields, Value};
use crate::keys::{Each, MIB, Shape, flag, list, text};
use crate::report::{Findings, Span, quote};
use crate::setting::{One, table};
use crate::units::{Refused, refuse};
use crate::values::TEXT;
use crate::values::address::FILE;
use crate::values::http::CONTENT_TYPE;

/// Longest file of a page, in bytes: it is held in memory, and sent with every error of its status.
pub(crate) const PAGE_BYTES: u64 = MIB;

table! {
    /// What clients are told of an error in place of Weir's own line of text: a file, or a text. Pages of a
    /// route stand before those of its listener, and a status before its class. Who prefers JSON gets problem
    /// details (RFC 9457), or a page that is JSON, and who makes a gRPC call its status.
    #[derive(Eq)]
    pub struct ErrorPage at "[[listener.NAME.error_page]]" {
        /// Statuses, and the classes `"4xx"` and `"5xx"`.
        status: Vec<ErrorStatus> =
            list(Each::Text(&ERROR_STATUS)).required().also(&["code", "codes", "statuses", "errors"]);
        /// The file that is sent, of at most 1MiB. It is read when the config is, and at every reload.
        file: Option<PageFile> =
            text(&FILE).default("none").also(&["path", "page", "errorfile", "root"]);
        /// The text that is sent.
        body: Option<String> = text(&TEXT).default("none").also(&["text", "content", "html"]);
        /// Media type of the page.
        content_type: Option<String> =
            text(&CONTENT_TYPE)
                .default("by the end of the file's name, else `text/html; charset=utf-8`")
                .also(&["default_type", "type"]);
        /// Whether a backend's answers with that status are replaced, too.
        intercept: bool = flag(false).also(&["proxy_intercept_errors", "backend", "replace"]);
    }
}

/// An error status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorStatus {
    /// This status.
    One(u16),
    /// All from 400 to 499, or from 500 to 599: 4 or 5.
    Class(u16),
}

impl ErrorStatus {
    /// Whether `status` is this one, or in this class.
    pub fn takes(self, status: u16) -> bool {
        match self {
            ErrorStatus::One(one) => one == status,
            ErrorStatus::Class(class) => status / 100 == class,
        }
    }

    fn of_text(text: &str) -> Option<ErrorStatus> {
        match text {
            "4xx" => Some(ErrorStatus::Class(4)),
            "5xx" => Some(ErrorStatus::Class(5)),
            status => status.parse().ok().map(ErrorStatus::One),
        }
    }
}

impl std::fmt::Display for ErrorStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ErrorStatus::One(status) => write!(f, "{status}"),
            ErrorStatus::Class(class) => write!(f, "{class}xx"),
        }
    }
}

impl One for ErrorStatus {
    fn of(value: &Value) -> Option<ErrorStatus> {
        match value {
            Value::Text(text) => ErrorStatus::of_text(text),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        Value::Text(self.to_string())
    }

    fn blank() -> ErrorStatus {
        ErrorStatus::One(500)
    }
}

/// A file that is read together with the config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFile {
    /// The path, as in the config.
    pub path: String,
    /// Its content; empty if the config was only checked.
    pub content: Arc<[u8]>,
}

impl One for PageFile {
    fn of(value: &Value) -> Option<PageFile> {
        match value {
            Value::Text(path) => Some(PageFile { path: path.clone(), content: Arc::default() }),
            Value::Read(path, content) => Some(PageFile { path: path.clone(), content: content.clone() }),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        Value::Read(self.path.clone(), self.content.clone())
    }

    fn blank() -> PageFile {
        PageFile::default()
    }
}

impl ErrorPage {
    /// The media type: the configured one, otherwise the one for the file's extension.
    pub fn media_type(&self) -> &str {
        let by_name = || self.file.as_ref().map_or(HTML, |file| type_of(&file.path));
        self.content_type.as_deref().unwrap_or_else(by_name)
    }

    /// The content to send; `None` if the page only hides the backends' bodies.
    pub fn content(&self) -> Option<Arc<[u8]>> {
        let of_file = self.file.as_ref().map(|file| file.content.clone());
        of_file.or_else(|| self.body.as_ref().map(|body| body.as_bytes().into()))
    }

    /// Whether it is meant for clients that read JSON.
    pub fn is_json(&self) -> bool {
        is_json(self.media_type())
    }
}

const HTML: &str = "text/html; charset=utf-8";

fn type_of(path: &str) -> &'static str {
    let end = Path::new(path).extension().and_then(|end| end.to_str()).unwrap_or_default();
    match end.to_ascii_lowercase().as_str() {
        "json" => "application/json",
        "txt" | "text" => "text/plain; charset=utf-8",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        _ => HTML,
    }
}

fn is_json(media_type: &str) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

static ERROR_STATUS: Shape = Shape::new("a status of an error or a class of them", "5xx", status).or_number();

fn status(text: &str) -> Result<String, Refused> {
    let lower = text.to_ascii_lowercase();
    match ErrorStatus::of_text(&lower) {
        Some(ErrorStatus::One(400..=599) | ErrorStatus::Class(_)) if lower.len() == 3 => Ok(lower),
        _ => {
            let hint = match lower.as_str() {
                "1xx" | "2xx" | "3xx" => "only errors have pages: expected 400 to 599, \"4xx\" or \"5xx\"",
                "4**" | "4*" | "40x" => "did you mean \"4xx\"?",
                "5**" | "5*" | "50x" => "did you mean \"5xx\"?",
                _ => "expected 400 to 599, \"4xx\" or \"5xx\"",
            };
            refuse(format!("{} is not a status of an error", quote(text)), hint)
        }
    }
}

/// Reports mistakes in the pages of a listener or a route.
pub(crate) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    let mut seen: Vec<(ErrorStatus, bool, Span)> = Vec::new();
    for (at, page) in fields.tables("error_page") {
        one(at, page, findings);
        if ["file", "body", "content_type", "status"].iter().any(|name| page.is_bad(name)) {
            continue;
        }
        let is_json = <ErrorPage as crate::setting::Part>::of(page).is_json();
        for (at, value) in page.list("status") {
            let Some(status) = ErrorStatus::of(value) else { continue };
            match seen.iter().find(|(other, json, _)| *other == status && *json == is_json) {
                Some((.., first)) => {
                    let hint = format!("the first is at {}", findings.place(*first));
                    findings.error(*at, format!("`{status}` has two pages"), hint);
                }
                None => seen.push((status, is_json, *at)),
            }
        }
    }
}

fn one(at: Span, page: &Fields, findings: &mut Findings<'_>) {
    match (page.get("file"), page.get("body")) {
        (Some(file), Some(body)) => {
            let hint = format!("`file` ({}) says already what is sent; keep one", findings.place(file.key));
            findings.error(body.key, "a page cannot have both `file` and `body`", hint);
        }
        (None, None) if page.lacks("file") && page.lacks("body") => {
            if !page.flag("intercept") {
                let hint = "expected `file = \"…\"` or `body = \"…\"`; without one, `intercept = true` hides what backends say";
                findings.error(at, "the error page says nothing", hint);
            } else if let Some(entry) = page.get("content_type") {
                let hint = "there is no `file` and no `body`: Weir's own line of text is sent";
                findings.warning(entry.key, "`content_type` has no effect", hint);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_of_the_type_that_its_name_ends_in() {
        let page = |file: &str, said: Option<&str>| ErrorPage {
            status: vec![ErrorStatus::Class(5)],
            file: Some(PageFile { path: file.to_owned(), content: Arc::default() }),
            body: None,
            content_type: said.map(str::to_owned),
            intercept: false,
        };
        assert_eq!(page("a/503.HTML", None).media_type(), "text/html; charset=utf-8");
        assert_eq!(page("503", None).media_type(), "text/html; charset=utf-8");
        assert!(page("503.json", None).is_json());
        assert!(page("503", Some("application/Problem+JSON; charset=utf-8")).is_json());
        assert!(!page("503.json", Some("text/plain")).is_json());
    }

    #[test]
    fn a_status_is_in_its_class() {
        assert!(ErrorStatus::Class(5).takes(503) && !ErrorStatus::Class(5).takes(404));
        assert!(ErrorStatus::One(404).takes(404) && !ErrorStatus::One(404).takes(403));
    }
}
