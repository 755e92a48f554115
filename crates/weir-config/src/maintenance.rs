//! `[listener.NAME.maintenance]`: what clients get while `weir maintenance` has switched their part of the
//! service off, and which clients are served anyway.

use std::time::Duration;

use ipnet::IpNet;

use crate::error_page::{ErrorPage, ErrorStatus, PageFile};
use crate::fields::Fields;
use crate::keys::{DAY, Each, Limit, duration, list, seconds, text};
use crate::report::Findings;
use crate::setting::table;
use crate::values::TEXT;
use crate::values::address::{FILE, NETWORK};
use crate::values::http::CONTENT_TYPE;

table! {
    /// What clients are told while their part of the service is in maintenance, which `weir maintenance on`
    /// begins: 503 with this page, or else the one of `error_page`.
    #[derive(Eq)]
    pub struct Maintenance at "[listener.NAME.maintenance]" {
        /// Clients that are served all the same.
        allow: Vec<IpNet> =
            list(Each::Text(&NETWORK)).default("nobody").also(&["allow_address", "except", "whitelist"]);
        /// What they are told to wait for before they come again; in whole seconds.
        retry_after: Duration =
            duration(Limit::new(seconds(300), seconds(1), DAY, "clients come again sooner or later anyway"));
        /// The file that is sent, of at most 1MiB. It is read when the config is, and at every reload.
        file: Option<PageFile> = text(&FILE).default("none").also(&["path", "page", "errorfile"]);
        /// The text that is sent.
        body: Option<String> = text(&TEXT).default("none").also(&["text", "content", "html"]);
        /// Media type of the page.
        content_type: Option<String> =
            text(&CONTENT_TYPE)
                .default("by the end of the file's name, else `text/html; charset=utf-8`")
                .also(&["default_type", "type"]);
    }
}

impl Maintenance {
    /// The page of this table; `None` if it has none.
    pub fn page(&self) -> Option<ErrorPage> {
        (self.file.is_some() || self.body.is_some()).then(|| ErrorPage {
            status: vec![ErrorStatus::One(503)],
            file: self.file.clone(),
            body: self.body.clone(),
            content_type: self.content_type.clone(),
            intercept: false,
        })
    }
}

/// Reports mistakes in the table of a listener or a route.
pub(crate) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    let Some(page) = fields.get("maintenance").and_then(|_| fields.table("maintenance")) else { return };
    match (page.get("file"), page.get("body"), page.get("content_type")) {
        (Some(file), Some(body), _) => {
            let hint = format!("`file` ({}) says already what is sent; keep one", findings.place(file.key));
            findings.error(body.key, "a page cannot have both `file` and `body`", hint);
        }
        (None, None, Some(entry)) => {
            let hint = "there is no `file` and no `body`: the page of `error_page` is sent, if any";
            findings.warning(entry.key, "`content_type` has no effect", hint);
        }
        _ => {}
    }
}
