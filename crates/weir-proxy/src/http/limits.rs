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
