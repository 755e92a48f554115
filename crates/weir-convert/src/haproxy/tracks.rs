//! Which requests counters are told of: a limit holds for those alone that its `track-sc` is for.

use std::collections::BTreeMap;

use super::acls::{Lost, Read, Reader, When};
use super::sections::Line;

/// The conditions under which counters are told of a request, by their numbers; those that are told of all
/// have none. `Err` says why it is not known.
pub type Tracks = BTreeMap<String, Result<When, String>>;

/// Reads the `track-sc` lines of a proxy; the names of ACLs that they use are added to `used`.
pub fn tracks(lines: &[&Line], reader: &mut Reader<'_>, used: &mut Vec<String>) -> Tracks {
    let mut all: BTreeMap<String, Vec<Result<When, String>>> = BTreeMap::new();
    for line in lines {
        let at = match (line.word(0), line.word(1)) {
            ("http-request", _) => 1,
            ("tcp-request", "connection" | "content" | "session") => 2,
            _ => continue,
        };
        let Some(index) = line.word(at).strip_prefix("track-sc") else { continue };
        let index = index.trim_start_matches('(').trim_end_matches(')').to_owned();
        let condition = line.words.iter().position(|word| matches!(word.as_str(), "if" | "unless"));
        let mut read = Read::default();
        let when = reader.when(line.from(condition.unwrap_or(line.words.len())), &mut read);
        used.extend(read.used);
        all.entry(index).or_default().push(when.map_err(|lost| lost.why));
    }
    let mut tracks = Tracks::new();
    for (index, mut whens) in all {
        let always = |when: &Result<When, String>| when.as_ref().is_ok_and(|when| *when == When::always());
        if whens.iter().all(always) {
            continue;
        }
        let one = match whens.len() {
            1 => whens.remove(0),
            _ => Err("what it counts depends on several conditions".to_owned()),
        };
        tracks.insert(index, one);
    }
    tracks
}

/// The condition with those of the counters that it asks.
pub fn counted(when: When, tracks: &Tracks) -> Result<When, Lost> {
    let mut whole = when;
    for index in whole.tracked() {
        match tracks.get(&index) {
            None => {}
            Some(Ok(condition)) => match whole.and(condition) {
                Some(both) => whole = both,
                None => return Err(Lost { why: "it is too long".to_owned(), when: whole, counts: true }),
            },
            Some(Err(why)) => return Err(Lost { why: why.clone(), when: whole, counts: true }),
        }
    }
    Ok(whole)
}
