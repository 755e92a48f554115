//! Agents: a program beside each backend that reports in one line how much work the backend can take.
//!
//! The words are those of HAProxy's `agent-check`, so that its agents can be used unchanged. An agent that
//! can't be reached has no effect: probes determine whether its backend is up.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use weir_balance::{AdminState, AgentSays, Health};
use weir_config::Agent;
use weir_io::clock;
use weir_io::local_end::LocalEnd;
use weir_state::{Backend, Pool, Snapshot};

use super::probe::{Failure, excerpt};
use super::tidings::Tidings;
use super::{HISTORY, LONGEST_SPREAD, Probed, id};
use crate::dns::Member;
use crate::events::What;
use crate::lock;
use crate::tasks;
use crate::timestamp::Timestamp;

/// Most bytes of an answer that are read; the guide says so.
const ANSWER_BYTES: usize = 1024;

/// What is known about a backend's agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AgentFindings {
    /// What its words have set: `up, ready, 50 % of its weight`.
    pub says: String,
    /// Its recent answers, newest first.
    pub history: Vec<Probed>,
    /// Answers so far.
    pub good_count: u64,
    /// Failed questions so far.
    pub bad_count: u64,
}

/// The tasks that ask agents.
#[derive(Default)]
pub(super) struct Agents(Mutex<HashMap<usize, Asker>>);

/// How an agent is asked.
#[derive(Clone, PartialEq)]
struct Manner {
    agent: Agent,
    local_end: LocalEnd,
    timeout: Duration,
}

struct Asker {
    manner: Manner,
    member: Member,
    notes: Arc<Mutex<Notes>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Notes {
    history: VecDeque<Probed>,
    good_count: u64,
    bad_count: u64,
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agents {
    /// Asks the agents in this snapshot and no others. Must be called on the control runtime.
    pub fn adopt(&self, snapshot: &Snapshot, tidings: &Arc<Tidings>) {
        let mut before = std::mem::take(&mut *lock(&self.0));
        for pool in &snapshot.pools {
            for backend in &pool.backends {
                if let Some(asker) = before.remove(&id(backend)) {
                    lock(&self.0).insert(id(backend), asker);
                }
                self.add(pool, backend, tidings);
            }
        }
        before.into_values().for_each(|gone| gone.silence());
    }

    /// Asks the agent of a backend, if its pool has agents. The caller must refresh the pool.
    pub fn add(&self, pool: &Pool, backend: &Arc<Backend>, tidings: &Arc<Tidings>) {
        let mut askers = lock(&self.0);
        let Some(agent) = &pool.config.health.agent else {
            if let Some(asker) = askers.remove(&id(backend)) {
                asker.silence();
            }
            return;
        };
        let manner = Manner {
            agent: agent.clone(),
            local_end: pool
                .local_end
                .as_ref()
                .map(|local_end| local_end.without_client())
                .unwrap_or_default(),
            timeout: pool.config.health.timeout.min(agent.interval),
        };
        let is_same = |asker: &Asker| asker.manner == manner && Arc::ptr_eq(&asker.member.backend, backend);
        if askers.get(&id(backend)).is_some_and(is_same) {
            return;
        }
        let member = Member { pool: pool.config.name.clone(), backend: backend.clone() };
        let notes = Arc::new(Mutex::new(Notes::default()));
        let begin = {
            let (manner, member, notes) = (manner.clone(), member.clone(), notes.clone());
            let tidings = tidings.clone();
            move || ask_for_ever(manner.clone(), member.clone(), notes.clone(), tidings.clone())
        };
        let task = format!("questions to the agent of {} in pool {}", backend.address, member.pool);
        let task = tokio::spawn(tasks::keep_on(task, begin));
        askers.insert(id(backend), Asker { manner, member, notes, task });
    }

    /// Stops asking for a backend that was removed from its pool.
    pub fn remove(&self, backend: &Backend) {
        lock(&self.0).remove(&id(backend));
    }

    /// What is known about a backend's agent; `None` if it has none.
    pub fn findings(&self, backend: &Backend) -> Option<AgentFindings> {
        let askers = lock(&self.0);
        let notes = lock(&askers.get(&id(backend))?.notes);
        Some(AgentFindings {
            says: backend.balance.agent().to_string(),
            history: notes.history.iter().rev().cloned().collect(),
            good_count: notes.good_count,
            bad_count: notes.bad_count,
        })
    }
}

impl Asker {
    /// The agent is no longer asked, so its words no longer apply.
    fn silence(self) {
        self.member.backend.balance.set_agent(&AgentSays::default(), clock::now());
    }
}

async fn ask_for_ever(manner: Manner, member: Member, notes: Arc<Mutex<Notes>>, tidings: Arc<Tidings>) {
    let Manner { agent, timeout, .. } = &manner;
    let balance = &member.backend.balance;
    let spread = agent.interval.min(LONGEST_SPREAD);
    tokio::time::sleep(weir_balance::start_offset(balance.id(), spread)).await;
    let mut ticks = tokio::time::interval(agent.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let began = clock::now();
        let asked = tokio::time::timeout(*timeout, ask(&manner, &member.backend)).await;
        let answer = asked.unwrap_or_else(|_| Err(format!("no line within {timeout:?}")));
        let took = clock::now().saturating_sub(began);
        let said = answer.and_then(|line| read(&line, balance.agent()));
        let detail = match &said {
            Ok((_, words)) | Err(words) => words.clone(),
        };
        {
            let mut notes = lock(&notes);
            *(if said.is_ok() { &mut notes.good_count } else { &mut notes.bad_count }) += 1;
            if notes.history.len() == HISTORY {
                notes.history.pop_front();
            }
            let (time, seconds) = (Timestamp::now(), took.as_secs_f64());
            notes.history.push_back(Probed { time, good: said.is_ok(), seconds, detail });
        }
        if let Ok((says, words)) = said {
            apply(&says, &words, &member, &tidings);
        }
    }
}

/// Applies an agent's words, and reports them if they have changed.
fn apply(says: &AgentSays, words: &str, member: &Member, tidings: &Tidings) {
    let (balance, now) = (&member.backend.balance, clock::now());
    let (before, was_up) = (balance.agent(), balance.is_up());
    if before == *says {
        return;
    }
    balance.set_agent(says, now);
    match was_up && says.is_down {
        true => tidings.fell(member, now),
        false => drop(tidings.refresh(member, now)),
    }
    if before.is_down != says.is_down {
        let health = if says.is_down { Health::Down } else { Health::Up };
        tidings.tell(member, health, &format!("its agent says {words}"));
    }
    if (AgentSays { is_down: says.is_down, ..before }) != *says {
        let (pool, backend) = (member.pool.clone(), member.backend.address.clone());
        let change = format!("its agent says {words}: {says}");
        tracing::info!(pool, backend, change, "backend changed by its agent");
        tidings.bus.tell(What::Backend { pool, backend, change });
    }
}

/// Asks once; returns the first line of the answer without its line end.
async fn ask(manner: &Manner, backend: &Backend) -> Result<Vec<u8>, String> {
    let address = backend.resolved.address().ok_or("its name has not been resolved")?;
    let Manner { agent, local_end, .. } = manner;
    let port = u16::try_from(agent.port).unwrap_or_default();
    let stream = local_end.connect(&SocketAddr::new(address.ip(), port).into()).await;
    let mut stream = stream.map_err(|error| Failure::Connect(error).to_string())?;
    let broke = |error| Failure::Broken(error).to_string();
    if let Some(send) = &agent.send {
        stream.write_all(send.bytes()).await.map_err(broke)?;
    }
    let mut line = Vec::with_capacity(64);
    loop {
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if line.len() >= ANSWER_BYTES {
            return Err(format!("said {} and no end of line", excerpt(&line)));
        }
        if stream.read_buf(&mut line).await.map_err(broke)? == 0 {
            return Ok(line);
        }
    }
}

/// What applies after an agent has sent `line`, and its words in readable form.
///
/// Words are separated by spaces, tabs and commas, and are case-insensitive; the text after `#` is an
/// explanation. What no word mentions stays unchanged. Unknown words are ignored.
///
/// # Errors
/// No word is known; contains the line.
fn read(line: &[u8], before: AgentSays) -> Result<(AgentSays, String), String> {
    let text = String::from_utf8_lossy(line);
    let (mut says, mut is_understood) = (before, false);
    let words = text.split('#').next().unwrap_or_default();
    for word in words.split([' ', '\t', ',', '\r']).filter(|word| !word.is_empty()) {
        is_understood |= take_word(&word.to_ascii_lowercase(), &mut says);
    }
    match is_understood {
        true => Ok((says, excerpt(line.trim_ascii()))),
        false => Err(format!("said {}, expected up, down, drain, 50% and the like", excerpt(line))),
    }
}

/// Applies one word; returns whether it is known.
fn take_word(word: &str, says: &mut AgentSays) -> bool {
    match word {
        "up" => says.is_down = false,
        "down" | "fail" | "failed" | "stopped" => says.is_down = true,
        "ready" => says.admin = AdminState::Ready,
        "drain" => says.admin = AdminState::Drain,
        "maint" => says.admin = AdminState::Maintenance,
        _ => {
            let percent = word.strip_suffix('%').and_then(|percent| percent.parse::<u32>().ok());
            let limit = word.strip_prefix("maxconn:").and_then(|limit| limit.parse::<u32>().ok());
            match (percent, limit) {
                (Some(percent), _) => says.weight_percent = percent.min(AgentSays::MOST_PERCENT),
                // Agents use 0 for "no limit".
                (_, Some(limit)) => says.max_connections = Some(limit).filter(|limit| *limit > 0),
                _ => return false,
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(line: &str) -> AgentSays {
        read(line.as_bytes(), AgentSays::default()).unwrap_or_else(|error| panic!("{line}: {error}")).0
    }

    #[test]
    fn each_word_says_its_part_and_the_rest_stays() {
        let none = AgentSays::default();
        assert_eq!(says("up"), none);
        assert_eq!(says("down#the disk is full"), AgentSays { is_down: true, ..none });
        assert_eq!(says("STOPPED\r"), AgentSays { is_down: true, ..none });
        assert_eq!(says("drain, 50%"), AgentSays { admin: AdminState::Drain, weight_percent: 50, ..none });
        assert_eq!(says("maint").admin, AdminState::Maintenance);
        assert_eq!(says("75% maxconn:30 sunny").max_connections, Some(30));
        assert_eq!(says("99999999%").weight_percent, AgentSays::MOST_PERCENT);
        let drained = says("drain 50% maxconn:7");
        let (after, _) = read(b"up ready maxconn:0", drained).unwrap();
        assert_eq!(after, AgentSays { weight_percent: 50, ..none });
    }

    #[test]
    fn what_means_nothing_changes_nothing_and_is_shown() {
        for line in ["", "HTTP/1.1 400 Bad Request", "#down", "-5%", "maxconn:", "maxconn:-1", "99999999999%"]
        {
            let error = read(line.as_bytes(), AgentSays::default()).unwrap_err();
            assert!(error.starts_with("said \""), "{line}: {error}");
        }
        let error = read(b"\x1b[2Jx\xff", AgentSays::default()).unwrap_err();
        assert!(error.is_ascii() && !error.contains('\x1b'), "{error}");
    }
}
