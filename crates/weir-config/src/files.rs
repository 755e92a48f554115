//! Files whose content a config holds: they are read with it, so that what is in force stays whole whatever
//! becomes of them, and a mistake in one names the line that asks for it.

use std::path::Path;
use std::sync::Arc;

use crate::error_page::PAGE_BYTES;
use crate::fields::{Fields, Value};
use crate::report::{Findings, quote};

/// Reads a file of at most so many bytes; `Err` says why it could not be read.
pub type ReadFile<'r> = dyn Fn(&Path, u64) -> Result<Vec<u8>, String> + 'r;

/// Puts the content of every file that the tables name in the place of its name.
pub(crate) fn read(root: &mut Fields, read_file: &ReadFile<'_>, findings: &mut Findings<'_>) {
    for listener in root.below_mut("listener") {
        pages(listener, read_file, findings);
        for route in listener.below_mut("route") {
            pages(route, read_file, findings);
        }
    }
}

fn pages(fields: &mut Fields, read_file: &ReadFile<'_>, findings: &mut Findings<'_>) {
    for page in fields.below_mut("error_page") {
        of_key(page, "file", PAGE_BYTES, read_file, findings);
    }
    for page in fields.below_mut("maintenance") {
        of_key(page, "file", PAGE_BYTES, read_file, findings);
    }
}

fn of_key(
    fields: &mut Fields,
    name: &str,
    most_bytes: u64,
    read_file: &ReadFile<'_>,
    findings: &mut Findings<'_>,
) {
    let Some(entry) = fields.entries.iter_mut().find(|entry| entry.name == name) else { return };
    let Value::Text(path) = &entry.value else { return };
    match read_file(Path::new(path), most_bytes) {
        Ok(content) => entry.value = Value::Read(path.clone(), Arc::from(content)),
        Err(why) => findings.error(entry.at, format!("{} can't be read", quote(path)), why),
    }
}
