//! Files whose content is part of a config: they are read together with it, so that the config in force stays
//! complete whatever happens to them, and a mistake in a file is reported at the line that names the file.

mod named;

use std::collections::HashMap;
use std::sync::Arc;

use crate::auth::is_url;
use crate::buffer;
use crate::error_page::PAGE_BYTES;
use crate::fields::{Fields, Value};
use crate::map::MAP_FILE_BYTES;
use crate::named_files::NamedFiles;
use crate::report::{Findings, quote};
use crate::world::World;

/// Replaces the name of every file in the tables by the file's content.
pub(crate) fn read(root: &mut Fields, world: &dyn NamedFiles, findings: &mut Findings<'_>) {
    buffer::try_directory(root, world, findings);
    named::look_at_all(root, world, findings);
    let mut reader = Reader { world, read: HashMap::new() };
    for map in root.below_mut("map") {
        of_key(map, "file", MAP_FILE_BYTES, &mut reader, findings);
    }
    for listener in root.below_mut("listener") {
        pages(listener, &mut reader, findings);
        for route in listener.below_mut("route") {
            pages(route, &mut reader, findings);
        }
    }
}

/// Reads each file once, however many places name it: all of them share the same content.
struct Reader<'w> {
    world: &'w dyn World,
    /// By name and limit in bytes.
    read: HashMap<(String, usize), FileContent>,
}

/// The content of a file, or why it can't be read.
type FileContent = Result<Arc<[u8]>, String>;

impl Reader<'_> {
    fn content(&mut self, path: &str, most_bytes: usize) -> FileContent {
        let read = || {
            let content = self.world.read(path, most_bytes + 1)?;
            match content.len() > most_bytes {
                true => Err(format!("it is longer than {most_bytes} bytes")),
                false => Ok(Arc::from(content)),
            }
        };
        self.read.entry((path.to_owned(), most_bytes)).or_insert_with(read).clone()
    }
}

fn pages(fields: &mut Fields, reader: &mut Reader<'_>, findings: &mut Findings<'_>) {
    for auth in fields.below_mut("auth") {
        for (way, file) in [("basic", "users"), ("jwt", "keys")] {
            for below in auth.below_mut(way) {
                if below.text(file).is_some_and(is_url) {
                    continue;
                }
                of_key(below, file, PAGE_BYTES as usize, reader, findings);
            }
        }
    }
    for key in ["error_page", "maintenance"] {
        for page in fields.below_mut(key) {
            of_key(page, "file", PAGE_BYTES as usize, reader, findings);
        }
    }
}

fn of_key(
    fields: &mut Fields,
    name: &str,
    most_bytes: usize,
    reader: &mut Reader<'_>,
    findings: &mut Findings<'_>,
) {
    let Some(entry) = fields.entries.iter_mut().find(|entry| entry.name == name) else { return };
    let Value::Text(path) = &entry.value else { return };
    match reader.content(path, most_bytes) {
        Ok(content) => entry.value = Value::Read(path.clone(), content),
        Err(why) => findings.error(entry.at, format!("{} can't be read", quote(path)), why),
    }
}
