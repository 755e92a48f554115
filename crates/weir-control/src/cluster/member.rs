//! One member of a watched cluster: its persistent connection, and the queries on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use weir_config::ProxyVersion;
use weir_io::clock;
use weir_io::local_end::LocalEnd;
use weir_mysql::gtid::GtidSet;
use weir_mysql::lag::{self, EXECUTED_SQL};
use weir_mysql::topology::{GROUP_SQL, MemberReport, READ_ONLY_SQL, Topology};
use weir_state::Backend;
use weir_tls::OwnAccount;

use super::client::{ClientError, LoginAs, MysqlClient};
use super::receipt::Moment;
use crate::health::probe;
use crate::tasks;

/// How long to wait on the same connection for a server that has stopped answering, although it counts as not
/// answering much earlier. Every new connection would be one more that the server finds broken when it
/// continues, and after `max_connect_errors` (100) of those it locks Weir out (see [`crate::health`]'s
/// probes).
const LOST_AFTER: Duration = Duration::from_secs(10);
/// Least time between two attempts to connect, however urgent a connection is.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Longest time between two attempts, which is how long the return of a server may go unnoticed while there
/// is a primary.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Interval between two queries for what a server has executed.
const MEASURES: Duration = Duration::from_secs(1);

/// How a member is asked.
#[derive(Clone)]
pub(super) struct Manner {
    pub(super) topology: Topology,
    pub(super) account: Option<Arc<OwnAccount>>,
    /// Whether a server without TLS is not used, if the backend has TLS.
    pub(super) requires_tls: bool,
    pub(super) send_proxy: Option<ProxyVersion>,
    /// The source of connections.
    pub(super) local_end: LocalEnd,
    /// Time without an answer after which it counts as not answering.
    pub(super) patience: Duration,
}

impl Manner {
    pub(super) fn is_same(&self, other: &Manner) -> bool {
        let is_same_account = match (&self.account, &other.account) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        let rest = |it: &Manner| (it.topology, it.requires_tls, it.send_proxy, it.patience);
        is_same_account && self.local_end == other.local_end && rest(self) == rest(other)
    }
}

/// Result of asking a member.
pub(super) struct Heard {
    /// Number of the member.
    pub(super) number: u64,
    /// Its answer, or why there is none.
    pub(super) result: Result<MemberReport, String>,
    /// Whether it can be asked.
    pub(super) is_connected: bool,
    pub(super) moment: Moment,
}

/// Results for a member.
pub(super) enum Said {
    /// The result of asking for its role.
    Look(Heard),
    /// The transactions that member `number` had executed, at a clock time; `None` if it does not say.
    Executed { number: u64, executed: Option<GtidSet>, at: Duration },
}

/// The task that asks a member; ends with this.
pub(super) struct Asker {
    ask: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Asker {
    /// Starts to connect, asks once, and then whenever [`Self::ask`] is called. `number` identifies its
    /// answers.
    pub(super) fn start(
        number: u64,
        backend: Arc<Backend>,
        manner: Manner,
        heard: mpsc::Sender<Said>,
    ) -> Asker {
        let ask = Arc::new(Notify::new());
        let task = format!("questions to {}, a member of a cluster", backend.address);
        let conversation = Arc::new(Conversation { number, backend, manner, ask: ask.clone(), heard });
        let begin = move || conversation.clone().run();
        Asker { ask, task: tokio::spawn(tasks::keep_on(task, begin)) }
    }

    /// Has it asked or, if there is no connection, tries to connect soon.
    pub(super) fn ask(&self) {
        self.ask.notify_one();
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Conversation {
    number: u64,
    backend: Arc<Backend>,
    manner: Manner,
    ask: Arc<Notify>,
    heard: mpsc::Sender<Said>,
}

impl Conversation {
    async fn run(self: Arc<Self>) {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let moves = self.backend.resolved.moves();
            let why = match self.connect().await {
                Ok(client) => self.talk(client, moves, &mut pause).await,
                Err(why) => why,
            };
            self.tell(Err(why), false).await;
            // If a connection is wanted the next attempt is made earlier, but not at once: the server may
            // only just have gone.
            sleep(SHORTEST_PAUSE).await;
            let _ = timeout(pause.saturating_sub(SHORTEST_PAUSE), self.ask.notified()).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn tell(&self, result: Result<MemberReport, String>, is_connected: bool) {
        let heard = Heard { number: self.number, result, is_connected, moment: Moment::now() };
        // There is no receiver only if the watch of the pool has ended, and this task with it.
        let _ = self.heard.send(Said::Look(heard)).await;
    }

    /// Waits for `what`, for at most [`LOST_AFTER`] in all; reports when it takes longer than the patience of
    /// the manner.
    async fn patiently<T>(
        &self,
        what: impl Future<Output = Result<T, ClientError>>,
        is_connected: bool,
    ) -> Result<Result<T, ClientError>, String> {
        let patience = self.manner.patience;
        tokio::pin!(what);
        if let Ok(done) = timeout(patience, &mut what).await {
            return Ok(done);
        }
        self.tell(Err(format!("no answer within {patience:?}")), is_connected).await;
        let rest = LOST_AFTER.saturating_sub(patience);
        timeout(rest, what).await.map_err(|_| format!("no answer within {:?}", LOST_AFTER.max(patience)))
    }

    async fn connect(&self) -> Result<MysqlClient, String> {
        let at = self.backend.resolved.at().ok_or("its name is not resolved")?;
        let connecting = timeout(self.manner.patience, self.manner.local_end.connect(&at)).await;
        let mut stream = connecting
            .map_err(|_| format!("did not accept within {:?}", self.manner.patience))?
            .map_err(|error| format!("no connection: {}", probe::plain(&error)))?;
        if let Some(version) = self.manner.send_proxy {
            let said = stream.write_all(probe::announcement(version)).await;
            said.map_err(|error| format!("connection broke: {}", probe::plain(&error)))?;
        }
        let login = LoginAs {
            account: self.manner.account.as_deref(),
            tls: self.backend.tls.as_ref().map(|tls| (tls, self.manner.requires_tls)),
        };
        let mut greeted = None;
        let logged_in = self.patiently(MysqlClient::login(stream, login, &mut greeted), false).await;
        if let Some(facts) = greeted {
            self.backend.learn(facts);
        }
        logged_in?.map_err(|error| error.to_string())
    }

    /// Queries what the server has executed. An inner error is the server's refusal, such as an unknown
    /// variable.
    async fn measure(&self, client: &mut MysqlClient) -> Result<Result<(), ClientError>, String> {
        // Read before the query: the answer may contain what is executed meanwhile.
        let at = clock::now();
        let rows = match self.patiently(client.query(EXECUTED_SQL), true).await? {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(error)),
        };
        let said = Said::Executed { number: self.number, executed: lag::executed(&rows), at };
        let _ = self.heard.send(said).await;
        Ok(Ok(()))
    }

    /// Asks at once and then whenever requested, and returns why the connection is no longer usable.
    async fn talk(&self, mut client: MysqlClient, moves: u32, pause: &mut Duration) -> String {
        let mut measures = Some(clock::now());
        loop {
            let sql = match self.manner.topology {
                Topology::Group => GROUP_SQL,
                Topology::ReadOnly => READ_ONLY_SQL,
            };
            let answer = match self.patiently(client.query(sql), true).await {
                Ok(answer) => answer,
                Err(why) => return why,
            };
            match answer {
                Ok(rows) => {
                    let report = match self.manner.topology {
                        Topology::Group => MemberReport::of_group(&rows),
                        Topology::ReadOnly => MemberReport::of_read_only(&rows),
                    };
                    if let Some(report) = &report {
                        self.learn_uuid(report);
                        *pause = SHORTEST_PAUSE;
                    }
                    let report = report.ok_or_else(|| "answered something else than was asked".to_owned());
                    self.tell(report, true).await;
                }
                Err(error @ ClientError::Refused { .. }) => self.tell(Err(error.to_string()), true).await,
                Err(error) => return error.to_string(),
            }
            if measures.is_some_and(|due| due <= clock::now()) {
                measures = match self.measure(&mut client).await {
                    Ok(Ok(())) => Some(clock::now() + MEASURES),
                    Ok(Err(ClientError::Refused { .. })) => None,
                    Ok(Err(error)) => return error.to_string(),
                    Err(why) => return why,
                };
            }
            tokio::select! {
                () = self.ask.notified() => {}
                () = client.ended() => return "the server closed the connection".to_owned(),
            }
            if self.backend.resolved.moves() != moves {
                client.quit().await;
                return "its name stands for another address now".to_owned();
            }
        }
    }

    fn learn_uuid(&self, report: &MemberReport) {
        let known = self.backend.server.load_full();
        let Some(known) = known.filter(|_| !report.uuid.is_empty()) else { return };
        if known.uuid.as_deref() != Some(report.uuid.as_str()) {
            let mut facts = weir_state::ServerFacts::clone(&known);
            facts.uuid = Some(report.uuid.as_str().into());
            self.backend.learn(facts);
        }
    }
}
