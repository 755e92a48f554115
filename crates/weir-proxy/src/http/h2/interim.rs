//! Interim responses of a backend that have come before the client has taken the one before them.
//!
//! The `h2` crate keeps any number of them, and a backend needs no window for them: behind a client that
//! takes nothing they would fill the memory (threat B15).

use std::collections::VecDeque;
use std::task::{Context, Poll};

use h2::client::ResponseFuture;
use http::Response;
use weir_http::InterimAllowance;

/// Those of one stream, in order.
#[derive(Default)]
pub struct InterimHeads(VecDeque<Response<()>>);

impl InterimHeads {
    /// The next one.
    pub fn pop(&mut self) -> Option<Response<()>> {
        self.0.pop_front()
    }

    /// Takes those that have come; false if they are more than what is `left`. The task is woken when more
    /// comes.
    pub fn gather(
        &mut self,
        context: &mut Context<'_>,
        response: &mut ResponseFuture,
        mut left: InterimAllowance,
    ) -> bool {
        let mut fits = self.0.iter().all(|head| left.take(head_bytes(head)));
        // The final response, or an error, is found again by whoever reads the head.
        while fits && let Poll::Ready(Some(Ok(head))) = response.poll_informational(context) {
            fits = left.take(head_bytes(&head));
            self.0.push_back(head);
        }
        fits
    }
}

/// The size of its fields as text.
fn head_bytes(head: &Response<()>) -> usize {
    head.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
