//! Watches the files of maps, puts changed ones in force, and changes lines in them.
//!
//! A file is checked by its device and inode, its length and its times, following links: so a rename over it,
//! a rewrite in place and another target of a link are all noticed. It is read once two checks in a row have
//! found the same, so that a file is not read while it is being written; whether it has changed is then
//! decided by its content.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use std::{fmt, io};

use weir_config::{EditedMap, LineEdit, MAP_FILE_BYTES, World as _};
use weir_state::maps::Map;

use crate::blocking::blocking;
use crate::config_files::Disk;
use crate::events::{Bus, What};
use crate::lock;
use crate::publish::InForce;
use crate::store;

/// Interval between two checks.
const LOOK: Duration = Duration::from_secs(1);
/// Number of checks in a row that may find a file changed before this is logged; it is not read meanwhile.
const MOST_UNREST: u32 = 30;
/// Most mistakes that are logged for one version (count); `weir check` lists all of them.
const MOST_LOGGED: usize = 20;

/// Checks the files until the process ends. They are read on a thread that may block.
pub(crate) async fn keep(in_force: InForce, bus: Arc<Bus>) {
    // Shared with the thread, so that nothing is lost if no thread can be started.
    let looks = Arc::new(Mutex::new(HashMap::new()));
    loop {
        tokio::time::sleep(LOOK).await;
        let maps = in_force.snapshot().and_then(|snapshot| snapshot.maps.clone());
        let Some(maps) = maps else { continue };
        let (bus, looks) = (bus.clone(), looks.clone());
        let looked = blocking(move || {
            let mut looks = lock(&looks);
            for map in maps.all() {
                let look: &mut Look = looks.entry(map.config.name.clone()).or_default();
                look.at(map, &bus);
            }
            looks.retain(|name: &String, _| maps.find(name).is_some());
        });
        if let Err(error) = looked.await {
            tracing::error!(%error, "files of maps could not be looked at");
        }
    }
}

/// Distinguishes versions of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The state of a map's file as far as it is known.
#[derive(Default)]
struct Look {
    /// The map that this is about; another map with the same name starts afresh.
    map: Weak<Map>,
    seen: Option<Result<Mark, String>>,
    /// Number of checks in a row that found something else than the one before.
    unrest: u32,
    /// What was read last, or why it could not be read.
    done: Option<Result<Mark, String>>,
}

impl Look {
    fn at(&mut self, map: &Arc<Map>, bus: &Bus) {
        if !std::ptr::eq(self.map.as_ptr(), Arc::as_ptr(map)) {
            *self = Look { map: Arc::downgrade(map), ..Look::default() };
        }
        let path = map.config.path();
        let now = mark(path);
        let is_at_rest = self.seen.as_ref() == Some(&now);
        self.seen = Some(now.clone());
        if !is_at_rest {
            self.unrest += 1;
            if self.unrest == MOST_UNREST {
                let why = format!("{path} is written all the time: it is read once two looks find the same");
                // An earlier result would be reported again only if the file had changed.
                self.done = None;
                tell(map, bus, Err(vec![why]));
            }
            return;
        }
        self.unrest = 0;
        if self.done.as_ref() == Some(&now) {
            return;
        }
        let read = now.clone().map_err(|why| unread(path, &why)).and_then(|_| read(path));
        if mark(path) != now {
            // Somebody has just begun to write it.
            return;
        }
        self.done = Some(now);
        tell(map, bus, read.and_then(|bytes| take(map, bytes)));
    }
}

/// Why a line of a map was not changed.
#[derive(Debug)]
pub enum MapLineError {
    /// No map has that name.
    NoMap(String),
    /// The file has mistakes, or would have; lists all of them.
    Refused(String),
    /// The file can't be written.
    Store(io::Error),
}

impl fmt::Display for MapLineError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapLineError::NoMap(name) => write!(out, "no map is named `{name}`"),
            MapLineError::Refused(why) => write!(out, "{why}"),
            MapLineError::Store(error) => write!(out, "{error}; nothing has changed"),
        }
    }
}

/// Writes a line into a map's file, or removes it, and puts the file in force. `None` if nothing had to be
/// changed. Blocks on the disk.
pub(crate) fn edit(
    map: &Map,
    bus: &Bus,
    key: &str,
    value: Option<&str>,
) -> Result<Option<LineEdit>, MapLineError> {
    let path = map.config.path();
    let refused = |mistakes: Vec<String>| MapLineError::Refused(mistakes.join("\n"));
    let bytes = read(path).map_err(refused)?;
    let EditedMap { edit, bytes } = map.config.edited(&bytes, key, value).map_err(refused)?;
    if edit.is_some() {
        if bytes.len() > MAP_FILE_BYTES {
            return Err(refused(vec![too_long(path)]));
        }
        store::replace(Path::new(path), &bytes).map_err(MapLineError::Store)?;
    }
    // Another program may have changed the file a moment ago; its changes are put in force as well.
    tell(map, bus, take(map, bytes));
    Ok(edit)
}

fn read(path: &str) -> Result<Arc<[u8]>, Vec<String>> {
    let bytes = Disk.read(path, MAP_FILE_BYTES + 1).map_err(|why| unread(path, &why))?;
    if bytes.len() > MAP_FILE_BYTES {
        return Err(vec![too_long(path)]);
    }
    Ok(bytes.into())
}

fn unread(path: &str, why: &str) -> Vec<String> {
    vec![format!("{path} can't be read: {why}")]
}

fn too_long(path: &str) -> String {
    format!("{path} is longer than {MAP_FILE_BYTES} bytes")
}

fn mark(path: &str) -> Result<Mark, String> {
    let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
    Ok(Mark {
        device: found.dev(),
        inode: found.ino(),
        length: found.len(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// Puts the content in force; returns whether it differs from before.
fn take(map: &Map, bytes: Arc<[u8]>) -> Result<bool, Vec<String>> {
    if map.holds(&bytes) {
        map.is_as_it_was();
        return Ok(false);
    }
    map.take_over(&bytes).map(|()| true)
}

fn tell(map: &Map, bus: &Bus, taken: Result<bool, Vec<String>>) {
    let name = map.config.name.clone();
    match taken {
        Ok(false) => {}
        Ok(true) => {
            let lines = map.content().line_count();
            tracing::info!(map = name, lines, "the file has changed and is in force");
            bus.tell(What::Map { map: name, result: "applied", error: String::new() });
        }
        Err(mistakes) => {
            let mut error = mistakes.iter().take(MOST_LOGGED).cloned().collect::<Vec<_>>().join("\n");
            if mistakes.len() > MOST_LOGGED {
                error += &format!("\nand {} more", mistakes.len() - MOST_LOGGED);
            }
            tracing::error!(
                map = name,
                "the file can't be taken over, the lines before stay in force:\n{error}"
            );
            map.refuse(error.clone());
            bus.tell(What::Map { map: name, result: "refused", error });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::Root;
    use weir_state::Maps;

    #[test]
    fn a_file_that_is_written_all_the_time_is_told_and_taken_over_once_it_is_at_rest() {
        let file = std::env::temp_dir().join(format!("weir-control-map-{}", std::process::id()));
        let write =
            |lines: usize| std::fs::write(&file, "a b\n".to_owned() + &"# more\n".repeat(lines)).unwrap();
        write(0);
        let text = format!(
            "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80']\n[map.names]\nfile = '{}'\nkey = '$path'\n",
            file.display()
        );
        let root = Root { name: "weir.toml", text: &text };
        let config =
            weir_config::check_files(&[root], &Disk).unwrap_or_else(|report| panic!("{report}")).config;
        let maps = Maps::compile(&config, None).unwrap();
        let (map, bus, mut look) = (maps.find("names").unwrap(), Bus::default(), Look::default());
        for number in 1..=MOST_UNREST {
            assert_eq!(map.error(), None, "look {number}");
            write(number as usize);
            look.at(map, &bus);
        }
        assert!(map.error().is_some_and(|why| why.contains("is written all the time")), "{:?}", map.error());
        write(0);
        (0..2).for_each(|_| look.at(map, &bus));
        assert_eq!((map.error(), map.versions()), (None, (0, 1)), "it says what is in force");
        std::fs::remove_file(&file).unwrap();
    }
}
