//! `buffer` of a pool or a route: how much is held here, so that slow clients hold no backend.

use crate::keys::{Limit, MIB, size};
use crate::setting::table;

table! {
    /// Requests are held until they are whole before a backend is asked, and responses are taken off the
    /// backend at its pace: a slow client holds no worker of gunicorn or puma.
    #[derive(Copy, Eq)]
    pub struct Buffer at "buffer = { … }" {
        /// How much of a request's body is waited for and held; a longer one goes on as it comes. 0: nothing.
        requests: u64 =
            size(Limit::new(MIB, 0, 1024 * MIB, "it is memory, within `runtime.memory`"))
                .also(&["request", "proxy_request_buffering", "max_request_body"]);
        /// How much of a response is held for a client that is slower than the backend. 0: nothing.
        responses: u64 =
            size(Limit::new(MIB, 0, 1024 * MIB, "it is memory, within `runtime.memory`"))
                .also(&["response", "proxy_buffering", "max_response_body"]);
    }
}
