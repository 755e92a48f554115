//! Prepared statements: those of a session, by the client's ids, and those of a server connection. A
//! statement is prepared on any connection where it runs, so it does not bind a session to a connection.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use foldhash::fast::FixedState;
use weir_io::buffers::Charge;
use weir_mysql::state::TrackedState;
use weir_mysql::{SessionFacts, StatementVerdict};

/// Most statements prepared on one server connection; the least recently used are closed.
pub const MOST_ON_SERVER: usize = 64;
/// Most statements of one session, equal to a server's default `max_prepared_stmt_count`.
pub const MOST_OF_SESSION: usize = 16_382;

/// A statement's text, and the state in which it was prepared. A prepared statement keeps its default schema,
/// `sql_mode` and character sets.
pub struct StatementText {
    /// The text as received; `None` if it is too long to be kept. Then it is prepared only once, on the
    /// session's connection.
    text: Option<Rc<KeptText>>,
    /// The session's state when it was prepared.
    pub state: Rc<TrackedState>,
    /// 0 if sessions that prepare the same text may share it; otherwise a number unique to one statement of
    /// one session.
    apart: u64,
    hash: OnceCell<u64>,
}

impl StatementText {
    /// For a text and a state.
    pub fn new(text: &[u8], state: Rc<TrackedState>, charge: Option<Charge>) -> Rc<StatementText> {
        let kept = Rc::new(KeptText { bytes: text.into(), _charge: charge });
        Rc::new(StatementText { text: Some(kept), state, apart: 0, hash: OnceCell::new() })
    }

    /// For a text that is not kept, and so is never shared.
    pub fn not_kept(state: Rc<TrackedState>) -> Rc<StatementText> {
        Rc::new(StatementText { text: None, state, apart: next_apart(), hash: OnceCell::new() })
    }

    /// The text; empty if it is not kept.
    pub fn text(&self) -> &[u8] {
        self.text.as_ref().map_or(&[][..], |kept| &*kept.bytes)
    }

    /// Whether it can be prepared again.
    pub fn is_whole(&self) -> bool {
        self.text.is_some()
    }

    /// A copy for one statement of one session alone.
    fn apart(&self) -> Rc<StatementText> {
        let (text, state) = (self.text.clone(), self.state.clone());
        Rc::new(StatementText { text, state, apart: next_apart(), hash: OnceCell::new() })
    }

    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let mut hasher = foldhash::quality::FixedState::default().build_hasher();
            self.text().hash(&mut hasher);
            self.state.hash(&mut hasher);
            self.apart.hash(&mut hasher);
            hasher.finish()
        })
    }

    fn is_same(&self, other: &StatementText) -> bool {
        self.text() == other.text()
            && self.apart == other.apart
            && (Rc::ptr_eq(&self.state, &other.state) || self.state == other.state)
    }
}

fn next_apart() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A text that is kept, and its share of the memory budget.
struct KeptText {
    bytes: Box<[u8]>,
    _charge: Option<Charge>,
}

/// The types of an execution's values as received, and their share of the memory budget.
#[derive(Default)]
pub struct KeptTypes {
    pub bytes: Box<[u8]>,
    pub charge: Option<Charge>,
}

/// A prepared statement of a session.
pub struct ClientStatement {
    /// What is prepared on server connections for it.
    pub text: Rc<StatementText>,
    /// The number of parameters, without query attributes.
    pub parameter_count: u16,
    /// The verdict on its text, outside of transactions.
    pub verdict: StatementVerdict,
    /// The parameter types from the last execution that had any. A client omits them if they are unchanged.
    pub types: KeptTypes,
    /// The types in the current execution, if they are different.
    pub new_types: Option<KeptTypes>,
    /// Bytes of the state that it was prepared in, unless another statement counts them.
    pub state_bytes: usize,
    /// Its state on one connection only.
    pub bound: Bound,
    /// Whether a piece of a parameter was dropped because no server would prepare the statement at that time.
    pub has_lost_piece: bool,
}

impl ClientStatement {
    /// Bytes of its text, types and state.
    fn held_bytes(&self) -> usize {
        self.text.text().len() + self.types.bytes.len() + self.state_bytes
    }

    /// The verdict in a session with these facts. Names without a schema belong to the schema that it was
    /// prepared in. `is_hidden` is whether it names something with hidden code.
    pub fn verdict_under(&self, facts: &SessionFacts, is_hidden: bool) -> StatementVerdict {
        let verdict = match self.text.state.is_in_own_schema() {
            true => self.verdict.among_own_tables(),
            false => self.verdict,
        };
        if is_hidden { verdict.with_hidden_code(facts) } else { verdict.under(facts) }
    }

    /// From now on, does not share a server's prepared statement with other sessions.
    pub fn keep_apart(&mut self) {
        if self.text.apart == 0 {
            self.text = self.text.apart();
        }
    }
}

/// What an execution, or a command before one, has left with a statement on the session's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Pieces of a parameter were sent.
    pub has_pieces: bool,
    /// A cursor has rows left.
    pub has_cursor: bool,
}

impl Bound {
    /// Nothing is left.
    pub const NONE: Bound = Bound { has_pieces: false, has_cursor: false };

    /// Whether anything is left.
    pub fn is_any(self) -> bool {
        self.has_pieces || self.has_cursor
    }
}

/// The statements of one session by the client's ids.
#[derive(Default)]
pub struct ClientStatements {
    /// By ids that are given here, so that no client can choose many with the same hash.
    by_id: HashMap<u32, ClientStatement, FixedState>,
    last: u32,
    /// The number of statements with something bound.
    bound: u32,
    /// Bytes of the texts, types and states of all.
    held_bytes: usize,
    /// The state in which the last one was prepared, which the next one probably shares.
    last_state: Option<Rc<TrackedState>>,
}

impl ClientStatements {
    /// Whether the session has reached its limit of statements.
    pub fn is_full(&self) -> bool {
        self.by_id.len() >= MOST_OF_SESSION
    }

    /// The client's id for the next statement.
    pub fn next_id(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.by_id.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Bytes of a state that a statement is prepared in; 0 if the statement before shares it.
    pub fn state_bytes(&self, state: &Rc<TrackedState>) -> usize {
        let is_shared = self.last_state.as_ref().is_some_and(|last| Rc::ptr_eq(last, state));
        if is_shared { 0 } else { state.held_bytes() }
    }

    /// Bytes of the texts, types and states of all statements.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Adds a statement under an id from [`Self::next_id`].
    pub fn insert(&mut self, id: u32, statement: ClientStatement) {
        self.held_bytes += statement.held_bytes();
        self.last_state = Some(statement.text.state.clone());
        self.by_id.insert(id, statement);
    }

    /// Whether any statement has something bound to the session's connection.
    pub fn is_any_bound(&self) -> bool {
        self.bound > 0
    }

    /// Updates what a statement has bound to the session's connection.
    pub fn set_bound(&mut self, id: u32, change: impl FnOnce(&mut Bound)) {
        let Some(statement) = self.by_id.get_mut(&id) else { return };
        self.bound -= u32::from(statement.bound.is_any());
        change(&mut statement.bound);
        self.bound += u32::from(statement.bound.is_any());
    }

    /// Stores the types of the execution that has ended, if it had begun; otherwise a server forgets them,
    /// too.
    pub fn keep_types(&mut self, id: u32, has_begun: bool) {
        let Some(statement) = self.by_id.get_mut(&id) else { return };
        if let Some(types) = statement.new_types.take().filter(|_| has_begun) {
            self.held_bytes = self.held_bytes + types.bytes.len() - statement.types.bytes.len();
            statement.types = types;
        }
    }

    /// Makes sure that a statement does not share a server's statement with another one that has something
    /// bound.
    pub fn keep_apart(&mut self, id: u32) {
        if self.bound == 0 {
            return;
        }
        let Some(own) = self.by_id.get(&id) else { return };
        let is_shared = |(other, statement): (&u32, &ClientStatement)| {
            *other != id && statement.bound.is_any() && statement.text.is_same(&own.text)
        };
        if self.by_id.iter().any(is_shared)
            && let Some(own) = self.by_id.get_mut(&id)
        {
            own.keep_apart();
        }
    }

    /// The statement with this id; `None` if the client has none.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut ClientStatement> {
        self.by_id.get_mut(&id)
    }

    /// As [`Self::get_mut`].
    pub fn get(&self, id: u32) -> Option<&ClientStatement> {
        self.by_id.get(&id)
    }

    /// Removes a statement.
    pub fn remove(&mut self, id: u32) -> Option<ClientStatement> {
        let statement = self.by_id.remove(&id)?;
        self.bound -= u32::from(statement.bound.is_any());
        self.held_bytes -= statement.held_bytes();
        Some(statement)
    }

    /// Removes all statements.
    pub fn clear(&mut self) {
        self.by_id.clear();
        (self.bound, self.held_bytes, self.last_state) = (0, 0, None);
    }
}

/// The statements prepared on one server connection.
#[derive(Default)]
pub struct ServerStatements {
    by_hash: HashMap<u64, ServerStatement, FixedState>,
    uses: u64,
    /// The number of statements prepared at the server, over all connections to it.
    at_server: Arc<AtomicU32>,
}

struct ServerStatement {
    text: Rc<StatementText>,
    id: u32,
    used: u64,
    /// Whether a session has something bound to it.
    is_bound: bool,
}

impl ServerStatement {
    /// Whether it may be closed to make room for another.
    fn may_be_closed(&self) -> bool {
        !self.is_bound && self.text.is_whole()
    }
}

impl ServerStatements {
    /// The server's id of a statement; `None` if it is not prepared on this connection.
    pub fn find(&mut self, text: &StatementText) -> Option<u32> {
        let found = self.by_hash.get_mut(&text.hash())?;
        if !found.text.is_same(text) {
            return None;
        }
        self.uses += 1;
        found.used = self.uses;
        Some(found.id)
    }

    /// An empty set, which adds its statements to the count in `at_server`.
    pub fn counted_in(at_server: Arc<AtomicU32>) -> ServerStatements {
        ServerStatements { by_hash: HashMap::default(), uses: 0, at_server }
    }

    /// Whether none are prepared here.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// The number of statements prepared at the server.
    pub fn at_server(&self) -> u32 {
        self.at_server.load(Ordering::Relaxed)
    }

    /// Records that a statement is prepared here; returns the id of one that must be closed for it. If the
    /// statement was already prepared here, that is the new id, because a session may have something bound to
    /// the existing one.
    pub fn insert(&mut self, text: &Rc<StatementText>, id: u32) -> Option<u32> {
        if self.find(text).is_some() {
            return Some(id);
        }
        self.uses += 1;
        let added = ServerStatement { text: text.clone(), id, used: self.uses, is_bound: false };
        if let Some(before) = self.by_hash.insert(text.hash(), added) {
            return Some(before.id);
        }
        self.at_server.fetch_add(1, Ordering::Relaxed);
        if self.by_hash.len() <= MOST_ON_SERVER { None } else { self.take_oldest() }
    }

    /// Removes the least recently used statement that may be closed, but never the one prepared last; returns
    /// its id, which must be closed.
    pub fn take_oldest(&mut self) -> Option<u32> {
        let others = self.by_hash.iter().filter(|(_, it)| it.may_be_closed() && it.used != self.uses);
        let (oldest, _) = others.min_by_key(|(_, statement)| statement.used)?;
        let oldest = *oldest;
        self.forget(oldest)
    }

    /// Removes all statements that may be closed; returns their ids, which must be closed.
    pub fn take_all(&mut self) -> Vec<u32> {
        let all = self.by_hash.extract_if(|_, statement| statement.may_be_closed());
        let ids: Vec<u32> = all.map(|(_, statement)| statement.id).collect();
        self.at_server.fetch_sub(ids.len() as u32, Ordering::Relaxed);
        ids
    }

    fn forget(&mut self, hash: u64) -> Option<u32> {
        let statement = self.by_hash.remove(&hash)?;
        self.at_server.fetch_sub(1, Ordering::Relaxed);
        Some(statement.id)
    }

    /// Records whether a session has something bound to a statement; if so, the statement is not closed to
    /// make room.
    pub fn bind(&mut self, text: &StatementText, is_bound: bool) {
        if let Some(found) = self.by_hash.get_mut(&text.hash()).filter(|found| found.text.is_same(text)) {
            found.is_bound = is_bound;
        }
    }

    /// Removes a statement; returns its id, which must be closed.
    pub fn remove(&mut self, text: &StatementText) -> Option<u32> {
        self.find(text)?;
        self.forget(text.hash())
    }

    /// Removes all statements, after a reset has closed them.
    pub fn clear(&mut self) {
        self.at_server.fetch_sub(self.by_hash.len() as u32, Ordering::Relaxed);
        self.by_hash.clear();
    }
}

impl Drop for ServerStatements {
    /// The statements end with their connection.
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mysql::classify;

    fn text(sql: &str) -> Rc<StatementText> {
        StatementText::new(sql.as_bytes(), Rc::default(), None)
    }

    fn statement() -> ClientStatement {
        ClientStatement {
            text: text("SELECT ?"),
            parameter_count: 1,
            verdict: classify(b"SELECT ?", &SessionFacts::default()),
            types: KeptTypes::default(),
            new_types: None,
            state_bytes: 0,
            bound: Bound::NONE,
            has_lost_piece: false,
        }
    }

    #[test]
    fn a_text_prepared_in_another_state_is_another_statement() {
        let mut server = ServerStatements::default();
        let here = text("SELECT a FROM t");
        assert_eq!(server.insert(&here, 7), None);
        assert_eq!(server.find(&text("SELECT a FROM t")), Some(7));
        let shop = Rc::new(TrackedState::of_schema(Some(b"shop")));
        assert_eq!(server.find(&StatementText::new(b"SELECT a FROM t", shop, None)), None);
        assert_eq!(server.insert(&text("SELECT a FROM t"), 8), Some(8), "the one before stays");
        assert_eq!(server.find(&here), Some(7));
        server.clear();
        assert_eq!(server.find(&here), None);
    }

    #[test]
    fn the_statement_longest_without_use_makes_room() {
        let mut server = ServerStatements::default();
        let all: Vec<_> = (0..=MOST_ON_SERVER).map(|index| text(&format!("SELECT {index}"))).collect();
        for (id, text) in all.iter().take(MOST_ON_SERVER).enumerate() {
            assert_eq!(server.insert(text, id as u32), None);
        }
        assert_eq!(server.find(&all[0]), Some(0));
        assert_eq!(server.insert(&all[MOST_ON_SERVER], 99), Some(1));
        assert_eq!((server.find(&all[1]), server.find(&all[0])), (None, Some(0)));
    }

    #[test]
    fn what_is_prepared_at_a_server_is_counted_over_its_connections_until_it_is_closed() {
        let count = Arc::new(AtomicU32::new(0));
        let [mut one, mut other] = [0, 1].map(|_| ServerStatements::counted_in(count.clone()));
        let all: Vec<_> = (0..3).map(|index| text(&format!("SELECT {index}"))).collect();
        for (id, text) in all.iter().enumerate() {
            assert_eq!(one.insert(text, id as u32), None);
            assert_eq!(other.insert(text, id as u32), None);
        }
        assert_eq!(other.insert(&all[0], 9), Some(9), "prepared twice, and closed once");
        assert_eq!(one.at_server(), 6);
        one.bind(&all[0], true);
        assert_eq!((one.take_oldest(), one.at_server()), (Some(1), 5));
        assert_eq!((one.take_all(), one.at_server()), (vec![2], 4), "what has rows left stays");
        assert_eq!((one.take_oldest(), one.remove(&all[0]), one.at_server()), (None, Some(0), 3));
        drop(other);
        assert_eq!(one.at_server(), 0);
    }

    #[test]
    fn numbers_of_a_session_are_its_own() {
        let mut session = ClientStatements { last: u32::MAX - 1, ..ClientStatements::default() };
        let ids = [session.next_id(), session.next_id()];
        assert_eq!(ids, [u32::MAX, 1]);
        ids.into_iter().for_each(|id| session.insert(id, statement()));
        assert!(session.remove(1).is_some() && session.get_mut(1).is_none());
    }

    #[test]
    fn texts_and_types_of_a_session_are_counted_until_they_are_gone() {
        let mut session = ClientStatements::default();
        let text_bytes = b"SELECT ?".len();
        [1, 2].into_iter().for_each(|id| session.insert(id, statement()));
        for (types, held_bytes) in [(&b"\x08\0"[..], 2), (b"\xfd\0\x01x", 4), (b"", 0), (b"\x08\0", 2)] {
            session.get_mut(1).unwrap().new_types = Some(KeptTypes { bytes: types.into(), charge: None });
            session.keep_types(1, true);
            assert_eq!(session.held_bytes(), 2 * text_bytes + held_bytes);
        }
        session.remove(1);
        assert_eq!(session.held_bytes(), text_bytes);
        session.clear();
        assert_eq!(session.held_bytes(), 0);
    }

    #[test]
    fn a_statement_is_kept_apart_from_the_pieces_of_another_of_its_text() {
        let mut session = ClientStatements::default();
        [1, 2].into_iter().for_each(|id| session.insert(id, statement()));
        let is_shared = |session: &ClientStatements| {
            session.by_id.get(&1).unwrap().text.is_same(&session.by_id.get(&2).unwrap().text)
        };
        session.keep_apart(2);
        assert!(is_shared(&session));
        session.set_bound(1, |bound| bound.has_pieces = true);
        session.keep_apart(1);
        assert!(is_shared(&session));
        session.keep_apart(2);
        assert!(!is_shared(&session));
    }
}
