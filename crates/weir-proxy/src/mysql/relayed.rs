//! Clients whose login is relayed to a server: all of them with `passwords = "relay"`, otherwise those whose
//! account does not use a password. Weir learns no password, and the client stays on that server. Weir does
//! not read statements; it follows only whose turn it is, so that it can send the client an error when its
//! connection ends.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Context;

use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Stream};
use weir_mysql::compressed::CompressedHeader;
use weir_mysql::packet::write_packet_with;
use weir_mysql::turns::{Turn, Turns};
use weir_stats::table::End;

use super::attach::AttachError;
use super::failure::Refusal;
use super::kill::next_connection_id;
use super::leaving::{LONGEST_GOODBYE, until_quiet};
use super::login::{self, ClientLoggedIn, LoginTerms, Undecided};
use super::unfit::Unfit;
use crate::backends::{Chosen, Connection, ProxyHeader};
use crate::client::Client;
use crate::reach::{Attempt, Reach, RetryVerdict};
use crate::tcp::relay::{self, FirstBytes, Heard, Paces, Pair, Terms};
use crate::worker::{ListenerSlot, Worker};

/// The context in which such a client is served.
pub struct Relaying<'a> {
    pub worker: &'a Rc<Worker>,
    pub slot: &'a Rc<ListenerSlot>,
    pub client: Client,
    /// The session's own deadline.
    pub deadline: &'a Deadline,
}

impl Relaying<'_> {
    /// Serves a client from its login to its end.
    pub async fn serve(&self, terms: &LoginTerms<'_>, stream: Stream, first: Option<Buffer>) -> End {
        match Box::pin(login::hear(terms, stream, first, next_connection_id())).await {
            Ok(undecided) => self.settle(terms, undecided).await,
            Err(end) => end,
        }
    }

    /// Serves a client that was asked for a password but whose account has none, to its end.
    pub async fn serve_unasked(&self, terms: &LoginTerms<'_>, undecided: Undecided<'_>) -> End {
        terms.listener.shared.cells.of(self.worker.number).pinned_by_plugin.increment();
        self.settle(terms, undecided).await
    }

    async fn settle(&self, terms: &LoginTerms<'_>, mut undecided: Undecided<'_>) -> End {
        let LoginTerms { worker, listener, pool, deadline, report, .. } = *terms;
        let begun = clock::now();
        let mut reach = Reach::begin(pool, super::wish(listener), begun);
        let (chosen, asked) = loop {
            let left = |context: &mut Context<'_>| undecided.poll_left(context);
            let got = reach.choose(worker, pool, deadline, clock::now(), left).await;
            if let Some(queued) = got.as_ref().map_or_else(|why| why.queued(), |got| got.queued) {
                let mut report = report.borrow_mut();
                report.queue = Some(report.queue.unwrap_or_default() + queued);
            }
            let chosen = match got {
                Ok(got) => got.chosen,
                Err(why) => {
                    let end = why.end();
                    let refusal = Refusal::unavailable(why, &pool.shared.config.name);
                    return undecided.refuse(refusal.error, end).await;
                }
            };
            report.borrow_mut().backend = Some(chosen.index);
            let header = ProxyHeader::of(pool, &self.client, || undecided.local_addr());
            let error = match undecided.ask(&chosen, &header).await {
                Ok(asked) => break (chosen, asked),
                Err(error) => error,
            };
            let is_last_word = matches!(&error, AttachError::Refused(error) if !error.is_about_server());
            let unfit = Unfit::Attach(error);
            unfit.note(&chosen, worker);
            let attempt = Attempt::unsent(unfit.retried_as());
            let cells = listener.shared.cells.of(worker.number);
            let goes_on = !is_last_word && reach.after(pool, &chosen, &attempt, cells) != RetryVerdict::Leave;
            report.borrow_mut().retries = reach.retries();
            if let (false, Unfit::Attach(error)) = (goes_on, unfit) {
                return undecided.refused(error).await;
            }
        };
        let settled = Box::pin(undecided.settle(&chosen, asked)).await;
        let (mut client, server, ok) = match settled {
            Ok(settled) => settled,
            Err(end) => return end,
        };
        report.borrow_mut().connect = Some(clock::now().saturating_sub(begun));
        let mut answer = Vec::with_capacity(ok.len() + 4);
        write_packet_with(&mut answer, client.sequence, |out| out.extend_from_slice(&ok));
        deadline.set(clock::now() + super::session::CLIENT_PATIENCE);
        if weir_io::wait::send_all(&mut client.stream, &answer, deadline, || {}).await.is_err() {
            return End::ClientClosed;
        }
        self.pass_on(terms, client, server.connection, &chosen).await
    }

    /// Relays bytes in both directions until one side ends.
    async fn pass_on(
        &self,
        terms: &LoginTerms<'_>,
        mut client: ClientLoggedIn,
        mut server: Connection,
        chosen: &Chosen,
    ) -> End {
        let listener = terms.listener;
        let client_cells = listener.shared.cells.of(self.worker.number);
        let cells = chosen.backend().cells();
        cells.requests[0].increment();
        let idle = listener.shared.config.timeout.client_idle;
        let ender = server.ender();
        let is_compressed = client.candidate.compression.is_some();
        let turns = RefCell::new(Turns::new(is_compressed));
        if let Some(first) = &client.first {
            turns.borrow_mut().client_said(Some(first.filled()));
        }
        let heard = Heard {
            from_client: Some(&|bytes| turns.borrow_mut().client_said(bytes)),
            from_backend: Some(&|bytes| turns.borrow_mut().server_said(bytes)),
        };
        let draining_until = || {
            let leaves = self.worker.to_be_left_by(&chosen.backend().shared);
            // A running statement may finish first.
            let leaves = leaves.filter(|_| turns.borrow().turn() == Some(Turn::Between));
            leaves.into_iter().chain(self.slot.draining_until()).min()
        };
        let relayed = relay::run(
            Pair { client: &mut client.stream, backend: &mut *server },
            FirstBytes { from_client: client.first.take(), from_backend: None },
            // Servers close TLS without close_notify.
            Terms {
                buffers: &self.worker.buffers,
                deadline: self.deadline,
                idle,
                idle_end: End::ClientIdle,
                ends_unsaid: true,
                paces: Paces::default(),
                ender,
                heard,
            },
            draining_until,
            relay::counting(client_cells, cells, 0),
        );
        let relayed = relayed.await;
        {
            let mut report = terms.report.borrow_mut();
            report.from_client += relayed.from_client;
            report.to_client += relayed.from_backend;
        }
        if relayed.is_quiet {
            drop(server);
            let turn = turns.borrow().turn();
            self.tell_why(&mut client.stream, turn, is_compressed, relayed.end).await;
        }
        relayed.end
    }

    /// Sends the client an error about why its connection ends, if it is known which packet the client
    /// expects.
    async fn tell_why(&self, stream: &mut Stream, turn: Option<Turn>, is_compressed: bool, end: End) {
        let (refusal, sequence) = match (end, turn) {
            (End::Draining, Some(Turn::Between)) => (Refusal::draining(), 0),
            (End::Draining, Some(Turn::Answer(sequence))) => (Refusal::draining(), sequence),
            (End::ClientIdle, Some(Turn::Between)) => (Refusal::idle(), 0),
            (_, Some(Turn::Between)) => return,
            _ => return stream.reset_on_close(),
        };
        let mut packet = Vec::with_capacity(256);
        refusal.error.write(&mut packet, sequence);
        if is_compressed {
            let header = CompressedHeader { payload_bytes: packet.len() as u32, sequence, content_bytes: 0 };
            packet.splice(..0, header.to_bytes());
        }
        self.deadline.set(clock::now() + LONGEST_GOODBYE);
        if weir_io::wait::send_all(stream, &packet, self.deadline, || {}).await.is_ok() {
            until_quiet(stream, self.deadline, self.worker).await;
        }
    }
}
