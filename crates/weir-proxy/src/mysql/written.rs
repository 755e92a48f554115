//! What a session has written, which its reads must see on servers that replicate it later.

use weir_mysql::gtid::GtidSet;

/// What a session has written, and where its reads may not see that yet.
#[derive(Default)]
pub struct Written {
    /// GTIDs that the session has committed and its reads must see.
    pub gtids: Option<GtidSet>,
    /// The servers, by [`weir_balance::Backend::id`], that were taken to have executed these GTIDs when they
    /// were reported. They replicate fast, or what was known of them is from before a `RESET BINARY LOGS AND
    /// GTIDS`, after which the same GTIDs are given to other transactions. So they are asked.
    pub doubted: Vec<u64>,
}
