//! The canned server's session state, and its answers to commands.

use std::rc::Rc;

use crate::packets::{self, Packet, capability, command};

/// The one row: as long as sysbench's column `c`.
pub const ROW: &[u8] = b"08566691963-88624912351-16662227201-46648573979-64646226163-77505759394-75470094713-41097360717-15161106334-50535565977";
/// Status flag: outside an explicit transaction each statement is a transaction of its own.
pub const AUTOCOMMIT: u16 = 2;
/// Status flag: in a transaction.
const IN_TRANSACTION: u16 = 1;
/// Status flag: the packet goes on with the session's changes.
const STATE_CHANGED: u16 = 0x4000;
/// An expression that clients ask for beside variables. There is no default schema.
const SCHEMA: &str = "database()";
/// The expression that asks for the roles.
const ROLE: &str = "current_role()";
/// NULL in a row of text.
const NULL: u8 = 0xfb;
/// The source UUID of its GTIDs.
const SOURCE: &str = "57656972-6c61-4273-8273-0000000000ca";

/// What all sessions share: the canned result in each form.
pub struct Answers {
    /// The result up to the row, indexed by whether rows are binary and whether an EOF packet follows the
    /// columns.
    results: [[Vec<u8>; 2]; 2],
}

impl Answers {
    pub fn new() -> Self {
        let result = |binary: bool, deprecate_eof: bool| {
            let mut output = Vec::new();
            append_columns(&mut output, 1, deprecate_eof, &["c"]);
            let sequence = if deprecate_eof { 3 } else { 4 };
            let mut row = if binary { vec![0, 0] } else { Vec::new() };
            packets::append_string(&mut row, ROW);
            packets::append(&mut output, sequence, &row);
            output
        };
        Self { results: [false, true].map(|binary| [false, true].map(|eof| result(binary, eof))) }
    }
}

/// What has reached the server, apart from queries of the lab and of topology monitors.
#[derive(Default)]
pub struct Counted {
    /// Connections with a statement on them.
    connections: u64,
    /// Statements.
    statements: u64,
}

/// The content of a client's first packet.
pub struct Login<'a> {
    pub user: &'a [u8],
    /// The response to the nonce.
    pub answer: &'a [u8],
    pub plugin: &'a [u8],
}

/// What is reported if it changes (the session trackers).
struct Trackers {
    /// Names of variables; `*` is all of them.
    variables: String,
    schema: bool,
    state: bool,
    transaction: bool,
    gtids: bool,
}

impl Default for Trackers {
    /// The server's own defaults.
    fn default() -> Self {
        Self {
            variables:
                "time_zone,autocommit,character_set_client,character_set_results,character_set_connection"
                    .to_owned(),
            schema: true,
            state: false,
            transaction: false,
            gtids: false,
        }
    }
}

impl Trackers {
    /// A change of the trackers themselves; whether it was one.
    fn set(&mut self, name: &str, value: &str) -> bool {
        let on = !["off", "0", "false"].contains(&value.to_ascii_lowercase().as_str());
        match name {
            "session_track_system_variables" => self.variables = value.to_ascii_lowercase(),
            "session_track_schema" => self.schema = on,
            "session_track_state_change" => self.state = on,
            "session_track_transaction_info" => self.transaction = on,
            "session_track_gtids" => self.gtids = on,
            _ => return false,
        }
        true
    }

    fn reports(&self, name: &str) -> bool {
        self.variables == "*" || self.variables.split(',').any(|known| known.trim() == name)
    }
}

/// One client's session.
pub struct Session {
    answers: Rc<Answers>,
    capabilities: u32,
    status: u16,
    trackers: Trackers,
    /// Texts of prepared statements, by number from 1; `None` for one that was closed.
    statements: Vec<Option<Vec<u8>>>,
    /// What the next OK packet reports.
    changes: Vec<u8>,
    counted: bool,
}

impl Session {
    pub fn new(answers: Rc<Answers>) -> Self {
        Self {
            answers,
            capabilities: 0,
            status: AUTOCOMMIT,
            trackers: Trackers::default(),
            statements: Vec::new(),
            changes: Vec::new(),
            counted: false,
        }
    }

    /// Parses a HandshakeResponse41 and keeps its capabilities; `None` if it is not one.
    pub fn log_in<'a>(&mut self, payload: &'a [u8]) -> Option<Login<'a>> {
        let mut rest = payload;
        self.capabilities = u32::from_le_bytes(packets::take(&mut rest, 4)?.try_into().ok()?);
        // The longest packet, the character set and the filler.
        packets::take(&mut rest, 4 + 1 + 23)?;
        let user = packets::take_ended(&mut rest)?;
        // The length-encoded length of a response is always one byte.
        let length = usize::from(*packets::take(&mut rest, 1)?.first()?);
        let answer = packets::take(&mut rest, length)?;
        if self.has(capability::CONNECT_WITH_DB) {
            packets::take_ended(&mut rest)?;
        }
        let plugin =
            if self.has(capability::PLUGIN_AUTH) { packets::take_ended(&mut rest)? } else { &b""[..] };
        Some(Login { user, answer, plugin })
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities & capability != 0
    }

    /// Resets the session to its state after login.
    pub fn begin_anew(&mut self) {
        self.status = AUTOCOMMIT;
        self.trackers = Trackers::default();
        self.statements.clear();
        self.changes.clear();
    }

    /// Answers a command that needs only the session; false if the connection is over.
    pub fn answer(
        &mut self,
        command: u8,
        rest: &[u8],
        sequence: u8,
        output: &mut Vec<u8>,
        counted: &mut Counted,
    ) -> bool {
        match command {
            command::QUERY => self.run(rest, false, sequence, output, counted),
            command::EXECUTE => match self.prepared(rest).cloned() {
                Some(text) => self.run(&text, true, sequence, output, counted),
                None => append_error(output, sequence, 1243, "HY000", "Unknown prepared statement"),
            },
            command::PREPARE => self.prepare(rest, sequence, output),
            command::CLOSE => {
                let number = rest.first_chunk().map_or(0, |number| u32::from_le_bytes(*number)) as usize;
                if let Some(statement) = self.statements.get_mut(number.wrapping_sub(1)) {
                    *statement = None;
                }
            }
            command::SEND_LONG_DATA => {}
            command::STATISTICS => {
                let told = format!("Uptime: 1  Questions: {}", counted.statements);
                packets::append(output, sequence, told.as_bytes());
            }
            command::INIT_DB => {
                self.note_schema(rest);
                self.append_ok(output, sequence);
            }
            command::RESET_CONNECTION => {
                self.begin_anew();
                self.append_ok(output, sequence);
            }
            command::PING | command::RESET => self.append_ok(output, sequence),
            command::SET_OPTION => self.append_end(output, sequence),
            _ => append_error(output, sequence, 1047, "08S01", "Unknown command"),
        }
        true
    }

    fn prepared(&self, rest: &[u8]) -> Option<&Vec<u8>> {
        let number = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        self.statements.get(number.checked_sub(1)?)?.as_ref()
    }

    fn prepare(&mut self, text: &[u8], sequence: u8, output: &mut Vec<u8>) {
        self.statements.push(Some(text.to_vec()));
        let number = (self.statements.len() as u32).to_le_bytes();
        let columns = u16::from(first_word(text).eq_ignore_ascii_case(b"select"));
        let parameters = text.iter().filter(|byte| **byte == b'?').count() as u16;
        let mut payload = vec![0];
        payload.extend_from_slice(&number);
        payload.extend_from_slice(&columns.to_le_bytes());
        payload.extend_from_slice(&parameters.to_le_bytes());
        payload.extend_from_slice(&[0, 0, 0]);
        packets::append(output, sequence, &payload);
        let mut sequence = sequence;
        for (count, name) in [(parameters, "?"), (columns, "c")] {
            for _ in 0..count {
                sequence = sequence.wrapping_add(1);
                packets::append(output, sequence, &column(name));
            }
            if count > 0 && !self.has(capability::DEPRECATE_EOF) {
                sequence = sequence.wrapping_add(1);
                append_eof(output, sequence, self.status);
            }
        }
    }

    /// Runs a statement.
    fn run(&mut self, text: &[u8], binary: bool, sequence: u8, output: &mut Vec<u8>, counted: &mut Counted) {
        let word = first_word(text);
        let is_read = word.eq_ignore_ascii_case(b"select");
        if is_read
            && !binary
            && let Some(variables) = variables(text)
        {
            return self.tell(&variables, sequence, output, counted);
        }
        counted.statements += 1;
        if !std::mem::replace(&mut self.counted, true) {
            counted.connections += 1;
        }
        if is_read {
            return self.append_result(binary, output);
        }
        if word.eq_ignore_ascii_case(b"signal") {
            let text = String::from_utf8_lossy(text);
            let number =
                text.split("MYSQL_ERRNO = ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
            return append_error(output, sequence, number.unwrap_or(1644), "45000", "as it was told to say");
        }
        self.note(word, text, counted.statements);
        self.append_ok(output, sequence);
    }

    /// The canned result.
    fn append_result(&self, binary: bool, output: &mut Vec<u8>) {
        let deprecate_eof = self.has(capability::DEPRECATE_EOF);
        output.extend_from_slice(&self.answers.results[usize::from(binary)][usize::from(deprecate_eof)]);
        self.append_end(output, if deprecate_eof { 4 } else { 5 });
    }

    /// Appends the packet that ends the rows, which also answers some commands.
    fn append_end(&self, output: &mut Vec<u8>, sequence: u8) {
        if self.has(capability::DEPRECATE_EOF) {
            let [low, high] = self.status.to_le_bytes();
            packets::append(output, sequence, &[0xfe, 0, 0, low, high, 0, 0]);
        } else {
            append_eof(output, sequence, self.status);
        }
    }

    /// The values of variables: one row.
    fn tell(&self, names: &[String], sequence: u8, output: &mut Vec<u8>, counted: &Counted) {
        let columns: Vec<&str> = names.iter().map(String::as_str).collect();
        let begin = output.len();
        append_columns(output, sequence, self.has(capability::DEPRECATE_EOF), &columns);
        let mut row = Vec::new();
        for name in names {
            let value = match name.as_str() {
                "lab_connections" => counted.connections.to_string(),
                "lab_statements" => counted.statements.to_string(),
                "server_uuid" => SOURCE.to_owned(),
                "version" => super::VERSION.to_owned(),
                "max_allowed_packet" => (64 * 1024 * 1024).to_string(),
                "wait_timeout" => 28_800.to_string(),
                "gtid_executed" => format!("{SOURCE}:1-{}", counted.statements),
                "character_set_client" | "character_set_connection" | "character_set_results" => {
                    "utf8mb4".to_owned()
                }
                "collation_connection" => "utf8mb4_0900_ai_ci".to_owned(),
                "sql_mode" | "init_connect" => String::new(),
                "autocommit" => "1".to_owned(),
                ROLE => "NONE".to_owned(),
                SCHEMA => {
                    row.push(NULL);
                    continue;
                }
                // This includes `read_only` and `super_read_only`.
                _ => "0".to_owned(),
            };
            packets::append_string(&mut row, value.as_bytes());
        }
        let mut written = &output[begin..];
        let mut next = sequence;
        while let Some(packet) = Packet::first(written) {
            next = packet.sequence.wrapping_add(1);
            written = &written[packet.bytes()..];
        }
        packets::append(output, next, &row);
        self.append_end(output, next.wrapping_add(1));
    }

    /// Notes what a statement other than a SELECT changes in the session.
    fn note(&mut self, word: &[u8], text: &[u8], number: u64) {
        match word.to_ascii_lowercase().as_slice() {
            b"set" => {
                for (name, value) in assignments(&String::from_utf8_lossy(text)) {
                    self.assign(&name, &value);
                }
            }
            b"use" => {
                let text = String::from_utf8_lossy(text);
                let name = text.split_ascii_whitespace().nth(1).unwrap_or_default();
                self.note_schema(name.trim_matches(['`', ';']).as_bytes());
            }
            b"begin" | b"start" => self.note_transaction(true),
            b"commit" | b"rollback" => self.note_transaction(false),
            b"insert" | b"update" | b"delete" | b"replace" => {
                if self.status & AUTOCOMMIT == 0 {
                    self.note_transaction(true);
                } else if self.trackers.gtids && self.status & IN_TRANSACTION == 0 {
                    // The encoding: text.
                    let mut told = vec![0];
                    packets::append_string(&mut told, format!("{SOURCE}:{number}").as_bytes());
                    self.report(3, &told);
                }
            }
            _ => {}
        }
    }

    fn assign(&mut self, name: &str, value: &str) {
        if name == "autocommit" {
            let on = ["1", "on", "true", "default"].contains(&value.to_ascii_lowercase().as_str());
            self.status = if on { self.status | AUTOCOMMIT } else { self.status & !AUTOCOMMIT };
        }
        self.trackers.set(name, value);
        if self.trackers.reports(name) {
            let mut told = Vec::new();
            packets::append_string(&mut told, name.as_bytes());
            packets::append_string(&mut told, value.as_bytes());
            self.report(0, &told);
        }
        self.note_state();
    }

    fn note_schema(&mut self, name: &[u8]) {
        if self.trackers.schema {
            let mut told = Vec::new();
            packets::append_string(&mut told, name);
            self.report(1, &told);
        }
        self.note_state();
    }

    fn note_state(&mut self) {
        const ENTRY: [u8; 4] = [2, 2, 1, b'1'];
        if self.trackers.state && !self.changes.ends_with(&ENTRY) {
            self.changes.extend_from_slice(&ENTRY);
        }
    }

    fn note_transaction(&mut self, begun: bool) {
        let before = self.status;
        self.status = if begun { before | IN_TRANSACTION } else { before & !IN_TRANSACTION };
        if self.trackers.transaction && self.status != before {
            let mut told = Vec::new();
            packets::append_string(&mut told, if begun { b"T_______" } else { b"________" });
            self.report(5, &told);
        }
    }

    fn report(&mut self, kind: u8, told: &[u8]) {
        self.changes.push(kind);
        packets::append_string(&mut self.changes, told);
    }

    /// Appends an OK packet with the session's changes.
    pub fn append_ok(&mut self, output: &mut Vec<u8>, sequence: u8) {
        let changes = std::mem::take(&mut self.changes);
        let tells = !changes.is_empty() && self.has(capability::SESSION_TRACK);
        let [low, high] = (self.status | if tells { STATE_CHANGED } else { 0 }).to_le_bytes();
        let mut payload = vec![0, 0, 0, low, high, 0, 0];
        if tells {
            packets::append_string(&mut payload, b"");
            packets::append_string(&mut payload, &changes);
        }
        packets::append(output, sequence, &payload);
    }
}

/// An ERR packet.
pub fn append_error(output: &mut Vec<u8>, sequence: u8, number: u16, state: &str, text: &str) {
    let mut payload = vec![0xff];
    payload.extend_from_slice(&number.to_le_bytes());
    payload.push(b'#');
    payload.extend_from_slice(state.as_bytes());
    payload.extend_from_slice(text.as_bytes());
    packets::append(output, sequence, &payload);
}

fn append_eof(output: &mut Vec<u8>, sequence: u8, status: u16) {
    let [low, high] = status.to_le_bytes();
    packets::append(output, sequence, &[0xfe, 0, 0, low, high]);
}

/// A result up to its first row: columns of text.
fn append_columns(output: &mut Vec<u8>, sequence: u8, deprecate_eof: bool, names: &[&str]) {
    packets::append(output, sequence, &[names.len() as u8]);
    let mut next = sequence;
    for name in names {
        next = next.wrapping_add(1);
        packets::append(output, next, &column(name));
    }
    if !deprecate_eof {
        append_eof(output, next.wrapping_add(1), AUTOCOMMIT);
    }
}

/// The definition of a column of text (CHAR, `utf8mb4`).
fn column(name: &str) -> Vec<u8> {
    let mut payload = Vec::new();
    for text in ["def", "sbtest", "sbtest1", "sbtest1", name, name] {
        packets::append_string(&mut payload, text.as_bytes());
    }
    payload.extend_from_slice(&[12, packets::UTF8MB4, 0, 224, 1, 0, 0, 0xfe, 0, 0, 0, 0, 0]);
    payload
}

/// The first word of a statement, behind comments.
fn first_word(text: &[u8]) -> &[u8] {
    let mut rest = text.trim_ascii_start();
    while let Some(comment) = rest.strip_prefix(b"/*") {
        let end = comment.windows(2).position(|pair| pair == b"*/").map_or(comment.len(), |end| end + 2);
        rest = comment[end..].trim_ascii_start();
    }
    let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(rest.len());
    &rest[..end]
}

/// The names of the variables if a SELECT asks for nothing else; otherwise `None`.
fn variables(text: &[u8]) -> Option<Vec<String>> {
    // This excludes almost all SELECTs quickly.
    let at = text.windows(2).position(|pair| pair == b"@@")?;
    let text = String::from_utf8_lossy(&text[at..]).to_ascii_lowercase();
    let name = |part: &str| -> Option<String> {
        // `binary` means bytes, whatever the character set of results.
        let part = part.trim();
        let part = part.strip_suffix(" as binary)").unwrap_or(part);
        let part = part.strip_prefix("cast(").unwrap_or(part);
        if let Some(function) = [SCHEMA, ROLE].into_iter().find(|function| part.trim() == *function) {
            return Some(function.to_owned());
        }
        let name = part.trim().strip_prefix("@@")?;
        let name = name.split_ascii_whitespace().next()?;
        let name = name.strip_prefix("global.").or(name.strip_prefix("session.")).unwrap_or(name);
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then(|| name.to_owned())
    };
    if text.contains(" from ") {
        return None;
    }
    text.trim_end_matches(';').split(',').map(name).collect()
}

/// The assignments to session variables in a SET, with names in lower case. Global and user variables are
/// left out.
fn assignments(text: &str) -> Vec<(String, String)> {
    let Some((_, rest)) = text.trim_end_matches(';').split_once(|letter: char| letter.is_ascii_whitespace())
    else {
        return Vec::new();
    };
    let mut quoted = None;
    let parts = rest.split(|letter: char| {
        match (quoted, letter) {
            (None, '\'' | '"') => quoted = Some(letter),
            (Some(quote), letter) if quote == letter => quoted = None,
            _ => {}
        }
        quoted.is_none() && letter == ','
    });
    parts.flat_map(assignment).collect()
}

fn assignment(part: &str) -> Vec<(String, String)> {
    let bare = |text: &str| {
        let text = text.trim();
        text.strip_prefix("_utf8mb4").unwrap_or(text).trim_matches(['\'', '"', '`']).to_owned()
    };
    let part = part.trim();
    let lower = part.to_ascii_lowercase();
    if let Some(set) = lower.strip_prefix("names ") {
        let set = bare(set.split(" collate ").next().unwrap_or_default());
        return ["client", "connection", "results"]
            .map(|of| (format!("character_set_{of}"), set.clone()))
            .to_vec();
    }
    let Some((name, value)) = part.split_once('=') else { return Vec::new() };
    let name = name.trim().trim_end_matches(':').trim().to_ascii_lowercase();
    let name = ["session ", "local ", "@@session.", "@@local.", "@@"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(&name);
    if name.contains(['@', ' ', '.']) {
        return Vec::new();
    }
    vec![(bare(name), bare(value))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let mut session = Session::new(Rc::new(Answers::new()));
        session.capabilities = capability::USUAL | capability::SESSION_TRACK;
        session
    }

    /// The answer to a statement.
    fn answered(session: &mut Session, text: &str) -> Vec<u8> {
        let mut output = Vec::new();
        assert!(session.answer(command::QUERY, text.as_bytes(), 1, &mut output, &mut Counted::default()));
        output
    }

    #[test]
    fn trackers_report_what_has_changed_and_only_that() {
        let mut session = session();
        assert_eq!(answered(&mut session, "SET sql_mode = 'ANSI'"), b"\x07\0\0\x01\0\0\0\x02\0\0\0");
        assert_eq!(
            answered(&mut session, "SET autocommit=0"),
            b"\x18\0\0\x01\0\0\0\x00\x40\0\0\0\x0f\0\x0d\x0aautocommit\x010",
        );
        let told = answered(
            &mut session,
            "SET @@session.session_track_system_variables = 'sql_mode,autocommit', SESSION session_track_state_change=ON",
        );
        assert_eq!(told[11..], *b"\x00\x04\x02\x02\x011");
        let told = answered(&mut session, "set sql_mode = 'ANSI,TRADITIONAL'");
        assert_eq!(told[11..], *b"\x00\x20\0\x1a\x08sql_mode\x10ANSI,TRADITIONAL\x02\x02\x011".as_slice());
        let told = answered(&mut session, "SET @@SESSION.sql_mode = _utf8mb4'ANSI'");
        assert_eq!(told[11..], *b"\x00\x14\0\x0e\x08sql_mode\x04ANSI\x02\x02\x011".as_slice());
        assert_eq!(answered(&mut session, "USE shop")[11..], *b"\x00\x0b\x01\x05\x04shop\x02\x02\x011");
    }

    #[test]
    fn a_write_tells_its_gtid_where_that_is_wanted() {
        let mut session = session();
        assert_eq!(answered(&mut session, "INSERT INTO t VALUES (1)").len(), 11);
        answered(&mut session, "SET session_track_gtids = OWN_GTID");
        let told = answered(&mut session, "INSERT INTO t VALUES (1)");
        assert_eq!(told[11..16], *b"\x00\x2a\x03\x28\x00", "{told:?}");
        assert!(told.ends_with(format!("{SOURCE}:1").as_bytes()));
    }

    #[test]
    fn the_status_knows_transactions() {
        let mut session = session();
        assert_eq!(answered(&mut session, "BEGIN")[7], 3);
        assert_eq!(answered(&mut session, "/* a hint */ commit")[7], 2);
        let result = answered(&mut session, "SELECT c FROM t");
        assert_eq!(result[result.len() - 7..], [0xfe, 0, 0, 2, 0, 0, 0]);
        assert!(result.windows(ROW.len()).any(|window| window == ROW));
    }

    #[test]
    fn only_a_select_of_nothing_but_variables_is_one() {
        let found = variables(b"SELECT @@global.super_read_only AS x, @@server_uuid;");
        assert_eq!(found, Some(vec!["super_read_only".to_owned(), "server_uuid".to_owned()]));
        assert_eq!(
            variables(b"SELECT @@autocommit, DATABASE()"),
            Some(vec!["autocommit".into(), SCHEMA.into()])
        );
        let found = variables(b"SELECT @@autocommit, CAST(@@sql_mode AS BINARY), CAST(DATABASE() AS BINARY)");
        assert_eq!(found, Some(vec!["autocommit".into(), "sql_mode".into(), SCHEMA.into()]));
        assert_eq!(variables(b"SELECT c FROM sbtest1"), None);
        assert_eq!(variables(b"SELECT @@version, a FROM t"), None);
        assert_eq!(variables(b"SELECT @@version, now()"), None);
    }
}
