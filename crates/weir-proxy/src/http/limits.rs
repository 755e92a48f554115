//! The limits for parsers of heads.

use weir_http::Limits;

/// Converts a listener's configured limits for a parser.
pub fn limits_of(config: &weir_config::HttpLimits) -> Limits {
    Limits {
        request_line_bytes: config.request_line_bytes,
        header_block_bytes: config.header_bytes,
        field_count: config.header_count,
        ..Limits::default()
    }
}

/// How many clients' floods a connection bears: one, or where a trusted proxy speaks for many as many as have
/// room on it. Otherwise one of them, who resets requests, would end the connection for all (threat B1).
pub fn clients_of(is_trusted: bool, limits: &weir_config::HttpLimits) -> u32 {
    if is_trusted { limits.streams } else { 1 }
}
