//! Maps: lookup of values for a request, and the state of their files since the config was read.
//!
//! The lines lie in an `ArcSwap`, so that a new version of a file takes effect for all workers at once, and a
//! lookup sees one whole version. The control side watches the files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use weir_config::{Config, MapContent, MapFile};
use weir_template::{Source, Template};

/// All maps of a config.
#[derive(Debug)]
pub struct Maps(Box<[Arc<Map>]>);

/// One map.
#[derive(Debug)]
pub struct Map {
    /// As configured.
    pub config: Arc<MapFile>,
    content: ArcSwap<MapContent>,
    history: Arc<History>,
}

/// What has happened to a map's file since the process began; the next snapshot takes it over.
#[derive(Debug, Default)]
struct History {
    applied: AtomicU64,
    refused: AtomicU64,
    error: Mutex<Option<String>>,
}

/// The result of a lookup, and the line it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapAnswer {
    /// The text that was looked up.
    pub asked: Vec<u8>,
    /// Key and number of the matching line; `None` if no line matches.
    pub line: Option<(Vec<u8>, usize)>,
    /// The line's value, or the map's default; empty if there is neither.
    pub value: Vec<u8>,
}

impl Maps {
    /// `None` if `config` has no maps. Maps whose config did not change are the same `Arc`s as in `previous`.
    pub fn compile(config: &Config, previous: Option<&Maps>) -> Option<Arc<Maps>> {
        let compile = |config: &Arc<MapFile>| {
            let old = previous.and_then(|old| old.0.iter().find(|old| old.config.name == config.name));
            match old {
                Some(old) if old.config == *config => old.clone(),
                old => Arc::new(Map::new(config, old)),
            }
        };
        let maps: Box<[Arc<Map>]> = config.maps.iter().map(compile).collect();
        (!maps.is_empty()).then(|| Arc::new(Maps(maps)))
    }

    /// All maps, in the order of the config.
    pub fn all(&self) -> &[Arc<Map>] {
        &self.0
    }

    /// The map of that name.
    #[inline]
    pub fn find(&self, name: &str) -> Option<&Arc<Map>> {
        self.0.iter().find(|map| map.config.name == name)
    }
}

impl Map {
    fn new(config: &Arc<MapFile>, old: Option<&Arc<Map>>) -> Map {
        Map {
            // The config check has made sure that there are no mistakes.
            content: ArcSwap::from_pointee(config.content().unwrap_or_default()),
            config: config.clone(),
            history: old.map(|old| old.history.clone()).unwrap_or_default(),
        }
    }

    /// Calls `look` with the map's value for a request with these values, or with `None` if there is none.
    /// Allocates once, for the text to look up.
    #[inline]
    pub fn with_value<R>(&self, values: &(impl Source + ?Sized), look: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let asked = self.asked(values);
        let content = self.content.load();
        let value = content.look_up(&asked).map(|line| line.value);
        look(value.as_deref().or(self.config.default.as_deref().map(str::as_bytes)))
    }

    /// The same lookup, with every detail of how it came about.
    pub fn explain(&self, values: &(impl Source + ?Sized)) -> MapAnswer {
        self.answer(self.asked(values))
    }

    /// Looks up a text.
    pub fn answer(&self, asked: Vec<u8>) -> MapAnswer {
        let content = self.content.load();
        let line = content.look_up(&asked);
        let default = || self.config.default.clone().unwrap_or_default().into_bytes();
        MapAnswer {
            line: line.as_ref().map(|line| (line.key.to_vec(), line.number)),
            value: line.map_or_else(default, |line| line.value.into_owned()),
            asked,
        }
    }

    fn asked(&self, values: &(impl Source + ?Sized)) -> Vec<u8> {
        let mut asked = Vec::with_capacity(64);
        if let Some(key) = &self.config.key {
            key.render(values, &mut asked);
        }
        asked
    }

    /// Whether the lines in force came from a file with these bytes.
    pub fn holds(&self, bytes: &Arc<[u8]>) -> bool {
        self.content.load().is_of(bytes)
    }

    /// The lines in force.
    pub fn content(&self) -> Arc<MapContent> {
        self.content.load_full()
    }

    /// Puts the file's new content in force, for all workers from their next lookup on.
    ///
    /// # Errors
    /// The content has mistakes: lists all of them, each with its line. Nothing changes.
    pub fn take_over(&self, bytes: &Arc<[u8]>) -> Result<(), Vec<String>> {
        let content = self.config.content_of(bytes)?;
        self.content.store(Arc::new(content));
        self.history.applied.fetch_add(1, Ordering::Relaxed);
        self.tell(None);
        Ok(())
    }

    /// Records that the file's content cannot be used.
    pub fn refuse(&self, error: String) {
        self.history.refused.fetch_add(1, Ordering::Relaxed);
        self.tell(Some(error));
    }

    /// Records that the file has the content that is in force.
    pub fn is_as_it_was(&self) {
        self.tell(None);
    }

    /// Counts of the versions accepted and refused since the process began.
    pub fn versions(&self) -> (u64, u64) {
        (self.history.applied.load(Ordering::Relaxed), self.history.refused.load(Ordering::Relaxed))
    }

    /// Why the file's current content is not in force; `None` if it is.
    pub fn error(&self) -> Option<String> {
        self.history.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self, error: Option<String>) {
        *self.history.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The template of the text to look up, as configured.
    pub fn key(&self) -> &str {
        self.config.key.as_ref().map_or("", Template::as_written)
    }
}
