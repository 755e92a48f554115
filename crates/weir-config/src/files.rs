//! Files whose content a config holds: they are read with it, so that what is in force stays whole whatever
//! becomes of them, and a mistake in one names the line that asks for it.

mod named;

use std::sync::Arc;

use crate::auth::is_url;
use crate::buffer;
use crate::error_page::PAGE_BYTES;
use crate::fields::{Fields, Value};
use crate::map::MAP_FILE_BYTES;
use crate::named_files::NamedFiles;
use crate::report::{Findings, quote};
use crate::world::World;

/// Puts the content of every file that the tables name in the place of its name.
pub(crate) fn read(root: &mut Fields, world: &dyn NamedFiles, findings: &mut Findings<'_>) {
    buffer::try_directory(root, world, findings);
    named::look_at_all(root, world, findings);
    for map in root.below_mut("map") {
        of_key(map, "file", MAP_FILE_BYTES, world, findings);
    }
    for listener in root.below_mut("listener") {
        pages(listener, world, findings);
        for route in listener.below_mut("route") {
            pages(route, world, findings);
        }
    }
}

fn pages(fields: &mut Fields, world: &dyn World, findings: &mut Findings<'_>) {
    for auth in fields.below_mut("auth") {
        for (way, file) in [("basic", "users"), ("jwt", "keys")] {
            for below in auth.below_mut(way) {
                if below.text(file).is_some_and(is_url) {
                    continue;
                }
                of_key(below, file, PAGE_BYTES as usize, world, findings);
            }
        }
    }
    for key in ["error_page", "maintenance"] {
        for page in fields.below_mut(key) {
            of_key(page, "file", PAGE_BYTES as usize, world, findings);
        }
    }
}

fn of_key(
    fields: &mut Fields,
    name: &str,
    most_bytes: usize,
    world: &dyn World,
    findings: &mut Findings<'_>,
) {
    let Some(entry) = fields.entries.iter_mut().find(|entry| entry.name == name) else { return };
    let Value::Text(path) = &entry.value else { return };
    let read = world.read(path, most_bytes + 1).and_then(|content| match content.len() > most_bytes {
        true => Err(format!("it is longer than {most_bytes} bytes")),
        false => Ok(content),
    });
    match read {
        Ok(content) => entry.value = Value::Read(path.clone(), Arc::from(content)),
        Err(why) => findings.error(entry.at, format!("{} can't be read", quote(path)), why),
    }
}
