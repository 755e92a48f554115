//! Clients that speak HTTP by other people's libraries.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::backend::events_of;
use super::raw;
use super::site::HOST;
use super::sql_clients::sql_works;
use super::traffic::{Kind, Outcome, Shared};
use crate::dialogue::{Draws, PATIENCE};
use crate::storm::{body_of, receipt};
use crate::versions::{self, Answer, Client, Failed, Front, Part};

/// HTTP/1.1 connections that are kept for later requests.
const MOST_KEPT: usize = 8;
/// How long they are: shorter than Weir's `client_idle`. Otherwise it may close one at the moment when a
/// request is sent on it (RFC 9112 section 9.5).
const KEPT_FOR: Duration = Duration::from_secs(3);
/// How often one request may be refused before that counts as a failure.
const MOST_REFUSALS: u32 = 10;
/// One in so many requests on a shared connection is its last.
const LAST_ONE_IN: u64 = 150;
/// Paths that the cache is asked for.
const CACHED: u64 = 40;

/// What clients share.
pub(super) struct Clients {
    pub(super) shared: Arc<Shared>,
    /// Each with the moment when it became idle.
    kept: RefCell<Vec<(Client, Instant)>>,
    http2: Lane,
    http3: Lane,
    /// Remembers tickets.
    pub(super) tls: Arc<rustls::ClientConfig>,
}

/// A connection that many requests share.
struct Lane {
    front: Front,
    client: tokio::sync::Mutex<Option<(u64, Client)>>,
    /// Connections made so far.
    number: Cell<u64>,
}

/// A request and the required answer.
pub(super) struct Question {
    pub(super) path: String,
    /// What is posted; `None` for a GET.
    content: Option<Vec<u8>>,
    /// The content goes in so many pieces, with this pause between them.
    pieces: (usize, Duration),
    is_declared: bool,
    pub(super) expected: Vec<u8>,
    /// Its number in the ledger of what was executed.
    post: Option<usize>,
}

impl Question {
    /// A GET of a body of so many bytes.
    pub(super) fn get(number: u64, length: usize) -> Question {
        Question {
            path: format!("/r/{number}/{length}"),
            content: None,
            pieces: (1, Duration::ZERO),
            is_declared: true,
            expected: body_of(number, length),
            post: None,
        }
    }

    fn post(number: u64, length: usize) -> Question {
        let content = body_of(number, length);
        let post = usize::try_from(number).unwrap_or(0);
        Question {
            path: format!("/p/{number}"),
            expected: receipt(&content).into_bytes(),
            content: Some(content),
            post: Some(post),
            ..Question::get(number, 0)
        }
    }

    fn draw(number: u64, draws: &mut Draws) -> Question {
        let length = match draws.below(100) {
            0..80 => draws.below(200),
            80..97 => draws.below(8_192),
            _ => draws.below(200_000),
        } as usize;
        if draws.below(5) > 0 {
            return Question::get(number, length);
        }
        Question { is_declared: draws.below(4) > 0, ..Question::post(number, length) }
    }

    fn below(mut self, prefix: &str) -> Question {
        self.path.insert_str(0, prefix);
        self
    }

    fn method(&self) -> &'static str {
        if self.content.is_some() { "POST" } else { "GET" }
    }

    fn parts(&self) -> Vec<Part> {
        let Some(content) = &self.content else { return Vec::new() };
        let (count, pause) = self.pieces;
        let mut parts = Vec::new();
        for piece in content.chunks(content.len().div_ceil(count).max(1)) {
            if !parts.is_empty() {
                parts.push(Part::Pause(pause));
            }
            parts.push(Part::Content(Bytes::copy_from_slice(piece)));
        }
        if parts.is_empty() { vec![Part::Content(Bytes::new())] } else { parts }
    }

    async fn ask(&self, client: &mut Client) -> Result<Answer, Failed> {
        let length = self.content.as_ref().map_or(0, Vec::len).to_string();
        let declared = [("content-length", length.as_str())];
        let fields = if self.content.is_some() && self.is_declared { &declared[..] } else { &[] };
        let asked = client.ask(self.method(), &self.path, fields, self.parts());
        timeout(PATIENCE, asked).await.unwrap_or(Err(Failed::Broken(format!("nothing in {PATIENCE:?}"))))
    }

    /// Whether this is the right answer.
    pub(super) fn judge(&self, shared: &Shared, status: u16, content: &[u8]) -> Outcome {
        if status != 200 {
            let text = String::from_utf8_lossy(&content[..content.len().min(200)]).into_owned();
            return self.failed(format!("{status} {text:?}"));
        }
        if content != self.expected {
            let (got, expected) = (content.len(), self.expected.len());
            return Outcome::Wrong(format!("{}: {got} bytes for {expected}, or others", self.path));
        }
        if let Some(number) = self.post {
            shared.answered.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
        Outcome::Good
    }

    pub(super) fn failed(&self, what: String) -> Outcome {
        Outcome::Failed(self.path.clone(), what)
    }
}

impl Lane {
    fn new(front: Front) -> Lane {
        Lane { front, client: tokio::sync::Mutex::new(None), number: Cell::new(0) }
    }

    async fn current(&self, shared: &Shared) -> Result<(u64, Client), Failed> {
        let current = &mut *self.client.lock().await;
        if current.is_none() {
            let client = connect(shared, self.front, shared.targets.secure).await?;
            self.number.set(self.number.get() + 1);
            *current = Some((self.number.get(), client));
        }
        let (number, client) = current.as_ref().expect("made above");
        Ok((*number, client.share().expect("many at once")))
    }

    /// Uses this connection no more.
    async fn leaves(&self, number: u64) {
        let current = &mut *self.client.lock().await;
        if current.as_ref().is_some_and(|(of, _)| *of == number) {
            *current = None;
        }
    }
}

pub(super) async fn connect(shared: &Shared, front: Front, address: SocketAddr) -> Result<Client, Failed> {
    let connecting = Client::connect(front, &shared.authority, address, HOST);
    let connected = timeout(PATIENCE, connecting).await;
    connected.unwrap_or_else(|_| Err(Failed::Broken(format!("no connection in {PATIENCE:?}"))))
}

/// Whether hyper says that a connection ended before the head of an answer.
fn has_no_answer(why: &str) -> bool {
    ["before message completed", "connection error"].iter().any(|it| why.contains(it))
}

impl Clients {
    pub(super) fn new(shared: Arc<Shared>) -> Clients {
        let tls = Arc::new(versions::of_client(&shared.authority, b"http/1.1"));
        let (http2, http3) = (Lane::new(Front::Http2Tls), Lane::new(Front::Http3));
        Clients { shared, kept: RefCell::default(), http2, http3, tls }
    }

    /// One client's work from its arrival to its end.
    pub(super) async fn works(&self, kind: Kind, number: u64, mut draws: Draws) -> Outcome {
        let targets = &self.shared.targets;
        match kind {
            Kind::Kept => {
                let question = Question::draw(number, &mut draws);
                // What may not be sent twice is not sent on a connection that may just be ending.
                if question.content.is_some() {
                    return self.over_new(&question, targets.web).await;
                }
                self.over_kept(&question).await
            }
            Kind::Fresh => self.over_new(&Question::draw(number, &mut draws), targets.web).await,
            Kind::Http2 => self.over(&self.http2, &Question::draw(number, &mut draws), &mut draws).await,
            Kind::Http3 => self.over(&self.http3, &Question::draw(number, &mut draws), &mut draws).await,
            Kind::Resumed => self.resumes(number, &mut draws).await,
            Kind::Modern => self.asks_modern(number, &mut draws).await,
            Kind::WebSocket => raw::web_socket(targets.web, number, draws).await,
            Kind::Events => {
                let count = draws.below(30) + 1;
                let expected = events_of(number, count).into_bytes();
                let path = format!("/events/{number}/{count}");
                self.over_any(&Question { path, expected, ..Question::get(number, 0) }, &mut draws).await
            }
            Kind::SlowUpload => {
                let length = [1_000, 100_000, 600_000][draws.below(3) as usize];
                let pieces = (draws.below(10) as usize + 2, Duration::from_millis(draws.below(300)));
                let declared = draws.below(3) > 0;
                let post = Question { pieces, is_declared: declared, ..Question::post(number, length) };
                self.over_any(&post.below("/u"), &mut draws).await
            }
            Kind::SlowReader => raw::slow_reader(self, number, &mut draws).await,
            Kind::Leaver => raw::leaver(self, number, &mut draws).await,
            Kind::Relay => raw::relay(self, number, &mut draws).await,
            Kind::Datagrams => raw::datagrams(targets.flow, number, &mut draws).await,
            Kind::Cached => self.asks_cache(number, &mut draws).await,
            Kind::Limited => self.asks_limited(number).await,
            Kind::Named => {
                let question = Question::get(number, draws.below(9000) as usize).below("/n");
                self.over_new(&question, targets.web).await
            }
            Kind::Extra => match self.over_new(&Question::get(number, 100), targets.extra).await {
                // It comes and goes, so only a wrong answer is one.
                Outcome::Failed(..) => Outcome::Good,
                other => other,
            },
            Kind::Sql(work) => {
                let shared = self.shared.clone();
                let works = move || sql_works(&shared, work, number, &mut draws);
                let done = tokio::task::spawn_blocking(works).await;
                done.unwrap_or_else(|problem| Outcome::Wrong(format!("a client panicked: {problem}")))
            }
        }
    }

    /// In whichever version of HTTP is drawn.
    async fn over_any(&self, question: &Question, draws: &mut Draws) -> Outcome {
        match draws.below(3) {
            0 => self.over_new(question, self.shared.targets.web).await,
            1 => self.over(&self.http2, question, draws).await,
            _ => self.over(&self.http3, question, draws).await,
        }
    }

    /// A kept connection that has not been idle for long.
    fn young_kept(&self) -> Option<Client> {
        let kept = &mut self.kept.borrow_mut();
        kept.retain(|(_, since)| since.elapsed() < KEPT_FOR);
        kept.pop().map(|(client, _)| client)
    }

    /// A GET on a kept connection, or one that will be kept. It is sent again where a kept one has ended
    /// without an answer: an upgrade ends connections that are idle, perhaps at the moment when a request is
    /// sent on them (RFC 9112 section 9.3.1).
    async fn over_kept(&self, question: &Question) -> Outcome {
        for _ in 0..MOST_REFUSALS {
            let kept = self.young_kept();
            let was_kept = kept.is_some();
            let client = match kept {
                Some(client) => Ok(client),
                None => connect(&self.shared, Front::Http1, self.shared.targets.web).await,
            };
            let mut client = match client {
                Ok(client) => client,
                Err(failed) => return question.failed(format!("can't connect: {failed:?}")),
            };
            match question.ask(&mut client).await {
                Ok(answer) => {
                    let kept = &mut self.kept.borrow_mut();
                    if kept.len() < MOST_KEPT {
                        kept.push((client, Instant::now()));
                    }
                    return question.judge(&self.shared, answer.status.as_u16(), &answer.content);
                }
                Err(Failed::Refused(_)) => {}
                Err(Failed::Broken(why)) if was_kept && has_no_answer(&why) => {}
                Err(Failed::Broken(why)) => return question.failed(why),
            }
            self.shared.repeated.fetch_add(1, Ordering::Relaxed);
        }
        question.failed(format!("refused {MOST_REFUSALS} times"))
    }

    /// On a connection of its own.
    async fn over_new(&self, question: &Question, address: SocketAddr) -> Outcome {
        let answer = match connect(&self.shared, Front::Http1, address).await {
            Ok(mut client) => question.ask(&mut client).await,
            Err(failed) => Err(failed),
        };
        match answer {
            Ok(answer) => question.judge(&self.shared, answer.status.as_u16(), &answer.content),
            Err(failed) => question.failed(format!("{failed:?}")),
        }
    }

    /// On a connection that many share.
    async fn over(&self, lane: &Lane, question: &Question, draws: &mut Draws) -> Outcome {
        match self.answer_over(lane, question, draws).await {
            Ok(answer) => question.judge(&self.shared, answer.status.as_u16(), &answer.content),
            Err(why) => question.failed(format!("{:?}: {why}", lane.front)),
        }
    }

    async fn answer_over(
        &self,
        lane: &Lane,
        question: &Question,
        draws: &mut Draws,
    ) -> Result<Answer, String> {
        for _ in 0..MOST_REFUSALS {
            let (number, mut client) =
                lane.current(&self.shared).await.map_err(|failed| format!("can't connect: {failed:?}"))?;
            if draws.below(LAST_ONE_IN) == 0 {
                lane.leaves(number).await;
            }
            match question.ask(&mut client).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Refused(_)) => {
                    self.shared.repeated.fetch_add(1, Ordering::Relaxed);
                    lane.leaves(number).await;
                }
                Err(Failed::Broken(why)) => {
                    lane.leaves(number).await;
                    return Err(why);
                }
            }
        }
        Err(format!("refused {MOST_REFUSALS} times"))
    }

    async fn asks_modern(&self, number: u64, draws: &mut Draws) -> Outcome {
        let content = body_of(number, draws.below(50_000) as usize);
        let pool = ["m2", "m3"][draws.below(2) as usize];
        let path = format!("/{pool}/digest?{number}");
        let expected = receipt(&content).into_bytes();
        let question = Question { path, expected, content: Some(content), ..Question::get(number, 0) };
        let lane = if draws.below(2) == 0 { &self.http2 } else { &self.http3 };
        self.over(lane, &question, draws).await
    }

    async fn asks_cache(&self, number: u64, draws: &mut Draws) -> Outcome {
        let (seed, least) = (draws.below(CACHED), self.shared.purged.load(Ordering::SeqCst));
        let length = seed as usize * 97;
        let question = Question {
            path: format!("/c/{seed}/{length}?{number}"),
            expected: body_of(seed, length),
            ..Question::get(number, 0)
        };
        let answer = if draws.below(2) == 0 {
            self.answer_over(&self.http2, &question, draws).await
        } else {
            match connect(&self.shared, Front::Http1, self.shared.targets.web).await {
                Ok(mut client) => question.ask(&mut client).await.map_err(|failed| format!("{failed:?}")),
                Err(failed) => Err(format!("{failed:?}")),
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => return question.failed(why),
        };
        let version =
            answer.fields.get("x-version").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if answer.status == 200 && version.is_none_or(|version| version < least) {
            let path = &question.path;
            return Outcome::Wrong(format!(
                "{path}: version {version:?}, but {least} was there and all older ones purged"
            ));
        }
        question.judge(&self.shared, answer.status.as_u16(), &answer.content)
    }

    async fn asks_limited(&self, number: u64) -> Outcome {
        let question = Question::get(number, 64);
        let connected = connect(&self.shared, Front::Http1, self.shared.targets.limited).await;
        let answer = match connected {
            Ok(mut client) => question.ask(&mut client).await,
            Err(failed) => Err(failed),
        };
        match answer {
            Ok(answer) if answer.status == 429 => Outcome::Good,
            Ok(answer) => {
                self.shared.passed.fetch_add(1, Ordering::Relaxed);
                question.judge(&self.shared, answer.status.as_u16(), &answer.content)
            }
            Err(failed) => question.failed(format!("{failed:?}")),
        }
    }

    async fn resumes(&self, number: u64, draws: &mut Draws) -> Outcome {
        let question = Question::get(number, draws.below(4000) as usize);
        let asked = async {
            let stream = TcpStream::connect(self.shared.targets.secure).await?;
            let name = ServerName::try_from(HOST).map_err(std::io::Error::other)?;
            let mut stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await?;
            self.shared.handshakes.fetch_add(1, Ordering::Relaxed);
            if stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
                self.shared.resumed.fetch_add(1, Ordering::Relaxed);
            }
            stream.write_all(raw::get(&question.path, true).as_bytes()).await?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await?;
            Ok::<_, std::io::Error>(bytes)
        };
        match timeout(PATIENCE, asked).await {
            Ok(Ok(bytes)) => raw::judge(&question, &self.shared, &bytes),
            Ok(Err(problem)) => question.failed(problem.to_string()),
            Err(_) => question.failed(format!("nothing in {PATIENCE:?}")),
        }
    }
}
