//! Names that stand for several backends: for all addresses of a host, or the hosts of a service.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use weir_config::Dns;

use super::ask::Found;
use super::members::{self, Change, Gap, MemberLedger, Present, Wanted};
use super::message::Service;
use super::settings::{Counts, Settings, tell_refused};
use crate::lock;

/// Longest time before a failed look-up is tried again.
const FAILED_RETRY: Duration = Duration::from_secs(5);

/// Most hosts of one service that are looked up at once (count). With two questions each this is half of all
/// concurrent questions, so that a service whose hosts get no answers does not hold up other names.
const HOSTS_AT_ONCE: usize = 16;

/// A name that stands for backends of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// Name of the pool.
    pub pool: String,
    /// `host:port`, or `_service._protocol.host`, as configured.
    pub name: String,
}

/// What is known about a name.
#[derive(Default)]
pub(super) struct Heard {
    answer: Option<Answer>,
    /// Whether the answer has not been compared with the members yet.
    is_new: bool,
    ledger: MemberLedger,
    /// The last known addresses of each host of a service.
    hosts: Hosts,
    /// All addresses at which the name has had a member.
    places: HashSet<SocketAddr>,
    /// Why the last look-up failed.
    pub error: Option<String>,
    /// How long the last answer is valid.
    pub ttl: Option<Duration>,
    /// Notified when a member was missing from the last answer: the next one decides, and is requested soon.
    hasten: Arc<Notify>,
    /// Addresses in the last answer that are not allowed (count).
    refused_count: usize,
}

/// Addresses by host name.
type Hosts = HashMap<String, Vec<IpAddr>>;

struct Answer {
    entries: Entries,
    gap: Gap,
    /// Whether a look-up failed for a host of which no address is known: members that are not in the answer
    /// may belong to it.
    has_unknown_host: bool,
}

enum Entries {
    Addresses(Vec<SocketAddr>),
    Services(Vec<(Service, Vec<SocketAddr>)>),
}

impl Entries {
    fn retain(&mut self, is_kept: impl Fn(&SocketAddr) -> bool) {
        match self {
            Entries::Addresses(addresses) => addresses.retain(is_kept),
            Entries::Services(services) => services.iter_mut().for_each(|(_, at)| at.retain(&is_kept)),
        }
    }

    fn has(&self, address: SocketAddr) -> bool {
        match self {
            Entries::Addresses(addresses) => addresses.contains(&address),
            Entries::Services(services) => services.iter().any(|(_, at)| at.contains(&address)),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Entries::Addresses(addresses) => addresses.is_empty(),
            Entries::Services(services) => services.iter().all(|(_, addresses)| addresses.is_empty()),
        }
    }
}

impl Heard {
    /// Drops addresses that are no longer allowed.
    pub fn restrict(&mut self, dns: &Dns) {
        if let Some(answer) = &mut self.answer {
            answer.entries.retain(|at| dns.allows(at.ip()));
        }
        self.answer.take_if(|answer| answer.entries.is_empty());
        self.hosts.values_mut().for_each(|addresses| addresses.retain(|at| dns.allows(*at)));
    }

    /// The name's addresses, up to the limit; `None` as long as they are not known.
    pub fn wanted(&self, members: &[Present], most: usize, counts: &Counts) -> Option<Vec<Wanted>> {
        let (wanted, left_out) = self.bounded(members, most)?;
        Counts::add(&counts.left_out, left_out);
        Some(wanted)
    }

    fn bounded(&self, members: &[Present], most: usize) -> Option<(Vec<Wanted>, usize)> {
        Some(match &self.answer.as_ref()?.entries {
            Entries::Addresses(addresses) => members::of_addresses(addresses.iter().copied(), members, most),
            Entries::Services(services) => members::of_services(services, members, most),
        })
    }

    /// Whether the last answer has the address, even beyond the limit.
    pub fn has(&self, address: SocketAddr) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.entries.has(address))
    }

    /// The changes to make to the members of the name, in a pool that already has `others` at some addresses.
    /// Each answer is compared once. If it is looked at again because the pool was replaced, it adds members
    /// that the pool lacks, and none counts as missing.
    pub fn compare(
        &mut self,
        members: &[Present],
        others: &[SocketAddr],
        most: usize,
        counts: &Counts,
        now: Duration,
    ) -> Vec<Change> {
        let is_new = std::mem::take(&mut self.is_new);
        let Some((mut wanted, left_out)) = self.bounded(members, most) else { return Vec::new() };
        // They can't join, so nothing may wait for them to be probed.
        wanted.retain(|it| !others.contains(&it.address));
        if !is_new {
            let is_member = |it: &Wanted| members.iter().any(|member| member.wanted.address == it.address);
            return wanted.into_iter().filter(|it| !is_member(it)).map(Change::Join).collect();
        }
        Counts::add(&counts.left_out, left_out);
        let (gap, has_unknown_host) =
            self.answer.as_ref().map_or((Gap::Any, true), |answer| (answer.gap, answer.has_unknown_host));
        let mut members = members.to_vec();
        self.places.retain(|place| members.iter().any(|it| it.wanted.address == *place));
        self.places.extend(wanted.iter().map(|it| it.address));
        if has_unknown_host {
            members.retain(|it| self.places.contains(&it.wanted.address));
        }
        let changes = self.ledger.compare(&wanted, &members, gap, now);
        if self.ledger.doubts() {
            self.hasten.notify_one();
        }
        changes
    }

    /// Members that have left and are done.
    pub fn gone(&mut self, members: &[Present], patience: Duration, now: Duration) -> Vec<Change> {
        self.ledger.gone(members, patience, now)
    }
}

/// What the task for a name needs.
pub(super) struct Following {
    pub group: Group,
    pub heard: Arc<Mutex<Heard>>,
    pub settings: Arc<Settings>,
    pub counts: Arc<Counts>,
    /// Notified of each good answer.
    pub tell: mpsc::UnboundedSender<Group>,
}

/// Resolves one name repeatedly until aborted.
pub(super) async fn follow(following: Arc<Following>, answered: Arc<watch::Sender<bool>>) {
    let Following { group, heard, settings, counts, tell } = &*following;
    loop {
        let hosts = lock(heard).hosts.clone();
        let look = look_up(&group.name, settings, counts, hosts).await;
        let (pause, hasten) = {
            let mut heard = lock(heard);
            if let Ok(look) = &look {
                tell_refused(&group.name, look.refused_count, &mut heard.refused_count);
            }
            let lasts = match look {
                Ok(Look { entries, .. }) if entries.is_empty() => {
                    note_failure(group, &mut heard, "the name has no address that may be used".to_owned())
                }
                Ok(Look { entries, ttl, gap, hosts, has_unknown_host, .. }) => {
                    if heard.error.take().is_some() {
                        tracing::info!(pool = group.pool, name = group.name, "name resolved again");
                    }
                    heard.answer = Some(Answer { entries, gap, has_unknown_host });
                    (heard.is_new, heard.ttl, heard.hosts) = (true, ttl, hosts);
                    // Nobody listens once the process ends.
                    let _ = tell.send(group.clone());
                    ttl
                }
                Err(error) => note_failure(group, &mut heard, error),
            };
            (settings.pause(lasts, heard.answer.is_some()), heard.hasten.clone())
        };
        answered.send_replace(true);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = hasten.notified() => tokio::time::sleep(settings.config.min_ttl).await,
        }
    }
}

/// Records a failed look-up. Returns how long to wait, at most as long as the last good answer was valid.
fn note_failure(group: &Group, heard: &mut Heard, error: String) -> Option<Duration> {
    if heard.error.as_ref() != Some(&error) {
        let kept = match heard.answer {
            Some(_) => "its members stay as they are",
            None => "it has no members yet",
        };
        let (pool, name) = (&group.pool, &group.name);
        tracing::warn!(pool, name, error, "name not resolved; {kept}");
    }
    heard.error = Some(error);
    heard.ttl.map(|ttl| ttl.min(FAILED_RETRY))
}

/// Result of a look-up.
struct Look {
    entries: Entries,
    /// How long it is valid.
    ttl: Option<Duration>,
    /// What it may lack.
    gap: Gap,
    /// The hosts of a service with their addresses; the last known ones if the look-up failed.
    hosts: Hosts,
    /// Whether the look-up failed for a host of which no address is known.
    has_unknown_host: bool,
    /// How many more addresses there were that are not allowed (count).
    refused_count: usize,
}

async fn look_up(
    name: &str,
    settings: &Arc<Settings>,
    counts: &Arc<Counts>,
    hosts: Hosts,
) -> Result<Look, String> {
    if weir_config::is_service(name) {
        return services(name, settings, counts, hosts).await;
    }
    let (addresses, found) = settings.addresses_of(name, counts).await?;
    let Found { ttl, is_partial, refused_count, .. } = found;
    let gap = if is_partial { Gap::Family } else { Gap::None };
    let entries = Entries::Addresses(addresses);
    Ok(Look { entries, ttl, gap, hosts: Hosts::new(), has_unknown_host: false, refused_count })
}

async fn services(
    name: &str,
    settings: &Arc<Settings>,
    counts: &Arc<Counts>,
    mut before: Hosts,
) -> Result<Look, String> {
    let services = settings.resolver.services(name).await;
    let (mut services, mut ttl) = services.inspect_err(|_| Counts::add(&counts.failed, 1))?;
    if services.is_empty() {
        Counts::add(&counts.empty, 1);
    }
    services.sort_by(|one, other| {
        (one.priority, &one.host, one.port).cmp(&(other.priority, &other.host, other.port))
    });
    let left_out = services.len().saturating_sub(settings.config.max_members);
    Counts::add(&counts.left_out, left_out);
    services.truncate(settings.config.max_members);
    // Each host is looked up once, however many services it has.
    let names: HashSet<String> = services.iter().map(|service| service.host.clone()).collect();
    let mut asking = JoinSet::new();
    let slots = Arc::new(Semaphore::new(HOSTS_AT_ONCE));
    for host in names.iter().cloned() {
        let (settings, counts, slots) = (settings.clone(), counts.clone(), slots.clone());
        asking.spawn(async move {
            let _slot = slots.acquire().await;
            let found = settings.addresses_of_target(&host, &counts).await;
            (host, found)
        });
    }
    let (mut hosts, mut gap, mut refused_count, mut failed) = (Hosts::new(), Gap::None, 0, None);
    while let Some(asked) = asking.join_next().await {
        match asked {
            Ok((host, Ok(found))) => {
                ttl = [ttl, found.ttl].into_iter().flatten().min();
                gap = if found.is_partial { Gap::Family } else { gap };
                refused_count += found.refused_count;
                let known = before.remove(&host).filter(|_| found.is_partial).unwrap_or_default();
                hosts.insert(host, addresses_of(found, known, settings, counts));
            }
            // The others may still succeed.
            Ok((_, Err(error))) => failed = Some(error),
            Err(panicked) => failed = Some(panicked.to_string()),
        }
    }
    let is_nothing = hosts.values().all(Vec::is_empty);
    if let (Some(error), true) = (&failed, is_nothing) {
        return Err(error.clone());
    }
    // Members do not count as missing because the look-up of their host failed.
    before.retain(|host, _| names.contains(host));
    hosts.extend(before);
    let has_unknown_host = names.iter().any(|host| !hosts.contains_key(host));
    let place = |service: Service| {
        let at = hosts.get(&service.host).into_iter().flatten();
        let at = at.map(|address| SocketAddr::new(*address, service.port)).collect();
        (service, at)
    };
    let entries = Entries::Services(services.into_iter().map(place).collect());
    Ok(Look { entries, ttl, gap, hosts, has_unknown_host, refused_count })
}

/// The allowed addresses of a host, up to the limit; and those `known` of a family for which the look-up
/// failed.
fn addresses_of(found: Found, known: Vec<IpAddr>, settings: &Settings, counts: &Counts) -> Vec<IpAddr> {
    let mut addresses = found.addresses;
    // Sorted, so that the ones left out do not change with each answer.
    addresses.sort();
    let most = settings.config.max_members;
    Counts::add(&counts.left_out, addresses.len().saturating_sub(most));
    addresses.truncate(most);
    let lacks = |at: &IpAddr| addresses.iter().all(|other| other.is_ipv4() != at.is_ipv4());
    let missed: Vec<IpAddr> = known.into_iter().filter(lacks).collect();
    addresses.extend(missed);
    addresses.truncate(most);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::{Message, MessageType, OpCode};
    use hickory_proto::rr::rdata::{A, SRV};
    use hickory_proto::rr::{Name, RData, Record, RecordType};
    use tokio::net::UdpSocket;
    use weir_config::NameServer;

    /// A name server whose service has 40 hosts, none of which it answers for; it knows `other.example`.
    /// Gives how often it was asked about the host that it was asked about most.
    async fn server() -> (SocketAddr, Arc<Mutex<HashMap<Name, u32>>>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (address, asked) = (socket.local_addr().unwrap(), Arc::new(Mutex::new(HashMap::new())));
        let counting = asked.clone();
        tokio::spawn(async move {
            let mut bytes = [0; 512];
            while let Ok((size, from)) = socket.recv_from(&mut bytes).await {
                let question = Message::from_vec(&bytes[..size]).unwrap();
                let query = question.queries[0].clone();
                let name = query.name.clone();
                let mut answer = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
                answer.add_query(query.clone());
                let records: Vec<RData> = match query.query_type {
                    RecordType::SRV => (0..40)
                        .map(|host| Name::from_ascii(format!("h{host}.")).unwrap())
                        .map(|host| RData::SRV(SRV::new(1, 1, 80, host)))
                        .collect(),
                    RecordType::A if name.to_ascii().starts_with("other") => {
                        vec![RData::A(A::new(10, 0, 0, 1))]
                    }
                    RecordType::A => {
                        *lock(&counting).entry(name).or_insert(0) += 1;
                        continue;
                    }
                    _ if name.to_ascii().starts_with("other") => Vec::new(),
                    _ => continue,
                };
                for data in records {
                    answer.add_answer(Record::from_rdata(name.clone(), 60, data));
                }
                let _ = socket.send_to(&answer.to_vec().unwrap(), from).await;
            }
        });
        (address, asked)
    }

    #[tokio::test]
    async fn hosts_of_a_service_that_nobody_answers_for_hold_up_no_other_name() {
        let (address, asked) = server().await;
        let timeout = Duration::from_secs(60);
        let config = Dns { resolvers: vec![NameServer::At(address)], timeout, ..Dns::default() };
        let (settings, counts) = (Arc::new(Settings::of(&config)), Arc::new(Counts::default()));
        let service = {
            let (settings, counts) = (settings.clone(), counts.clone());
            tokio::spawn(async move {
                services("_http._tcp.example", &settings, &counts, Hosts::new()).await.is_ok()
            })
        };
        while lock(&asked).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let found = settings.resolver.addresses("other.example").await.unwrap();
        assert_eq!(found.addresses.len(), 1);
        // None of the silent ones was given up on meanwhile.
        assert_eq!(lock(&asked).values().max(), Some(&1));
        assert!(lock(&asked).len() <= HOSTS_AT_ONCE);
        service.abort();
    }
}
