//! Every file of testdata says exactly what its golden file says. `WEIR_BLESS=1` writes the golden files
//! anew.
#![expect(clippy::disallowed_methods, reason = "tests read their files; the crate does not")]

use std::path::{Path, PathBuf};

use weir_config::{check_text, decode, to_toml};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(folder);
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}

/// What a user would see for a file.
fn shown(path: &Path) -> (bool, String) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let bytes = std::fs::read(path).unwrap();
    match decode(name, &bytes).and_then(|text| check_text(name, text)) {
        Ok(checked) => (true, checked.warnings.to_string()),
        Err(report) => (false, report.to_string()),
    }
}

fn compare(path: &Path, found: &str) {
    if std::env::var("WEIR_BLESS").is_ok() {
        std::fs::write(path, found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == found,
        "{} is stale (WEIR_BLESS=1 writes it anew)\n--- expected\n{expected}\n--- found\n{found}",
        path.display()
    );
}

#[test]
fn every_bad_file_is_refused_with_the_words_of_its_golden_file() {
    let files = files("bad");
    assert!(files.len() >= 70, "only {} bad files were found", files.len());
    for path in files {
        let (taken, text) = shown(&path);
        assert!(!taken, "{} is taken", path.display());
        compare(&path.with_extension("expected"), &text);
    }
}

#[test]
fn every_good_file_is_taken_with_the_warnings_of_its_golden_file() {
    for path in files("good") {
        let (taken, text) = shown(&path);
        assert!(taken, "{} is refused:\n{text}", path.display());
        let warns = path.file_name().unwrap().to_str().unwrap().starts_with("warns_");
        assert_eq!(warns, !text.is_empty(), "{} and its warnings:\n{text}", path.display());
        if warns {
            compare(&path.with_extension("expected"), &text);
        }
    }
}

#[test]
fn every_good_file_survives_being_written_and_read_again() {
    for path in files("good") {
        let text = std::fs::read_to_string(&path).unwrap();
        let config = weir_config::parse("first", &text).unwrap();
        let written = to_toml(&config);
        let again =
            weir_config::parse("second", &written).unwrap_or_else(|report| panic!("{report}\nin\n{written}"));
        assert_eq!(config, again, "{}\n{written}", path.display());
    }
}

#[test]
fn the_effective_config_of_the_tour_says_every_default() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    for name in ["minimal", "tour"] {
        let text = std::fs::read_to_string(folder.join("good").join(name).with_extension("toml")).unwrap();
        let config = weir_config::parse(name, &text).unwrap();
        compare(&folder.join("effective").join(name).with_extension("toml"), &to_toml(&config));
    }
}
