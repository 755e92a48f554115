//! The request's body on its way to a backend.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use weir_http::h1::connection::Drained;
use weir_http::{BodyLength, BodyReader, DroppedNames, Limits, Violation};
use weir_io::buffers::{Buffer, Buffers, Charge};
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::temporary::TemporaryFile;

use crate::http::aside::{AsideContent, AsideLost};
use crate::http::claim::HeldClaim;
use crate::http::failure::{Awaited, Failure};
use crate::http::filed::Filed;
use crate::http::pump::{Pump, PumpError};
use crate::http::sink::Framing;
use crate::http::stream::Stream;
use crate::http::untaken::Untaken;

/// A client may be slow for this long before its rate is looked at.
const RATE_GRACE: Duration = Duration::from_secs(5);

/// The request's body.
pub struct Upload {
    /// Boxed, for most requests have no body, and are handed on all the same.
    body: Option<Box<Body>>,
    /// What is still to be sent of what leaves with the head. A head without a body may be too long, too.
    untaken: Option<Box<Untaken>>,
    /// Whether the backend stopped taking the request; it may have answered all the same.
    refused: bool,
    /// Whether the request did not leave whole, as it was given up: the backend's connection is good for no
    /// other one, which it would take for the rest of this one.
    cut: bool,
}

/// What there is where there is a body.
struct Body {
    pump: Pump,
    /// Whether any of it left after the head, so that it can't be sent again.
    streamed: bool,
    /// From when on the client's rate counts, pauses left out.
    began: Duration,
    /// Since when nobody reads it; `None` while somebody does.
    paused_at: Option<Duration>,
    /// What of it waits in a file behind what leaves with the head.
    filed: Option<Box<Filed>>,
    /// Bytes sent to the last backend out of a file that was given up since.
    filed_bytes: u64,
    /// When the last of it moved on behind the head; zero where none did.
    moved_at: Duration,
}

impl Body {
    fn new(pump: Pump, began: Duration, paused_at: Option<Duration>) -> Box<Body> {
        let (filed, filed_bytes, moved_at) = (None, 0, Duration::ZERO);
        Box::new(Body { pump, streamed: false, began, paused_at, filed, filed_bytes, moved_at })
    }

    /// Whether some of it is in a file and not sent yet.
    fn is_filed(&self) -> bool {
        self.filed.as_ref().is_some_and(|filed| !filed.is_sent())
    }

    /// Whether all of it was received and sent.
    fn is_done(&self) -> bool {
        self.pump.is_done() && !self.is_filed()
    }

    /// Whether the client is still to send some of it, whatever of it is still to be sent on.
    fn waits_for_client(&self) -> bool {
        !self.pump.is_done() && self.pump.waits_for_source()
    }

    /// Bytes sent to the backend after what left with the head, framing included.
    fn streamed_bytes(&self) -> u64 {
        self.pump.streamed + self.filed_bytes + self.filed.as_ref().map_or(0, |filed| filed.sent())
    }

    fn pause(&mut self, now: Duration) {
        self.paused_at.get_or_insert(now);
    }

    fn resume(&mut self, now: Duration) {
        if let Some(paused_at) = self.paused_at.take() {
            self.began += now.saturating_sub(paused_at);
        }
    }

    /// Whether the client has sent less than `rate` bytes per second on average, while it was its turn.
    fn is_too_slow(&self, now: Duration, rate: u64) -> bool {
        let spent = now.saturating_sub(self.began);
        rate > 0
            && spent > RATE_GRACE
            && self.paused_at.is_none()
            && self.waits_for_client()
            && (self.pump.received as f64) < rate as f64 * spent.as_secs_f64()
    }
}

impl Upload {
    /// No body.
    pub fn none() -> Upload {
        Upload { body: None, untaken: None, refused: false, cut: false }
    }

    /// A body that `pump` will read, from [`Self::resume`] on.
    pub fn of(pump: Pump, now: Duration) -> Upload {
        Upload { body: Some(Body::new(pump, now, Some(now))), ..Upload::none() }
    }

    /// The client is read from now on.
    pub fn resume(&mut self, now: Duration) {
        if let Some(body) = &mut self.body {
            body.resume(now);
        }
    }

    /// Nobody reads the client until [`Self::resume`]: what it does not send meanwhile is not its fault.
    pub fn pause(&mut self, now: Duration) {
        if let Some(body) = &mut self.body {
            body.pause(now);
        }
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.body.is_none()
    }

    /// Whether all of it was received and sent.
    #[inline]
    pub fn is_done(&self) -> bool {
        !self.is_untaken() && self.body.as_ref().is_none_or(|body| body.is_done())
    }

    /// Whether the client is done with it, whatever of it is still to be sent on.
    #[inline]
    pub fn has_left_client(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.pump.is_done())
    }

    /// Whether some of what leaves with the head is still to be sent.
    #[inline]
    fn is_untaken(&self) -> bool {
        self.untaken.as_ref().is_some_and(|untaken| !untaken.is_sent())
    }

    /// The backend has not taken this `rest` of what leaves with the head.
    pub fn begin_untaken(&mut self, rest: Range<usize>) {
        self.untaken = Some(Box::new(Untaken::new(rest)));
    }

    /// No other backend may be asked: what leaves with the head is given up but for what is still to be sent
    /// of it, which is kept together with what stands for the memory. `held` gives it.
    pub fn own_untaken(&mut self, charge: Option<Charge>, held: impl FnOnce() -> Vec<u8>) {
        let is_moving = !self.refused;
        let untaken = self.untaken.as_deref_mut().filter(|untaken| is_moving && !untaken.is_sent());
        if let Some(untaken) = untaken {
            untaken.own(held(), charge);
        }
    }

    /// Whether some of it is in a file and not sent yet.
    #[inline]
    fn is_filed(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_filed())
    }

    /// What there is of it in a file.
    fn filed(&self) -> Option<&Filed> {
        self.body.as_ref()?.filed.as_deref()
    }

    /// Whether all of it is here, to be sent and sent again.
    pub fn is_here(&self) -> bool {
        // The end of a stream is told apart from what leaves with the head.
        self.is_done() || self.is_whole() || (self.filed().is_some() && self.is_received())
    }

    /// Notes that some of it has moved on.
    pub fn note_moved(&mut self, now: Duration) {
        if let Some(body) = &mut self.body {
            body.moved_at = now;
        }
    }

    /// When the last of it moved on behind the head; zero where none did.
    pub fn moved_at(&self) -> Duration {
        self.body.as_ref().map_or(Duration::ZERO, |body| body.moved_at)
    }

    /// Whether it can only go on once the disk has done something.
    pub fn awaits_disk(&self) -> bool {
        !self.refused && self.filed().is_some_and(|filed| filed.awaits_disk())
    }

    /// Whether the client is not read for the disk has not taken what it sent.
    pub fn is_stuck(&self) -> bool {
        self.filed().is_some_and(|filed| filed.is_stuck())
    }

    /// Whether all of it was received.
    pub fn is_received(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.pump.is_received())
    }

    /// Whether all of it leaves with the head, or there is none; so never where a part is in a file.
    pub fn is_whole(&self) -> bool {
        let is_whole = |body: &Body| !body.streamed && body.filed.is_none() && body.pump.is_whole();
        self.body.as_deref().is_none_or(is_whole)
    }

    /// The same body for another backend, which gets it beside the first; of one that is whole.
    pub fn twin(&self) -> Upload {
        let twin = |body: &Body| Body::new(body.pump.twin(), Duration::ZERO, None);
        Upload { body: self.body.as_deref().map(twin), ..Upload::none() }
    }

    /// Goes on with the backend that its twin went to.
    pub fn stand_in(&mut self, twin: Upload) {
        (self.refused, self.cut, self.untaken) = (twin.refused, twin.cut, twin.untaken);
        if let (Some(body), Some(twin)) = (&mut self.body, twin.body) {
            body.pump.stand_in(twin.pump);
        }
    }

    /// What leaves with the head, where it was kept.
    pub fn take_copy(&mut self) -> Vec<u8> {
        self.body.as_mut().map_or_else(Vec::new, |body| body.pump.take_copy())
    }

    /// All of the body, where it was to be put aside and has come; empty where there is none.
    pub fn take_aside(&mut self) -> Result<AsideContent, AsideLost> {
        self.body.as_mut().map_or_else(|| Ok(AsideContent::default()), |body| body.pump.take_aside())
    }

    /// Content bytes that [`Self::poll_hold`] has moved.
    pub fn held(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| body.pump.held())
    }

    /// Moves what comes behind the head in `out`, until the body is over or `claim` has no room for more.
    pub fn poll_hold(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        buffers: &Rc<Buffers>,
        out: &mut Vec<u8>,
        claim: &mut HeldClaim<'_>,
    ) -> Poll<Result<(), PumpError>> {
        match &mut self.body {
            Some(body) => body.pump.poll_hold(context, client, buffers, out, claim),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Receives into a file, behind what [`Self::poll_hold`] moved, until the body is over or no more goes
    /// into it.
    pub fn poll_file(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        buffers: &Rc<Buffers>,
    ) -> Poll<Result<(), PumpError>> {
        let Some(Body { pump, filed: Some(filed), .. }) = self.body.as_deref_mut() else {
            return Poll::Ready(Ok(()));
        };
        match pump.poll(context, client, &mut **filed, buffers, &mut false) {
            Poll::Pending if filed.is_full() => Poll::Ready(Ok(())),
            polled => polled,
        }
    }

    /// What goes on from now on has a file behind it.
    pub fn begin_file(&mut self, file: TemporaryFile) {
        if let Some(body) = &mut self.body {
            body.filed = Some(Box::new(Filed::new(file)));
        }
    }

    /// What is in the file waits for a backend from now on.
    pub fn end_file(&mut self) {
        if let Some(body) = &mut self.body {
            body.pump.begin_behind();
        }
    }

    /// Gives the file up where all of it was sent, to a backend whose answer is here.
    pub fn leave_file(&mut self) {
        let Some(body) = &mut self.body else { return };
        if let Some(filed) = body.filed.take_if(|filed| filed.is_sent()) {
            body.filed_bytes += filed.sent();
        }
    }

    /// Whether the client is still to send some of it, as far as is known.
    pub fn is_awaited(&self) -> bool {
        let is_awaited = |body: &Body| !body.is_filed() && body.waits_for_client();
        !self.is_untaken() && self.body.as_deref().is_some_and(is_awaited)
    }

    /// The same, before it is looked at what has come; as it `was` where the backend takes no more.
    pub fn is_awaited_or(&self, was: bool) -> bool {
        if self.refused { was && !self.is_done() } else { self.is_awaited() }
    }

    /// Whether the client has said how much there is, and not sent all of it.
    pub fn is_owed(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.pump.is_owed())
    }

    /// Whether everything sent so far can be sent once more.
    pub fn is_replayable(&self) -> bool {
        self.body.as_ref().is_none_or(|body| !body.streamed)
    }

    /// The backend takes no more of it.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether its backend's connection is good for no other request.
    pub fn is_cut(&self) -> bool {
        self.cut || self.is_untaken() || self.is_filed()
    }

    /// Makes ready for another backend, which gets the part that left with the head once more.
    pub fn retry(&mut self, now: Duration) {
        (self.refused, self.cut, self.untaken) = (false, false, None);
        let Some(body) = &mut self.body else { return };
        body.pause(now);
        body.pump.begin_again();
        if let Some(filed) = &mut body.filed {
            filed.begin_again();
        }
    }

    /// Frames for another backend what leaves with the head: of the body that is `held`, which goes behind
    /// what is in `out`. What is in a file goes behind it.
    pub fn frame_anew(&mut self, framing: Framing, held: &[u8], out: &mut Vec<u8>) {
        let Some(body) = &mut self.body else { return };
        let length = body.filed.as_ref().map_or(0, |filed| filed.length());
        let behind = body.pump.frame_anew(framing, held, length, out);
        if let Some(filed) = &mut body.filed {
            filed.set_behind(behind);
        }
    }

    /// Whether it can be framed otherwise than it is: not while a file holds it in chunks.
    pub fn may_be_framed_anew(&self) -> bool {
        let is_fixed = |body: &Body| body.filed.is_some() && body.pump.framing() == Framing::Chunked;
        !self.body.as_deref().is_some_and(is_fixed)
    }

    /// Its trailers lose these names from now on.
    pub fn drop_names(&mut self, names: Option<Arc<DroppedNames>>) {
        if let Some(body) = &mut self.body {
            body.pump.dropped = names;
        }
    }

    /// Frames otherwise, for a backend of another pool, what is `held` and was to leave with the head: it
    /// goes behind what is in `out`. Nothing has left.
    pub fn move_to(
        &mut self,
        framing: Framing,
        held: Vec<u8>,
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let was = self.body.as_ref().map_or(Framing::Plain, |body| body.pump.framing());
        if !self.may_be_framed_anew() {
            out.extend_from_slice(&held);
            return Ok(());
        }
        let held = match was {
            Framing::Chunked => unframed(&held, limits).map_err(Failure::BadRequest)?,
            Framing::Plain | Framing::Stream => held,
        };
        self.frame_anew(framing, &held, out);
        Ok(())
    }

    /// Whether there is more to move to a backend that takes it.
    #[inline]
    pub fn is_moving(&self) -> bool {
        !self.refused && !self.is_done()
    }

    /// Content bytes received so far.
    pub fn received_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| body.pump.received)
    }

    /// Bytes sent to the backend after what left with the head at once, framing included.
    pub fn streamed_bytes(&self) -> u64 {
        let of_head = self.untaken.as_ref().map_or(0, |untaken| untaken.sent());
        self.body.as_ref().map_or(0, |body| body.streamed_bytes()) + of_head
    }

    /// Moves what can be moved. `Ready` when it is over or the backend takes no more.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        backend: &mut Stream,
        buffers: &Rc<Buffers>,
        moved: &mut bool,
    ) -> Poll<Result<(), Failure>> {
        ready!(self.poll_untaken(context, backend, &[], moved));
        if self.is_filed() && !self.refused {
            self.pause(clock::now());
            ready!(self.poll_filed(context, client, backend, moved))?;
            self.resume(clock::now());
        }
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
        if self.refused {
            return Poll::Ready(Ok(()));
        }
        let mut now_moved = false;
        let polled = body.pump.poll(context, client, backend, buffers, &mut now_moved);
        body.streamed |= now_moved;
        *moved |= now_moved;
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(PumpError::SinkClosed)) => {
                self.refused = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(failure_of(error))),
        }
    }

    /// Moves what is left of what leaves with the head, a part of `shared` until it is [`Self::own_untaken`].
    /// `Ready` when that is over or the backend takes no more.
    pub fn poll_untaken(
        &mut self,
        context: &mut Context<'_>,
        backend: &mut Stream,
        shared: &[u8],
        moved: &mut bool,
    ) -> Poll<()> {
        let Some(untaken) = self.untaken.as_deref_mut().filter(|untaken| !untaken.is_sent()) else {
            return Poll::Ready(());
        };
        let polled = untaken.poll_send(context, backend, shared, moved);
        if polled.is_pending() {
            self.pause(clock::now());
            return Poll::Pending;
        }
        self.refused |= matches!(polled, Poll::Ready(Err(_)));
        self.resume(clock::now());
        Poll::Ready(())
    }

    /// Tells the backend of the end of a body that is here, where nobody sends any of it: the end of a stream
    /// does not leave with the head.
    pub fn poll_tell_end(&mut self, context: &mut Context<'_>, backend: &mut Stream) {
        if let Some(body) = self.body.as_deref_mut().filter(|_| !self.refused) {
            let polled = body.pump.poll_tell_end(context, backend);
            self.refused |= matches!(polled, Poll::Ready(Err(_)));
        }
    }

    /// Moves what is in the file to the backend, which may be sent it again.
    fn poll_filed(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        backend: &mut Stream,
        moved: &mut bool,
    ) -> Poll<Result<(), Failure>> {
        let Some(Body { filed: Some(filed), .. }) = self.body.as_deref_mut() else {
            return Poll::Ready(Ok(()));
        };
        match filed.poll_send(context, backend, moved) {
            Poll::Pending => {
                client.gather(context);
                Poll::Pending
            }
            Poll::Ready(Err(PumpError::SinkClosed)) => {
                self.refused = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(result) => Poll::Ready(result.map_err(failure_of)),
        }
    }

    /// Whether the client has sent less than `rate` bytes per second on average, while it was its turn (D1).
    pub fn is_too_slow(&self, now: Duration, rate: u64) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_too_slow(now, rate))
    }

    /// Proof that all of it was sent to the backend that was asked last; `None` where it was not.
    pub fn sent(&self) -> Option<Drained> {
        let is_sent = self.is_done() && !self.refused && !self.cut;
        is_sent.then(|| BodyReader::new(BodyLength::None, &Limits::default()).drained()).flatten()
    }

    /// What the client sent behind the body, and proof that the body is over. Without a body there is nothing
    /// behind it that the session does not already hold.
    pub fn take_rest(&mut self) -> (Option<Buffer>, Option<Drained>) {
        self.cut |= self.is_untaken();
        match self.body.take() {
            Some(body) => {
                self.cut |= body.is_filed();
                body.pump.into_rest()
            }
            None => (None, BodyReader::new(BodyLength::None, &Limits::default()).drained()),
        }
    }
}

/// The content of what was framed in chunks, or of the front of it.
fn unframed(mut framed: &[u8], limits: &Limits) -> Result<Vec<u8>, Violation> {
    let mut reader = BodyReader::new(BodyLength::Chunked, limits);
    let mut content = Vec::with_capacity(framed.len());
    while !framed.is_empty() && !reader.is_complete() {
        let step = reader.advance(framed)?;
        content.extend_from_slice(&framed[step.data]);
        if step.consumed == 0 {
            break;
        }
        framed = &framed[step.consumed..];
    }
    Ok(content)
}

/// What went wrong on the client's side.
pub fn failure_of(error: PumpError) -> Failure {
    match error {
        PumpError::SourceClosed => Failure::ClientClosed,
        PumpError::Malformed(violation) => Failure::BadRequest(violation),
        PumpError::TooLarge => Failure::BodyTooLarge,
        PumpError::OutOfMemory => Failure::OutOfMemory,
        PumpError::Lost => Failure::BufferLost,
        PumpError::SinkClosed => Failure::BackendClosed(Awaited::Backend),
    }
}
