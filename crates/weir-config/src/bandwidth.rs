//! `bandwidth` of a listener or a route: limits in bytes per second.

use std::time::Duration;

use crate::fields::{Fields, Value};
use crate::keys::{Limit, TIB, byte_rate, duration, millis, seconds, size};
use crate::report::Findings;
use crate::setting::table;
use crate::units::{show_byte_rate, show_size};

const BOUNDS: Limit<u64> =
    Limit::optional(16 << 10, TIB, "16 KiB is one piece; slower, a connection would be idle between two");

table! {
    /// Bytes per second that pass, by token buckets: of each connection (udp: flow), and of all connections
    /// of the listener together, over all workers.
    #[derive(Copy, Eq)]
    pub struct Bandwidth at "bandwidth = { … }" {
        /// From the backend to the client, of each connection.
        to_client: Option<u64> =
            byte_rate(BOUNDS).default("no limit").also(&["download", "proxy_download_rate", "out"]);
        /// From the client to the backend, of each connection.
        from_client: Option<u64> =
            byte_rate(BOUNDS).default("no limit").also(&["upload", "proxy_upload_rate", "in"]);
        /// From backends to clients, of all together.
        total_to_client: Option<u64> = byte_rate(BOUNDS).default("no limit").also(&["total_download"]);
        /// From clients to backends, of all together.
        total_from_client: Option<u64> = byte_rate(BOUNDS).default("no limit").also(&["total_upload"]);
        /// The time whose bytes may pass at once after a pause; 16 KiB may in any case.
        burst: Duration =
            duration(Limit::new(millis(100), millis(1), seconds(60), "a longer one is no limit to short transfers"));
    }
}

table! {
    /// Bytes per second that each response may have, by a token bucket. Other requests of its client, and
    /// other streams of its connection, are not held up.
    #[derive(Copy, Eq)]
    pub struct RouteBandwidth at "bandwidth = { … }" {
        /// To the client, of each response; content from a cache too, and what a tunnel brings.
        to_client: u64 =
            byte_rate(BOUNDS).required().also(&["rate", "limit_rate", "download", "out", "limit"]);
        /// So much of it passes at full speed before.
        after_bytes as "after": u64 =
            size(Limit::new(0, 0, 64 * TIB, "0B limits all of it"))
                .also(&["limit_rate_after", "free", "after_bytes"]);
        /// The time whose bytes may pass at once after a pause; 16 KiB may in any case.
        burst: Duration =
            duration(Limit::new(millis(100), millis(1), seconds(60), "a longer one is no limit to short responses"));
    }
}

impl RouteBandwidth {
    /// In words, such as "1MiB/s of each response after 64KiB".
    pub fn words(&self) -> String {
        let after = match self.after_bytes {
            0 => String::new(),
            bytes => format!(" after {}", show_size(bytes)),
        };
        format!("{} of each response{after}", show_byte_rate(self.to_client))
    }
}

/// Reports limits that have no effect.
pub(crate) fn check(listener: &Fields, findings: &mut Findings<'_>) {
    let (Some(fields), Some(entry)) = (listener.table("bandwidth"), listener.get("bandwidth")) else {
        return;
    };
    let names = ["to_client", "from_client", "total_to_client", "total_from_client"];
    if names.iter().all(|name| fields.lacks(name)) {
        let hint = "expected one of `to_client`, `from_client`, `total_to_client`, `total_from_client`";
        findings.error(entry.at, "`bandwidth` limits nothing", hint);
    }
    for (own, total) in [("to_client", "total_to_client"), ("from_client", "total_from_client")] {
        let (Some(Value::Number(own_rate)), Some(Value::Number(all))) =
            (fields.value(own), fields.value(total))
        else {
            continue;
        };
        if own_rate > all {
            let hint =
                format!("`{total}` is {} ({})", show_byte_rate(*all), findings.place(fields.at(total)));
            findings.warning(fields.at(own), format!("`{own}` has no effect"), hint);
        }
    }
}
