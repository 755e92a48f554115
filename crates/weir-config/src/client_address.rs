//! `client_address`: the field in which trusted proxies name the client.

use crate::fields::Fields;
use crate::keys::{Limit, Shape, count, text_or};
use crate::report::{Findings, quote};
use crate::setting::table;
use crate::units::{Refused, refuse};
use crate::values::http::{FRAMING, field_name};

table! {
    /// By which field of a request one of the `trusted_proxies` says who asks.
    #[derive(Eq)]
    pub struct ClientAddress at "client_address = { … }" {
        /// `x-forwarded-for`, or a field with one address such as `cf-connecting-ip`, which backends are then
        /// told as it is believed. One that comes twice, or that is no address, is not believed: the proxy
        /// itself is the client.
        field: String =
            text_or(&ADDRESS_FIELD, LIST).also(&["header", "real_ip_header", "name"]);
        /// The client is so many entries from the right of `x-forwarded-for`, whoever stands between: as many
        /// as proxies write into it. Where there are fewer it is the first.
        hops: Option<u8> =
            count(Limit::optional(1, 16, "what stands further left was written by the client"))
                .default("the last entry that is none of the `trusted_proxies`")
                .also(&["depth", "trusted_hops", "xff_num_trusted_hops"]);
    }
}

/// The field that holds a list.
const LIST: &str = "x-forwarded-for";

static ADDRESS_FIELD: Shape = Shape::new("a header field", "cf-connecting-ip", address_field);

fn address_field(text: &str) -> Result<String, Refused> {
    let name = field_name(text)?;
    let hint = match name.as_str() {
        "forwarded" => "expected \"x-forwarded-for\", or a field with one address",
        "host" | "cookie" | "authorization" | "via" | "x-forwarded-host" | "x-forwarded-proto"
        | "x-forwarded-port" | "x-request-id" => "it names no client",
        name if FRAMING.contains(&name) => "it describes the connection or the body",
        _ => return Ok(name),
    };
    refuse(format!("{} does not say who asks", quote(text)), hint)
}

impl ClientAddress {
    /// The field with a single address that replaces `x-forwarded-for`; `None` for `x-forwarded-for` itself.
    pub fn single_field(&self) -> Option<&str> {
        Some(self.field.as_str()).filter(|field| *field != LIST)
    }
}

/// Reports keys that it needs, or that contradict it.
pub(crate) fn check(listener: &Fields, findings: &mut Findings<'_>) {
    let (Some(entry), Some(fields)) = (listener.get("client_address"), listener.table("client_address"))
    else {
        return;
    };
    if listener.lacks("trusted_proxies") {
        let hint =
            "nobody is believed: expected `trusted_proxies` with the networks of the proxies that write it";
        findings.error(entry.key, "`client_address` needs `trusted_proxies`", hint);
    }
    if let (Some(hops), Some(field)) = (fields.get("hops"), fields.text("field"))
        && field != LIST
    {
        let hint = format!("`{field}` has one address, and `hops` counts the entries of `{LIST}`; keep one");
        findings.error(hops.key, format!("`hops` cannot stand beside `field = \"{field}\"`"), hint);
    }
}
