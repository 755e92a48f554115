//! Maps: what each says of a request, and what was taken over of its file since the config was read.
//!
//! Lines lie in an `ArcSwap`, so that a new version of a file is there for all workers at once, and a look-up
//! sees one version whole. Who looks at the files is the control side.

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

/// What has become of the file of a map since the process began; the next snapshot takes it over.
#[derive(Debug, Default)]
struct History {
    applied: AtomicU64,
    refused: AtomicU64,
    error: Mutex<Option<String>>,
}

/// What a map says of a request, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapAnswer {
    /// What was looked up.
    pub asked: Vec<u8>,
    /// Key and number of the line; `None` where no line has it.
    pub line: Option<(Vec<u8>, usize)>,
    /// Its value, or the map's default; empty where there is none.
    pub value: Vec<u8>,
}

impl Maps {
    /// `None` where `config` has none. Maps of `previous` of which it says nothing new are the very same.
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

    /// All, in the order of the config.
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
            // The config's check has made sure that there are no mistakes.
            content: ArcSwap::from_pointee(config.content().unwrap_or_default()),
            config: config.clone(),
            history: old.map(|old| old.history.clone()).unwrap_or_default(),
        }
    }

    /// Shows `look` what the map says of the request with these values, where it says anything. Allocates
    /// once, for what is looked up.
    #[inline]
    pub fn with_value<R>(&self, values: &(impl Source + ?Sized), look: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let asked = self.asked(values);
        let content = self.content.load();
        let value = content.look_up(&asked).map(|line| line.value);
        look(value.as_deref().or(self.config.default.as_deref().map(str::as_bytes)))
    }

    /// The same, with all that led to it.
    pub fn explain(&self, values: &(impl Source + ?Sized)) -> MapAnswer {
        self.answer(self.asked(values))
    }

    /// What the map says of a text.
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

    /// Whether this is what the file said of which the lines in force are.
    pub fn holds(&self, bytes: &Arc<[u8]>) -> bool {
        self.content.load().is_of(bytes)
    }

    /// The lines in force.
    pub fn content(&self) -> Arc<MapContent> {
        self.content.load_full()
    }

    /// Takes over what the file holds now: for all workers, from their next look-up on.
    ///
    /// # Errors
    /// It has mistakes: says all of them, each with its line. Nothing changes.
    pub fn take_over(&self, bytes: &Arc<[u8]>) -> Result<(), Vec<String>> {
        let content = self.config.content_of(bytes)?;
        self.content.store(Arc::new(content));
        self.history.applied.fetch_add(1, Ordering::Relaxed);
        self.tell(None);
        Ok(())
    }

    /// Notes that the file cannot be taken over.
    pub fn refuse(&self, error: String) {
        self.history.refused.fetch_add(1, Ordering::Relaxed);
        self.tell(Some(error));
    }

    /// Notes that the file says what is in force.
    pub fn is_as_it_was(&self) {
        self.tell(None);
    }

    /// Versions that were taken over and refused since the process began, counts.
    pub fn versions(&self) -> (u64, u64) {
        (self.history.applied.load(Ordering::Relaxed), self.history.refused.load(Ordering::Relaxed))
    }

    /// Why the file as it is now is not what is in force; `None` where it is.
    pub fn error(&self) -> Option<String> {
        self.history.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self, error: Option<String>) {
        *self.history.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// What is looked up, as configured.
    pub fn key(&self) -> &str {
        self.config.key.as_ref().map_or("", Template::as_written)
    }
}
