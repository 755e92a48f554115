//! `use` and `[shared.NAME]`: settings that several listeners, routes and pools share. `compose` merges them
//! before keys are read, so this file only contains their description for the reference.

use crate::fields::Fields;
use crate::keys::{Each, Key, Kind, Row, Shape, Table, list};
use crate::setting::Part;
use crate::values::NAME;

/// The key of a table that takes others over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakesOver;

impl Part for TakesOver {
    const ROWS: &'static [Row] = &[Row::Key(USE)];

    fn of(_: &Fields) -> TakesOver {
        TakesOver
    }

    fn put(&self, _: &mut Fields) {}
}

const USE: Key = list(Each::Text(&NAME)).default("nothing").named(
    "use",
    "Names of `[shared.NAME]` tables whose keys hold here, too; what the table says itself prevails, and of \
     several names the one that stands first. Tables are put together key by key, and routes follow the \
     listener's own.",
);

/// `[shared.NAME]`
static SHARED: Table = Table {
    path: "[shared.NAME]",
    doc: "Keys of listeners, routes or pools that take it over with `use`. They are checked where they are \
          used, by what they mean there.",
    rows: &[Row::Key(USE)],
};

/// `[shared.NAME]` of the file.
pub(crate) const TABLES: Key = Key::new(Kind::NamedTables(&SHARED))
    .also(&["defaults", "snippet", "template"])
    .named("shared", "What several listeners, routes or pools say once.");

/// The files that belong to the config.
static PATTERN: Shape = Shape::new("a file or a pattern", "conf.d/*.toml", |text| Ok(text.to_owned()));

/// `include` of the file.
pub(crate) const INCLUDE: Key = list(Each::Text(&PATTERN)).default("none").also(&["includes", "import"]).named(
    "include",
    "Files that are read as if they stood here, sorted by name; `*` and `?` stand for characters of a name. Paths are \
     seen from the folder of the file that says them.",
);
