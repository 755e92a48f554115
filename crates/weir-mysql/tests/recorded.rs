//! What mysqld 9.7.4 said, recorded on a socket: `tests/data/mysqld-9.7.4.txt`. A line is the generation of
//! the client (`new` with CLIENT_DEPRECATE_EOF, `old` without), the command's byte, what the answer holds,
//! and its bytes in hexadecimal, up to where the server fell silent.

use weir_mysql::answer::{AnswerEvent, AnswerReader};
use weir_mysql::authentication::LoginAnswer;
use weir_mysql::capability::Capabilities;
use weir_mysql::command::ClientCommand;
use weir_mysql::greeting::{CACHING_SHA2_PASSWORD, FirstWord};
use weir_mysql::outcome::SessionChanges;
use weir_mysql::packet::{HEADER_BYTES, PacketEvent, PacketReader};
use weir_mysql::response::{AnswerEnd, AnswerPart, DEFAULT_HEAD_BYTES};
use weir_mysql::session_track::{TrackedChange, TrackedChanges};

const RECORDED: &str = include_str!("data/mysqld-9.7.4.txt");

struct Recorded {
    capabilities: Capabilities,
    command: &'static str,
    expected: Vec<&'static str>,
    bytes: Vec<u8>,
}

fn recorded() -> Vec<Recorded> {
    let lines = RECORDED.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [generation, command, expected, bytes] = words[..] else { panic!("{line}") };
        let capabilities = match generation {
            "new" => Capabilities::SPOKEN,
            _ => Capabilities::SPOKEN.without(Capabilities::DEPRECATE_EOF),
        };
        let digits = (0..bytes.len()).step_by(2);
        let bytes =
            digits.map(|at| u8::from_str_radix(&bytes[at..at + 2], 16).expect("two digits")).collect();
        Recorded { capabilities, command, expected: expected.split(',').collect(), bytes }
    });
    lines.collect()
}

fn end_name(end: &AnswerEnd<'_>) -> &'static str {
    match end {
        AnswerEnd::Ok(_) => "ok",
        AnswerEnd::Eof(_) => "eof",
        AnswerEnd::Err(_) => "err",
        AnswerEnd::Prepared(_) => "prepared",
        AnswerEnd::Text => "text",
    }
}

/// What is told of an answer, and the changes in it.
fn told(recorded: &Recorded, slice_bytes: usize) -> (Vec<String>, Vec<String>) {
    let byte = u8::from_str_radix(recorded.command, 16).expect("a command's byte");
    let command = ClientCommand::of(byte).expect("a command");
    let mut reader =
        AnswerReader::new(command, 0, recorded.capabilities, DEFAULT_HEAD_BYTES).expect("it has an answer");
    let (mut told, mut changes, mut at, mut end) = (Vec::new(), Vec::new(), 0, 0);
    while !reader.is_over() {
        let step = reader
            .advance(&recorded.bytes[at..end])
            .unwrap_or_else(|error| panic!("{} {:?} at {at}: {error}", command.name(), recorded.expected));
        at += step.consumed;
        let part = match step.event {
            AnswerEvent::More { .. } => {
                assert!(end < recorded.bytes.len(), "{}: the server said no more: {told:?}", command.name());
                end = (end + slice_bytes).min(recorded.bytes.len());
                continue;
            }
            AnswerEvent::Part(part) => part,
        };
        if let AnswerPart::Over(over) | AnswerPart::ResultOver(over) = part
            && let SessionChanges::Told(bytes) = over.changes()
        {
            changes.extend(TrackedChanges::new(bytes).map(|change| match change {
                Ok(TrackedChange::Schema(name)) => format!("schema {}", name.escape_ascii()),
                Ok(TrackedChange::State(changed)) => format!("state {changed}"),
                Ok(TrackedChange::SystemVariable { name, value }) => {
                    format!("{}={}", name.escape_ascii(), value.escape_ascii())
                }
                Ok(TrackedChange::TransactionCharacteristics(text)) => {
                    format!("transaction {}", text.escape_ascii())
                }
                other => format!("{other:?}"),
            }));
        }
        told.push(match part {
            AnswerPart::Middle | AnswerPart::DefinitionsOver => panic!("nothing is to be told of it"),
            AnswerPart::Prepared(_) => "prepared".to_owned(),
            AnswerPart::LocalInfile { name } => {
                assert_eq!(name, b"/rows");
                reader.infile_sent(3);
                "infile".to_owned()
            }
            AnswerPart::ResultOver(end) => format!("result-{}", end_name(&end)),
            AnswerPart::Over(end) => format!("over-{}", end_name(&end)),
        });
    }
    assert_eq!(at, recorded.bytes.len(), "{} {told:?}: the server said more", command.name());
    (told, changes)
}

fn answers() -> impl Iterator<Item = Recorded> {
    recorded().into_iter().filter(|line| line.expected != ["-"])
}

#[test]
fn every_recorded_answer_ends_where_the_server_fell_silent() {
    let mut count = 0;
    for answer in answers() {
        for slice_bytes in [1, 7, 100, usize::MAX / 2] {
            assert_eq!(told(&answer, slice_bytes).0, answer.expected, "slices of {slice_bytes}");
        }
        count += 1;
    }
    assert!(count > 70, "{count} answers are recorded");
}

#[test]
fn recorded_changes_of_the_session_are_read() {
    let changes: Vec<String> = answers().flat_map(|answer| told(&answer, usize::MAX / 2).1).collect();
    for expected in [
        "schema w",
        "state true",
        "autocommit=OFF",
        "autocommit=ON",
        "transaction START TRANSACTION READ ONLY;",
    ] {
        assert!(changes.iter().any(|change| change == expected), "{expected} is not in {changes:?}");
    }
}

#[test]
fn the_recorded_greeting_and_login_are_read() {
    for line in recorded().iter().filter(|line| line.expected == ["-"]) {
        let mut reader = PacketReader::new();
        let mut rest = &line.bytes[..];
        let mut payloads = Vec::new();
        while !rest.is_empty() {
            let step = reader.advance(rest, |_, _| usize::MAX).expect("packets");
            let PacketEvent::Head(head) = step.event else { panic!("{step:?}") };
            assert_eq!(step.consumed, HEADER_BYTES + head.bytes.len());
            payloads.push(head.bytes);
            rest = &rest[step.consumed..];
        }
        match (line.command, &payloads[..]) {
            ("greeting", [payload]) => {
                let Ok(FirstWord::Greeting(greeting)) = FirstWord::parse(payload) else {
                    panic!("a greeting")
                };
                assert!(greeting.server_version.starts_with(b"9.7.4"));
                assert!(greeting.nonce().is_some());
                assert_eq!(greeting.plugin, CACHING_SHA2_PASSWORD);
                assert!(greeting.capabilities.has(Capabilities::REQUIRED | Capabilities::QUERY_ATTRIBUTES));
                let mut out = Vec::new();
                greeting.write(&mut out);
                assert_eq!(out.escape_ascii().to_string(), payload.escape_ascii().to_string());
            }
            ("login", [.., last]) => {
                let answer = LoginAnswer::parse(last, line.capabilities);
                assert!(matches!(answer, Ok(LoginAnswer::Ok(_))), "{answer:?}");
            }
            (other, payloads) => panic!("{other}: {} packets", payloads.len()),
        }
    }
}
