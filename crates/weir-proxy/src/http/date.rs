//! The `date` field of Weir's own responses (RFC 9110 §5.6.7), rendered at most once a second per worker.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_http::values::http_date;

thread_local! {
    static RENDERED: RefCell<(u64, [u8; 29])> = const { RefCell::new((u64::MAX, [0; 29])) };
}

/// Calls `with` with the present time as an IMF-fixdate, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn now<T>(with: impl FnOnce(&[u8]) -> T) -> T {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    RENDERED.with_borrow_mut(|(rendered, text)| {
        if *rendered != seconds {
            *text = http_date::text(seconds);
            *rendered = seconds;
        }
        with(text)
    })
}
