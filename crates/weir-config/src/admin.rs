//! `[admin]`: where the admin API, `/metrics` and the dashboard are served.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::fields::{Fields, Value};
use crate::keys::{Shape, text, text_or};
use crate::report::Findings;
use crate::setting::{Section as _, table};
use crate::values::address::{FILE, bind};

table! {
    /// Where the admin API, `/metrics` and the dashboard are served.
    pub struct Admin at "[admin]" {
        /// Address and port, or `"off"`. Any other than loopback needs `token_file`.
        bind: SocketAddr = text_or(&ADMIN_BIND, "127.0.0.1:9900").restart().also(&["listen", "address"]);
        /// File whose trimmed content is the bearer token: changing calls need it and, where `bind` is not
        /// loopback, all but `/livez` and `/readyz`.
        token_file: Option<PathBuf> = text(&FILE).default("none: loopback only").restart();
    }
}

static ADMIN_BIND: Shape =
    Shape::new("an address and port, or \"off\",", "127.0.0.1:9900", |text| match text {
        OFF => Ok(OFF.to_owned()),
        text => bind(text),
    });

const OFF: &str = "off";

/// `None` where it is switched off.
pub(crate) fn read(fields: &Fields) -> Option<Admin> {
    use crate::setting::Part as _;
    (fields.text("bind") != Some(OFF)).then(|| Admin::of(fields))
}

/// The table again.
pub(crate) fn write(admin: Option<&Admin>) -> Fields {
    admin.map_or_else(
        || {
            let mut fields = Fields::new(Admin::TABLE, Default::default());
            fields.put("bind", Some(Value::Text(OFF.to_owned())));
            fields
        },
        Admin::fields,
    )
}

pub(crate) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    let Some(text) = fields.text("bind") else { return };
    let Ok(address) = text.parse::<SocketAddr>() else {
        if let Some(entry) = fields.get("token_file") {
            findings.warning(entry.key, "`token_file` has no effect", "the admin API is off");
        }
        return;
    };
    if !address.ip().to_canonical().is_loopback() && fields.get("token_file").is_none() {
        findings.error(
            fields.at("bind"),
            format!("the admin API at {address} would be open to everyone who can reach it"),
            "add `token_file = \"…\"`, or bind it to 127.0.0.1",
        );
    }
}
