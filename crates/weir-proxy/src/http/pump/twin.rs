//! A body that two backends get in parallel: all of it is sent with the head, and each backend gets its own
//! end of the body.

use weir_http::{BodyLength, BodyReader, Limits};

use super::Pump;

impl Pump {
    /// Whether all of it was received, and all but its end was moved to where it is sent with the head.
    pub fn is_whole(&self) -> bool {
        self.is_received() && self.streamed == 0 && self.framer.is_clear() && self.trailers().next().is_none()
    }

    /// The same body for another sink; only for a body that is whole.
    pub fn twin(&self) -> Pump {
        let reader = BodyReader::new(BodyLength::None, &Limits::default());
        let twin = Pump::new(reader, self.framer.kind(), None, None);
        Pump { framer: self.framer.clone(), ..twin }
    }

    /// Goes on from the state of its twin.
    pub fn stand_in(&mut self, twin: Pump) {
        self.framer = twin.framer;
    }
}
