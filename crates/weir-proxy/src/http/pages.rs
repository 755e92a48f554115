//! Decides which error page clients get, and which backends' answers it replaces; nothing else decides this.
//! The data path and `weir explain` both use it. Pure.

use std::sync::Arc;

use weir_config::{ErrorPage, ErrorStatus};
use weir_http::values::accept::Wants;
use weir_http::{AddedField, ErrorForm};

/// The pages for a listener's requests, or for those of one of its routes.
#[derive(Debug, Default)]
pub struct Pages {
    /// In order of precedence.
    pages: Vec<Page>,
}

#[derive(Clone, Debug)]
struct Page {
    status: ErrorStatus,
    /// Its precedence: those of a route before those of its listener, a status before its class.
    rank: u8,
    content: Option<Content>,
    is_json: bool,
    intercepts: bool,
}

#[derive(Clone, Debug)]
struct Content {
    content_type: Arc<str>,
    body: Arc<[u8]>,
}

impl Pages {
    /// Compiles the pages of a listener (then `outer` is `None`), or of a route, whose listener's pages are
    /// `outer`; `None` if neither has any.
    pub fn compile(own: &[ErrorPage], outer: Option<&Arc<Pages>>) -> Option<Arc<Pages>> {
        if own.is_empty() {
            return outer.cloned();
        }
        let of = |page: &ErrorPage| {
            let content_type = Arc::from(page.media_type());
            let content = page.content().map(|body| Content { content_type, body });
            let (is_json, intercepts) = (page.is_json(), page.intercept);
            let statuses = page.status.clone().into_iter();
            statuses.map(move |status| {
                let rank = u8::from(matches!(status, ErrorStatus::Class(_)));
                Page { status, rank, content: content.clone(), is_json, intercepts }
            })
        };
        let mut pages: Vec<Page> = own.iter().flat_map(of).collect();
        let outer = outer.map_or(&[][..], |outer| &outer.pages);
        pages.extend(outer.iter().map(|page| Page { rank: page.rank + 2, ..page.clone() }));
        pages.sort_by_key(|page| page.rank);
        Some(Arc::new(Pages { pages }))
    }

    /// The pages for this status, in order of precedence.
    fn of(&self, status: u16) -> impl Iterator<Item = &Page> {
        self.pages.iter().filter(move |page| page.status.takes(status))
    }

    /// Whether a backend's answer with this status is replaced.
    #[inline]
    pub fn intercepts(&self, status: u16) -> bool {
        if status < 400 {
            return false;
        }
        let Some(first) = self.of(status).next() else { return false };
        self.of(status).take_while(|page| page.rank == first.rank).any(|page| page.intercepts)
    }

    /// The statuses and classes of backends' answers that are replaced.
    pub fn intercepted(&self) -> Vec<String> {
        self.pages.iter().filter(|page| page.intercepts).map(|page| page.status.to_string()).collect()
    }

    /// The content for this status, for clients that read JSON or for others.
    fn content(&self, status: u16, json: bool) -> Option<&Content> {
        if json {
            return self.of(status).filter(|page| page.is_json).find_map(|page| page.content.as_ref());
        }
        let mut with_content = self.of(status).filter(|page| page.content.is_some()).peekable();
        let rank = with_content.peek()?.rank;
        let mut of_rank = with_content.take_while(|page| page.rank == rank);
        let first = of_rank.next()?;
        let page = [first].into_iter().chain(of_rank).find(|page| !page.is_json).unwrap_or(first);
        page.content.as_ref()
    }
}

/// The form in which a client with these preferences gets this error.
pub fn form(pages: Option<&Pages>, status: u16, wants: Wants) -> ErrorForm<'_> {
    let json = match wants {
        Wants::Grpc | Wants::GrpcWeb => {
            return ErrorForm::Grpc { is_web: wants == Wants::GrpcWeb, is_late: false };
        }
        Wants::Json => true,
        Wants::Text => false,
    };
    match pages.and_then(|pages| pages.content(status, json)) {
        Some(Content { content_type, body }) => ErrorForm::Page { content_type, body },
        None if json => ErrorForm::Problem,
        None => ErrorForm::Text,
    }
}

/// [`form`] in words.
pub fn form_words(form: &ErrorForm<'_>) -> String {
    match form {
        ErrorForm::Text => "a line of text".to_owned(),
        ErrorForm::Page { content_type, body } => format!("a page, {content_type}, {} bytes", body.len()),
        ErrorForm::Problem => "problem details (application/problem+json)".to_owned(),
        ErrorForm::Grpc { .. } => "the trailers of a gRPC call".to_owned(),
    }
}

/// A backend's answer that a page replaces.
#[derive(Debug)]
pub struct Replaced {
    /// The status, 400 to 599.
    pub status: u16,
    /// The kept fields, which belong to the status.
    pub fields: Vec<AddedField>,
}

/// Names of the kept fields: how a client can authenticate (RFC 9110 §11.6.1), which methods are allowed
/// (§10.2.1), and when to try again (§10.2.3).
const KEPT: [&[u8]; 3] = [b"www-authenticate", b"allow", b"retry-after"];

impl Replaced {
    /// Of an answer with this status and these fields.
    pub fn new<'a>(status: u16, fields: impl Iterator<Item = weir_http::Field<'a>>) -> Replaced {
        let is_kept = |name: &[u8]| KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name));
        let kept = fields.filter(|field| is_kept(field.name));
        let fields = kept.filter_map(|field| AddedField::new(field.name, field.value).ok()).collect();
        Replaced { status, fields }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(status: ErrorStatus, body: Option<&str>, json: bool, intercept: bool) -> ErrorPage {
        ErrorPage {
            status: vec![status],
            file: None,
            body: body.map(str::to_owned),
            content_type: json.then(|| "application/json".to_owned()),
            intercept,
        }
    }

    fn said(pages: &Pages, status: u16, wants: Wants) -> String {
        match form(Some(pages), status, wants) {
            ErrorForm::Page { body, .. } => String::from_utf8(body.to_vec()).unwrap(),
            other => format!("{other:?}"),
        }
    }

    use ErrorStatus::{Class, One};

    #[test]
    fn a_routes_page_stands_before_its_listeners_and_a_status_before_its_class() {
        let listener = [
            page(Class(5), Some("any"), false, false),
            page(One(503), Some("busy"), false, false),
            page(One(404), Some("lost"), false, false),
        ];
        let outer = Pages::compile(&listener, None);
        let route = [page(Class(5), Some("route"), false, false)];
        let inner = Pages::compile(&route, outer.as_ref()).unwrap();
        let outer = outer.unwrap();
        assert_eq!([502, 503].map(|status| said(&outer, status, Wants::Text)), ["any", "busy"]);
        assert_eq!([503, 404].map(|status| said(&inner, status, Wants::Text)), ["route", "lost"]);
        assert_eq!(said(&inner, 403, Wants::Text), "Text");
        assert!(Pages::compile(&[], None).is_none());
    }

    #[test]
    fn programs_get_json_and_people_a_page() {
        let html = [page(Class(5), Some("<p>"), false, false)];
        let outer = Pages::compile(&html, None);
        assert_eq!(said(outer.as_ref().unwrap(), 503, Wants::Json), "Problem");
        let json = [page(One(503), Some("{}"), true, false)];
        let both = Pages::compile(&json, outer.as_ref()).unwrap();
        assert_eq!(said(&both, 503, Wants::Json), "{}");
        assert_eq!(said(&both, 503, Wants::Text), "{}", "the route has none but this");
        assert_eq!(said(&both, 502, Wants::Json), "Problem");
        assert_eq!(said(&both, 503, Wants::Grpc), "Grpc { is_web: false, is_late: false }");
        let same = [page(One(503), Some("{}"), true, false), page(One(503), Some("<p>"), false, false)];
        assert_eq!(said(&Pages::compile(&same, None).unwrap(), 503, Wants::Text), "<p>");
    }

    #[test]
    fn the_page_that_is_asked_first_says_whether_a_backend_is_heard() {
        let outer = Pages::compile(&[page(Class(5), Some("x"), false, true)], None);
        let inner = Pages::compile(&[page(One(503), Some("y"), false, false)], outer.as_ref()).unwrap();
        let outer = outer.unwrap();
        assert!(outer.intercepts(503) && !outer.intercepts(404) && !outer.intercepts(200));
        assert!(inner.intercepts(502) && !inner.intercepts(503));
        let hidden = Pages::compile(&[page(Class(5), None, false, true)], None).unwrap();
        assert!(hidden.intercepts(500));
        assert_eq!(said(&hidden, 500, Wants::Text), "Text", "Weir's own line");
    }
}
