//! Output of another implementation's encoder (ls-qpack), read by ours.
//!
//! `ls_qpack.txt` has one thing a line, in the order in which it was sent: `connection` with table capacity
//! and blocked streams, `instructions` of the encoder stream, `section` with its stream, and the `field`s
//! that it means. Where a section stands before the instructions that it needs, it comes blocked.

use super::*;

const RECORDING: &str = include_str!("ls_qpack.txt");

#[derive(Default)]
struct Tally {
    sections: usize,
    blocked: usize,
    with_table: usize,
}

struct Waiting {
    stream_id: u64,
    section: Vec<u8>,
    expected: peer::Pairs,
    found: Option<peer::Pairs>,
}

/// Reads the section if it can be read; whether it could.
fn attempt(decoder: &mut Decoder, waiting: &mut Waiting) -> bool {
    let limits = SectionLimits { bytes: 10_000, field_count: 50 };
    let mut fields = peer::Pairs::new();
    let read = decoder.read_section(waiting.stream_id, &waiting.section, limits, |name, value| {
        fields.push(peer::text_of(name, value));
        Ok::<(), ()>(())
    });
    let is_read = read == Ok(SectionRead::Complete);
    assert!(is_read || read == Ok(SectionRead::Blocked), "stream {}: {read:?}", waiting.stream_id);
    if is_read {
        waiting.found = Some(fields);
    }
    is_read
}

fn settle(waiting: &mut Option<Waiting>) {
    if let Some(done) = waiting.take() {
        assert_eq!(done.found.as_ref(), Some(&done.expected), "stream {}", done.stream_id);
    }
}

fn play(recording: &str) -> Tally {
    let mut tally = Tally::default();
    let mut decoder = Decoder::new(0, 0);
    let mut waiting: Option<Waiting> = None;
    for line in recording.lines().filter(|line| !line.starts_with('#')) {
        let (what, rest) = line.split_once(' ').unwrap();
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        match what {
            "connection" => {
                settle(&mut waiting);
                decoder = Decoder::new(first.parse().unwrap(), second.parse().unwrap());
            }
            "instructions" => {
                decoder.receive_instructions(&hex(first)).unwrap();
                while let Some(stream_id) = decoder.poll_unblocked() {
                    let blocked = waiting.as_mut().filter(|waiting| waiting.stream_id == stream_id);
                    assert!(attempt(&mut decoder, blocked.unwrap()), "stream {stream_id} is blocked again");
                }
            }
            "section" => {
                settle(&mut waiting);
                let section = hex(second);
                tally.sections += 1;
                tally.with_table += usize::from(section[0] != 0);
                let mut new = Waiting {
                    stream_id: first.parse().unwrap(),
                    section,
                    expected: peer::Pairs::new(),
                    found: None,
                };
                tally.blocked += usize::from(!attempt(&mut decoder, &mut new));
                waiting = Some(new);
            }
            "field" => waiting.as_mut().unwrap().expected.push((first.to_string(), second.to_string())),
            other => panic!("an unknown line: {other}"),
        }
    }
    settle(&mut waiting);
    tally
}

#[test]
fn what_ls_qpack_encoded_reads_as_the_fields_it_was_given() {
    let tally = play(RECORDING);
    assert_eq!(tally.sections, 42);
    // The recording proves something only while it has sections that use the table, and some that come too
    // early.
    assert!(tally.with_table >= 25 && tally.blocked >= 5, "{} {}", tally.with_table, tally.blocked);
}
