//! A body that two backends get at once: all of it leaves with the head, and each has an end of its own to
//! send.

use weir_http::{BodyLength, BodyReader, Limits};

use super::Pump;

impl Pump {
    /// Whether all of it was received, and all but its end moved to where it leaves with the head.
    pub fn is_whole(&self) -> bool {
        self.is_received() && self.streamed == 0 && self.framer.is_clear() && self.trailers().next().is_none()
    }

    /// The same body for another sink, of one that is whole.
    pub fn twin(&self) -> Pump {
        let reader = BodyReader::new(BodyLength::None, &Limits::default());
        let twin = Pump::new(reader, self.framer.kind(), None, None);
        Pump { framer: self.framer.clone(), ..twin }
    }

    /// Goes on where its twin is.
    pub fn stand_in(&mut self, twin: Pump) {
        self.framer = twin.framer;
    }
}
