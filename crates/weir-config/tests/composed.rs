//! Configs of several files, with values from the environment and from files. Each folder of
//! `testdata/composed` is one: `weir.toml`, the files it asks for, `environment`, and in `also` what else is
//! named. `WEIR_BLESS=1` writes the golden files anew.
#![expect(clippy::disallowed_methods, reason = "tests read their files; the crate does not")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use weir_config::{
    Checked, NamedFiles, Report, Root, World, check_files, diff, to_toml, to_toml_without_secrets,
};

/// A folder, and an environment.
struct Tree {
    folder: PathBuf,
    environment: BTreeMap<String, String>,
}

impl Tree {
    fn of(folder: &Path) -> Tree {
        let lines = std::fs::read_to_string(folder.join("environment")).unwrap_or_default();
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Tree { folder: folder.to_owned(), environment: lines.lines().filter_map(pair).collect() }
    }

    fn check(&self) -> Result<Checked, Report> {
        let also = std::fs::read_to_string(self.folder.join("also")).unwrap_or_default();
        let names: Vec<&str> = std::iter::once("weir.toml").chain(also.lines()).collect();
        let texts: Vec<String> =
            names.iter().map(|name| std::fs::read_to_string(self.folder.join(name)).unwrap()).collect();
        let roots: Vec<Root<'_>> = names.iter().zip(&texts).map(|(name, text)| Root { name, text }).collect();
        check_files(&roots, self)
    }
}

impl World for Tree {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, String> {
        let mut bytes = std::fs::read(self.folder.join(path)).map_err(|error| error.to_string())?;
        bytes.truncate(most);
        Ok(bytes)
    }

    fn names(&self, folder: &str) -> Result<Vec<String>, String> {
        let entries = std::fs::read_dir(self.folder.join(folder)).map_err(|error| error.to_string())?;
        Ok(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        self.environment.get(name).cloned().ok_or_else(|| "is not set".to_owned())
    }
}

impl NamedFiles for Tree {}

/// Files in memory.
#[derive(Default)]
struct Memory(BTreeMap<&'static str, String>);

impl World for Memory {
    fn read(&self, path: &str, _: usize) -> Result<Vec<u8>, String> {
        self.0.get(path).map(|text| text.clone().into_bytes()).ok_or_else(|| "not here".to_owned())
    }

    fn names(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(self.0.keys().map(|name| (*name).to_owned()).collect())
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        self.0.get(name).cloned().ok_or_else(|| "is not set".to_owned())
    }
}

impl NamedFiles for Memory {}

fn read(text: &str, files: &Memory) -> Result<Checked, Report> {
    check_files(&[Root { name: "weir.toml", text }], files)
}

#[test]
fn every_folder_says_what_its_golden_file_says() {
    let composed = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/composed");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&composed).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 7, "only {} folders", folders.len());
    for folder in folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let (taken, found) = match Tree::of(&folder).check() {
            Ok(checked) => {
                let effective = to_toml_without_secrets(&checked.config);
                (true, format!("{}\n{effective}", checked.warnings).trim_start().to_owned())
            }
            Err(report) => (false, report.to_string()),
        };
        assert_eq!(taken, name.starts_with("good_"), "{name}:\n{found}");
        let golden = folder.join("expected");
        if std::env::var("WEIR_BLESS").is_ok() {
            std::fs::write(&golden, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert!(expected == found, "{name} is stale (WEIR_BLESS=1 writes it anew)\n{found}");
    }
}

#[test]
fn nothing_that_a_folder_keeps_secret_stands_in_its_golden_file() {
    let composed = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/composed");
    let mut looked_for = 0;
    for (folder, secrets) in [
        ("good_several_files", &["p$ss", "p$$ss", "t0ken", "10.0.0.1:8080"][..]),
        ("bad_given_values", &["s3cret", "robbin", "hunter2"]),
    ] {
        let expected = std::fs::read_to_string(composed.join(folder).join("expected")).unwrap();
        for secret in secrets {
            assert!(!expected.contains(secret), "{folder} shows {secret}:\n{expected}");
            looked_for += 1;
        }
    }
    assert_eq!(looked_for, 7);
}

/// A condition by a secret must not be met by whoever knows a part of it.
#[test]
fn a_secret_that_a_condition_compares_with_means_itself_and_is_not_empty() {
    let config = |value: &str| {
        format!(
            "[listener.web]\nbind = \"0.0.0.0:80\"\n[[listener.web.route]]\npool = \"app\"\nheader = {{ x-key = \"{value}\" }}\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n"
        )
    };
    let files = Memory(BTreeMap::from([
        ("ends", "pard*".to_owned()),
        ("begins", "~.*".to_owned()),
        ("negates", "!x".to_owned()),
        ("all", "*".to_owned()),
        ("plain", "a.b".to_owned()),
        ("empty", String::new()),
    ]));
    for (name, value) in files.0.iter().filter(|(_, value)| !value.is_empty()) {
        let checked = read(&config(&format!("${{file:{name}}}")), &files);
        let config = checked.unwrap_or_else(|report| panic!("{name}: {report}")).config;
        let pattern = &config.listeners[0].routes[0].header["x-key"];
        assert!(pattern.matches(value.as_bytes()), "{name}");
        for other in ["pard-and-more", "anything", "", "x", "axb"] {
            assert!(!pattern.matches(other.as_bytes()), "{name} takes {other}");
        }
    }
    let checked = read(&config("${file:plain}*"), &files).unwrap_or_else(|report| panic!("{report}"));
    let pattern = &checked.config.listeners[0].routes[0].header["x-key"];
    assert!(pattern.matches(b"a.b and more"), "what the config itself says is a pattern");
    for value in ["${file:empty}", "${file:empty}*", "${env:empty}"] {
        let report = read(&config(value), &files).expect_err("it is empty").to_string();
        assert!(
            report.contains("`header` cannot be what comes from") && report.contains("it is empty"),
            "{report}"
        );
    }
}

#[test]
fn how_an_expression_is_written_where_a_dollar_begins_a_variable_is_said_so_that_it_works() {
    let config = |value: &str| {
        format!(
            "[listener.web]\nbind = \"0.0.0.0:80\"\npool = \"app\"\nset_request_header = {{ x-a = \"{value}\" }}\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n"
        )
    };
    let report = read(&config("a$${env:Z}"), &Memory::default()).expect_err("a bare dollar").to_string();
    assert!(report.contains("`a$$${env:Z}`"), "{report}");
    assert!(read(&config("a$$${env:Z}"), &Memory::default()).is_ok());
}

#[test]
fn several_files_mean_what_one_would_and_are_written_as_one() {
    let composed = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/composed");
    let config = Tree::of(&composed.join("good_several_files")).check().unwrap().config;
    let web = &config.listeners[0];
    let routes: Vec<&str> = web.routes.iter().map(|route| route.name.as_str()).collect();
    assert_eq!(routes, ["api", "internal", "last", "alive"]);
    assert_eq!(config.pools[0].slow_start, Some(std::time::Duration::from_secs(10)));
    assert_eq!(config.runtime.workers, Some(3));
    let written = to_toml(&config);
    assert!(written.contains(r#"x-key = "p$$ss$$${env:BIND}word""#), "{written}");
    let again = weir_config::parse("written.toml", &written);
    let mut again = again.unwrap_or_else(|report| panic!("{report}\n{written}"));
    assert_ne!(config, again, "that a value is not to be shown is a difference");
    again.hidden = config.hidden.clone();
    assert_eq!(config, again);
}

const REST: &str =
    "\n[listener.web]\nbind = \"0.0.0.0:80\"\npool = \"app\"\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n";

#[test]
fn a_secret_that_changes_is_seen_by_a_reload_and_shown_by_nobody() {
    let text = format!(
        "{REST}[[listener.web.route]]\npath = \"/a\"\npool = \"app\"\nadd_request_header = {{ x-a = \"${{env:KEY}}\" }}\n[log]\naccess = \"${{env:LOG}}\"\n"
    );
    let files = |key: &str, log: &str| {
        let values = [("KEY", key.to_owned()), ("LOG", log.to_owned())];
        read(&text, &Memory(values.into_iter().collect())).unwrap().config
    };
    let changes = diff(&files("one-secret", "/old-place"), &files("two-secret", "/new-place"));
    let shown: String = changes.iter().map(ToString::to_string).collect();
    assert_eq!(changes.len(), 2, "{shown}");
    assert!(!shown.contains("-secret") && !shown.contains("-place") && shown.contains("(secret)"), "{shown}");
}

#[test]
fn a_list_of_a_hundred_thousand_networks_is_taken_and_its_mistakes_have_their_lines() {
    let lines: Vec<String> =
        (0..100_000_u32).map(|n| format!("10.{}.{}.{}/32", n >> 16, (n >> 8) & 255, n & 255)).collect();
    let text = format!("listener.web.deny_address = [\"@file:list\", \"192.0.2.1\"]{REST}");
    let text = text.replace("listener.web.deny", "listener.other.deny").replace(
        REST,
        &format!("\nlistener.other.bind = \"0.0.0.0:81\"\nlistener.other.pool = \"app\"{REST}"),
    );
    let files = |list: String| Memory(BTreeMap::from([("list", list)]));
    let config = read(&text, &files(lines.join("\n"))).unwrap_or_else(|report| panic!("{report}")).config;
    let other = config.listeners.iter().find(|listener| listener.name == "other").unwrap();
    assert_eq!(other.http().screen.deny_address.len(), 100_001);
    let broken = format!("{}\n  nonsense # here\n", lines.join("\n"));
    let report = read(&text, &files(broken)).unwrap_err();
    assert_eq!(report.problems.len(), 1, "{report}");
    let problem = &report.problems[0];
    assert_eq!((problem.file.as_str(), problem.line, problem.column), ("list", 100_001, 3));
}

#[test]
fn files_that_lead_ever_deeper_are_refused() {
    let include = |next: u8| format!("include = \"{}\"\n", char::from(next));
    let mut files: BTreeMap<&'static str, String> = BTreeMap::new();
    for (number, name) in ["a", "b", "c", "d", "e", "f", "g", "h", "i"].into_iter().enumerate() {
        files.insert(name, include(b'b' + number as u8));
    }
    let report = read(&format!("include = \"a\"{REST}"), &Memory(files)).unwrap_err();
    assert!(report.to_string().contains("`h` is included too deep"), "{report}");
}

#[test]
fn more_files_than_anybody_has_are_refused() {
    let names: Vec<&'static str> = (0..1500).map(|n| &*format!("f{n}.toml").leak()).collect();
    let files = Memory(names.into_iter().map(|name| (name, String::new())).collect());
    let report = read(&format!("include = \"*.toml\"{REST}"), &files).unwrap_err();
    assert!(report.to_string().contains("too many files"), "{report}");
}

#[test]
fn a_text_that_stands_alone_asks_for_nothing() {
    let report = weir_config::parse("alone", &format!("include = \"a\"{REST}")).unwrap_err();
    assert!(report.to_string().contains("read by itself"), "{report}");
}
