//! Answers of servers, byte by byte, through the reader that a session uses.

use crate::answer::{AnswerEvent, AnswerReader, WholeAnswer};
use crate::capability::{Capabilities, StatusFlags};
use crate::command::{AnswerShape, ClientCommand};
use crate::outcome::SessionChanges;
use crate::packet::{MAX_PAYLOAD_BYTES, write_packets};
use crate::response::{AnswerEnd, AnswerPart, DEFAULT_HEAD_BYTES, LEAST_HEAD_BYTES, PreparedStatement};
use crate::wire_error::WireError;

const NEW: Capabilities = Capabilities::SPOKEN;

fn old() -> Capabilities {
    Capabilities::SPOKEN.without(Capabilities::DEPRECATE_EOF)
}

const COLUMN: &[u8] = b"\x03def\x00\x00\x00\x01a\x00\x0c\x3f\x00\x01\x00\x00\x00\x08\x81\x00\x00\x00\x00";
const OK: &[u8] = b"\0\0\0\x02\0\0\0";
const OK_AT_END: &[u8] = b"\xfe\0\0\x02\0\0\0";
const OK_MORE: &[u8] = b"\0\0\0\x0a\0\0\0";
const OK_AT_END_MORE: &[u8] = b"\xfe\0\0\x0a\0\0\0";
const EOF: &[u8] = b"\xfe\0\0\x02\0";
const EOF_MORE: &[u8] = b"\xfe\0\0\x0a\0";
const EOF_CURSOR: &[u8] = b"\xfe\0\0\x42\0";
const OK_CURSOR: &[u8] = b"\xfe\0\0\x42\0\0\0";
const ERROR: &[u8] = b"\xff\x0a\x05#HY000read-only";

/// The packets of an answer to a command with the sequence id 0.
fn answer(payloads: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sequence = 1;
    for payload in payloads {
        sequence = write_packets(&mut out, sequence, payload);
    }
    out
}

/// The parts reported for an answer that arrives in slices of `slice_bytes`, each with the bytes up to it.
/// Ends with the answer, whose last byte must be the last of `bytes`.
fn told(
    bytes: &[u8],
    slice_bytes: usize,
    mut reader: AnswerReader,
) -> Result<Vec<(usize, String)>, WireError> {
    let (mut at, mut end, mut told) = (0, 0, Vec::new());
    while !reader.is_over() {
        let step = reader.advance(&bytes[at..end])?;
        assert!(step.before <= step.consumed && step.consumed <= end - at);
        at += step.consumed;
        match step.event {
            AnswerEvent::Part(part) => {
                assert!(step.consumed > step.before, "what is told has bytes");
                told.push((at, named(&part)));
            }
            AnswerEvent::More { needs } => {
                assert!(needs > end - at, "{needs} bytes are asked for, and {} are there", end - at);
                assert!(end < bytes.len(), "asks for more than the answer has: {told:?}");
                end = (end + slice_bytes).min(bytes.len());
            }
        }
    }
    assert_eq!(at, bytes.len(), "bytes of the answer are left: {told:?}");
    Ok(told)
}

fn named(part: &AnswerPart<'_>) -> String {
    match part {
        AnswerPart::Middle => panic!("nothing is to be told of it"),
        AnswerPart::Prepared(prepared) => format!("prepared {}", prepared.statement_id),
        AnswerPart::DefinitionsOver => "defined".to_owned(),
        AnswerPart::LocalInfile { name } => format!("infile {}", name.escape_ascii()),
        AnswerPart::ResultOver(end) => format!("result, {}", end_named(end)),
        AnswerPart::Over(end) => format!("over, {}", end_named(end)),
    }
}

fn end_named(end: &AnswerEnd<'_>) -> String {
    match end {
        AnswerEnd::Ok(ok) => format!("ok {}", ok.status.0),
        AnswerEnd::Eof(eof) => format!("eof {}", eof.status.0),
        AnswerEnd::Err(error) => format!("error {} {}", error.code, error.message.escape_ascii()),
        AnswerEnd::Prepared(prepared) => format!("prepared {}", prepared.statement_id),
        AnswerEnd::Text => "text".to_owned(),
    }
}

fn reader(command: ClientCommand, capabilities: Capabilities) -> AnswerReader {
    AnswerReader::new(command, 0, capabilities, DEFAULT_HEAD_BYTES).expect("the command has an answer")
}

/// The reported parts, which must be the same for slices of every size.
fn all(
    command: ClientCommand,
    capabilities: Capabilities,
    payloads: &[&[u8]],
) -> Result<Vec<String>, WireError> {
    let bytes = answer(payloads);
    let whole = told(&bytes, bytes.len(), reader(command, capabilities));
    if let Some(known) = WholeAnswer::read(command, 0, capabilities, &bytes) {
        let end = named(&AnswerPart::Over(AnswerEnd::Ok(known.ok)));
        assert_eq!(whole, Ok(vec![(bytes.len(), end)]), "both readers agree");
    }
    for slice_bytes in 1..bytes.len() {
        assert_eq!(
            told(&bytes, slice_bytes, reader(command, capabilities)),
            whole,
            "slices of {slice_bytes}"
        );
    }
    whole.map(|told| told.into_iter().map(|(_, text)| text).collect())
}

#[track_caller]
fn expect(command: ClientCommand, capabilities: Capabilities, payloads: &[&[u8]], expected: &[&str]) {
    let told = all(command, capabilities, payloads);
    assert_eq!(
        told.as_deref().map_err(|error| *error),
        Ok(&expected.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..])
    );
}

#[track_caller]
fn refused(command: ClientCommand, capabilities: Capabilities, payloads: &[&[u8]], why: WireError) {
    let bytes = answer(payloads);
    assert_eq!(told(&bytes, bytes.len(), reader(command, capabilities)), Err(why));
}

#[test]
fn an_answer_of_one_result_is_read_at_once() {
    let rows: &[&[u8]] = &[b"\x02", COLUMN, COLUMN, b"\x011\x012", b"\xfb\x00", OK_AT_END];
    let binary: &[&[u8]] = &[b"\x01", COLUMN, b"\0\0\x01\0\0\0", OK_AT_END];
    for (command, payloads, has_rows) in [
        (ClientCommand::Query, rows, true),
        (ClientCommand::Query, &[OK], false),
        (ClientCommand::StmtExecute, binary, true),
    ] {
        let bytes = answer(payloads);
        let whole = WholeAnswer::read(command, 0, NEW, &bytes).expect("it is whole");
        assert_eq!((whole.has_rows, whole.ok.status), (has_rows, StatusFlags::AUTOCOMMIT));
        let left = |count: usize| WholeAnswer::read(command, 0, NEW, &bytes[..count]);
        assert!((0..bytes.len()).all(|count| left(count).is_none()), "some of it is not all of it");
        let two = [&bytes[..], &bytes].concat();
        assert_eq!(WholeAnswer::read(command, 0, NEW, &two), None, "two answers are not one");
        assert_eq!(WholeAnswer::read(command, 1, NEW, &bytes), None, "the ids are those of another command");
        assert_eq!(WholeAnswer::read(command, 0, old(), &bytes), None);
    }
}

#[test]
fn no_other_answer_is_read_at_once() {
    let others: [(ClientCommand, &[&[u8]]); 8] = [
        (ClientCommand::Query, &[ERROR]),
        (ClientCommand::Query, &[b"\x01", COLUMN, ERROR]),
        (ClientCommand::Query, &[b"\x01", COLUMN, b"\x011", ERROR]),
        (ClientCommand::Query, &[OK_MORE]),
        (ClientCommand::Query, &[b"\x01", COLUMN, OK_AT_END_MORE]),
        (ClientCommand::Query, &[b"\xfbfile"]),
        (ClientCommand::StmtExecute, &[b"\x01", COLUMN, OK_CURSOR]),
        (ClientCommand::StmtExecute, &[b"\x01", COLUMN, b"\x011", OK_AT_END]),
    ];
    for (command, payloads) in others {
        assert_eq!(WholeAnswer::read(command, 0, NEW, &answer(payloads)), None, "{payloads:?}");
    }
    for command in ClientCommand::ALL {
        let is_read = WholeAnswer::read(*command, 0, NEW, &answer(&[OK])).is_some();
        let has_results = matches!(command.answer(), AnswerShape::TextResults | AnswerShape::BinaryResults);
        assert_eq!(is_read, has_results, "{}", command.name());
    }
}

#[test]
fn rows_of_text_end_with_an_eof_or_an_ok_packet() {
    let query = ClientCommand::Query;
    expect(query, NEW, &[b"\x01", COLUMN, b"\x011", b"\xfb", OK_AT_END], &["over, ok 2"]);
    expect(query, NEW, &[b"\x02", COLUMN, COLUMN, OK_AT_END], &["over, ok 2"]);
    expect(query, old(), &[b"\x01", COLUMN, EOF, b"\x011", b"\x012", EOF], &["over, eof 2"]);
    expect(query, old(), &[OK], &["over, ok 2"]);
    expect(query, NEW, &[ERROR], &["over, error 1290 read-only"]);
}

#[test]
fn an_error_ends_an_answer_wherever_it_stands() {
    let query = ClientCommand::Query;
    let over = &["over, error 1290 read-only"];
    expect(query, NEW, &[b"\x01", ERROR], over);
    expect(query, old(), &[b"\x01", COLUMN, ERROR], over);
    expect(query, NEW, &[b"\x01", COLUMN, b"\x011", ERROR], over);
    expect(ClientCommand::StmtPrepare, NEW, &[ERROR], over);
    expect(ClientCommand::StmtFetch, NEW, &[ERROR], over);
    expect(ClientCommand::Statistics, NEW, &[ERROR], over);
    expect(ClientCommand::FieldList, NEW, &[ERROR], over);
    expect(ClientCommand::Ping, NEW, &[ERROR], over);
}

#[test]
fn each_of_several_results_is_told() {
    let query = ClientCommand::Query;
    expect(
        query,
        NEW,
        &[b"\x01", COLUMN, b"\x011", OK_AT_END_MORE, OK_MORE, b"\x01", COLUMN, OK_AT_END_MORE, OK],
        &["result, ok 10", "result, ok 10", "result, ok 10", "over, ok 2"],
    );
    expect(query, old(), &[b"\x01", COLUMN, EOF, EOF_MORE, OK], &["result, eof 10", "over, ok 2"]);
    expect(query, NEW, &[OK_MORE, ERROR], &["result, ok 10", "over, error 1290 read-only"]);
}

#[test]
fn rows_in_binary_begin_with_a_nul() {
    let execute = ClientCommand::StmtExecute;
    expect(execute, NEW, &[b"\x01", COLUMN, b"\0\0\x01", OK_AT_END], &["over, ok 2"]);
    expect(execute, old(), &[b"\x01", COLUMN, EOF, b"\0\0\x01", EOF], &["over, eof 2"]);
    refused(execute, NEW, &[b"\x01", COLUMN, b"\x011"], WireError::UnexpectedPacket);
}

#[test]
fn an_opened_cursor_ends_the_answer_without_rows() {
    let execute = ClientCommand::StmtExecute;
    expect(execute, old(), &[b"\x01", COLUMN, EOF_CURSOR], &["over, eof 66"]);
    expect(execute, NEW, &[b"\x01", COLUMN, OK_CURSOR], &["over, ok 66"]);
    let fetch = ClientCommand::StmtFetch;
    expect(fetch, old(), &[b"\0\0\x01", b"\0\0\x02", EOF_CURSOR], &["over, eof 66"]);
    expect(fetch, NEW, &[b"\0\0\x01", b"\xfe\0\0\x82\0\0\0"], &["over, ok 130"]);
}

#[test]
fn a_prepared_statement_is_told_first_and_last() {
    let prepare = ClientCommand::StmtPrepare;
    let both = b"\0\x07\0\0\0\x01\0\x02\0\0\0\0";
    expect(prepare, NEW, &[both, COLUMN, COLUMN, COLUMN], &["prepared 7", "over, prepared 7"]);
    expect(prepare, old(), &[both, COLUMN, COLUMN, EOF, COLUMN, EOF], &["prepared 7", "over, prepared 7"]);
    expect(
        prepare,
        old(),
        &[b"\0\x07\0\0\0\0\0\x01\0\0\0\0", COLUMN, EOF],
        &["prepared 7", "over, prepared 7"],
    );
    expect(prepare, NEW, &[b"\0\x07\0\0\0\x01\0\0\0\0\0\0", COLUMN], &["prepared 7", "over, prepared 7"]);
    expect(prepare, old(), &[b"\0\x07\0\0\0\0\0\0\0\0\0\0"], &["over, prepared 7"]);
    refused(prepare, NEW, &[b"\0\x07\0\0\0\0\0\0\0\0\0\0\x01"], WireError::TrailingBytes);
    refused(prepare, NEW, &[both, OK], WireError::UnexpectedPacket);
}

#[test]
fn what_a_prepared_statement_has_is_counted() {
    let bytes = answer(&[b"\0\x07\0\0\0\x01\0\x02\0\0\x03\0", COLUMN]);
    let mut reader = reader(ClientCommand::StmtPrepare, NEW);
    let step = reader.advance(&bytes).expect("it is well-formed");
    let expected = PreparedStatement { statement_id: 7, column_count: 1, parameter_count: 2, warnings: 3 };
    assert_eq!(step.event, AnswerEvent::Part(AnswerPart::Prepared(expected)));
    assert_eq!((step.before, step.consumed), (0, 16), "its id can be changed before it is passed on");
}

#[test]
fn where_definitions_end_is_told_to_who_asks() {
    let long = [COLUMN, &[b'x'; 300]].concat();
    let prepared = b"\0\x07\0\0\0\x01\0\x02\0\0\0\0";
    let none = b"\0\x07\0\0\0\0\0\0\0\0\0\0";
    for (command, payloads, expected) in [
        (
            ClientCommand::Query,
            &[b"\x02", COLUMN, &long, b"\x011", OK_AT_END_MORE, b"\x01", COLUMN, ERROR][..],
            &["defined", "result, ok 10", "defined", "over, error 1290 read-only"][..],
        ),
        (ClientCommand::Query, &[b"\x01", COLUMN, OK_AT_END], &["defined", "over, ok 2"]),
        (ClientCommand::StmtExecute, &[b"\x01", &long, OK_CURSOR], &["defined", "over, ok 66"]),
        (ClientCommand::StmtFetch, &[b"\0\0\x01", OK_AT_END], &["over, ok 2"]),
        (ClientCommand::FieldList, &[COLUMN, OK_AT_END], &["over, ok 2"]),
        (
            ClientCommand::StmtPrepare,
            &[prepared, COLUMN, &long, COLUMN],
            &["prepared 7", "defined", "over, prepared 7"],
        ),
        (ClientCommand::StmtPrepare, &[none], &["over, prepared 7"]),
    ] {
        let bytes = answer(payloads);
        for slice_bytes in [1, 5, 64, bytes.len()] {
            let reader = AnswerReader::new(command, 0, NEW, LEAST_HEAD_BYTES).expect("it has an answer");
            let told = told(&bytes, slice_bytes, reader.telling_definitions(true)).expect("an answer");
            let names: Vec<String> = told.into_iter().map(|(_, name)| name).collect();
            assert_eq!(names, expected, "slices of {slice_bytes}");
        }
    }
}

/// A rewriter replaces this packet, and must recognise it by its first byte.
#[test]
fn the_end_of_rows_is_one_piece_for_who_puts_another_in_its_place() {
    let end = [b"\xfe\0\0\x02\x40\0\0\0\x60\x01\x5e\x5d", &[b's'; 93][..]].concat();
    let bytes = answer(&[b"\x01", COLUMN, &end]);
    let reader = AnswerReader::new(ClientCommand::Query, 0, NEW, LEAST_HEAD_BYTES).expect("an answer");
    let refused = told(&bytes, 7, reader.telling_definitions(true));
    assert_eq!(refused, Err(WireError::TrailingBytes));
}

#[test]
fn simple_answers_are_ok_or_eof() {
    for command in [ClientCommand::Ping, ClientCommand::InitDb, ClientCommand::ResetConnection] {
        expect(command, NEW, &[OK], &["over, ok 2"]);
    }
    expect(ClientCommand::SetOption, old(), &[EOF], &["over, eof 2"]);
    expect(ClientCommand::SetOption, NEW, &[OK_AT_END], &["over, ok 2"]);
    expect(ClientCommand::Ping, NEW, &[OK_MORE], &["over, ok 10"]);
    refused(ClientCommand::Ping, NEW, &[b"\x01"], WireError::UnexpectedPacket);
}

#[test]
fn statistics_are_one_packet_of_text() {
    expect(ClientCommand::Statistics, NEW, &[b"Uptime: 7  Threads: 2"], &["over, text"]);
}

#[test]
fn the_columns_of_a_table_end_as_rows_do() {
    expect(ClientCommand::FieldList, old(), &[COLUMN, COLUMN, EOF], &["over, eof 2"]);
    expect(ClientCommand::FieldList, NEW, &[OK_AT_END], &["over, ok 2"]);
}

#[test]
fn a_local_file_is_asked_for_only_by_a_server_that_was_offered_it() {
    let query = ClientCommand::Query;
    let mut bytes = answer(&[b"\xfb/tmp/rows.csv"]);
    let mut reader = reader(query, NEW);
    let step = reader.advance(&bytes).expect("it is well-formed");
    assert_eq!(step.event, AnswerEvent::Part(AnswerPart::LocalInfile { name: b"/tmp/rows.csv" }));
    assert!(!reader.is_over());
    reader.infile_sent(3);
    bytes.clear();
    write_packets(&mut bytes, 4, OK);
    assert_eq!(told(&bytes, 3, reader).map(|told| told.len()), Ok(1));
    let without = NEW.without(Capabilities::LOCAL_FILES);
    refused(query, without, &[b"\xfb/etc/passwd"], WireError::LocalInfileNotOffered);
    refused(ClientCommand::StmtExecute, NEW, &[b"\xfb/etc/passwd"], WireError::LengthEncodedInteger);
    refused(query, NEW, &[OK_MORE, b"\xfb/x", b"\x01"], WireError::UnexpectedPacket);
}

#[test]
fn a_row_of_16_mib_that_begins_as_an_eof_packet_is_a_row() {
    let mut row = b"\xfe\0\0\0\x01\0\0\0\0".to_vec();
    row.resize(MAX_PAYLOAD_BYTES + 10, b'x');
    for (capabilities, expected) in [(NEW, "over, ok 2"), (old(), "over, eof 2")] {
        let bytes = match capabilities == NEW {
            true => answer(&[b"\x01", COLUMN, &row, OK_AT_END]),
            false => answer(&[b"\x01", COLUMN, EOF, &row, EOF]),
        };
        for slice_bytes in [16 * 1024, 1 << 20, bytes.len()] {
            let told = told(&bytes, slice_bytes, reader(ClientCommand::Query, capabilities));
            assert_eq!(told, Ok(vec![(bytes.len(), expected.to_owned())]), "slices of {slice_bytes}");
        }
    }
}

#[test]
fn sequence_ids_begin_anew_after_255_and_miss_none() {
    let mut payloads: Vec<&[u8]> = vec![b"\x01", COLUMN];
    payloads.extend(std::iter::repeat_n(&b"\x011"[..], 700));
    payloads.push(OK_AT_END);
    let mut bytes = answer(&payloads);
    assert_eq!(told(&bytes, 1000, reader(ClientCommand::Query, NEW)).map(|told| told.len()), Ok(1));
    let last = bytes.len() - OK_AT_END.len() - 1;
    bytes[last] = bytes[last].wrapping_add(1);
    assert_eq!(told(&bytes, 1000, reader(ClientCommand::Query, NEW)), Err(WireError::SequenceId));
}

#[test]
fn an_error_that_was_sent_before_the_command_came_is_told() {
    let mut bytes = Vec::new();
    write_packets(&mut bytes, 0, b"\xff\xbf\x0f#HY000idle for too long");
    let told = told(&bytes, 9, reader(ClientCommand::Query, NEW)).expect("its sequence id is not judged");
    assert_eq!(told[0].1, "over, error 4031 idle for too long");
}

#[test]
fn more_changes_than_the_limit_are_told_when_their_packet_has_ended() {
    let mut payload = b"\xfe\x05\0\x02\x40\0\0\0\xfd\x00\x00\x01".to_vec();
    payload.resize(12 + 0x1_0000, b'x');
    let bytes = answer(&[b"\x01", COLUMN, &payload]);
    let mut reader =
        AnswerReader::new(ClientCommand::Query, 0, NEW, LEAST_HEAD_BYTES).expect("it is answered");
    let half = bytes.len() / 2;
    let step = reader.advance(&bytes[..half]).expect("it is well-formed");
    assert_eq!((step.consumed, reader.is_over()), (half, false), "nothing is told yet, and all passes");
    let step = reader.advance(&bytes[half..]).expect("it is well-formed");
    let AnswerEvent::Part(AnswerPart::Over(end)) = step.event else { panic!("{step:?}") };
    assert!(reader.is_over());
    assert_eq!((end.status(), end.changes()), (Some(StatusFlags(0x4002)), SessionChanges::TooLong));
}

#[test]
fn what_no_server_may_say_is_an_error() {
    let query = ClientCommand::Query;
    refused(query, NEW, &[b""], WireError::UnexpectedPacket);
    refused(query, NEW, &[b"\x01\x01", COLUMN], WireError::TrailingBytes);
    refused(query, NEW, &[b"\xfc\0\0"], WireError::ColumnCount);
    refused(query, NEW, &[b"\xfd\0\0\x01"], WireError::ColumnCount);
    refused(query, NEW, &[EOF], WireError::UnexpectedPacket);
    refused(query, NEW, &[b"\x01", OK], WireError::UnexpectedPacket);
    refused(query, NEW, &[b"\x01", b""], WireError::UnexpectedPacket);
    refused(query, old(), &[b"\x01", COLUMN, b"\x011"], WireError::UnexpectedPacket);
    refused(query, old(), &[b"\x01", COLUMN, EOF, OK_AT_END], WireError::TrailingBytes);
    refused(query, NEW, &[b"\x01", COLUMN, EOF], WireError::Truncated);
    refused(query, NEW, &[b"\0\0\0\x02\0\0\0\x01a!"], WireError::TrailingBytes);
}

#[test]
fn commands_without_an_answer_of_this_kind_have_no_reader() {
    for command in [
        ClientCommand::Quit,
        ClientCommand::StmtClose,
        ClientCommand::StmtSendLongData,
        ClientCommand::ChangeUser,
        ClientCommand::BinlogDumpGtid,
        ClientCommand::Clone,
    ] {
        assert!(AnswerReader::new(command, 0, NEW, DEFAULT_HEAD_BYTES).is_none(), "{}", command.name());
    }
}

#[test]
fn bytes_behind_an_answer_are_left() {
    let mut bytes = answer(&[OK]);
    let length = bytes.len();
    bytes.extend_from_slice(b"\x07\0\0\0next");
    let mut reader = reader(ClientCommand::Ping, NEW);
    let step = reader.advance(&bytes).expect("it is well-formed");
    assert_eq!((step.before, step.consumed), (0, length));
    assert!(reader.is_over());
    assert!(reader.advance(&bytes[length..]).is_err(), "what comes unasked belongs to no answer");
}
