//! Where a mistake is shown, and how, whatever stands in the line.

use weir_config::{check_text, decode, parse};

/// The only problem of a text: line, column, excerpt.
fn only(text: &str) -> (usize, usize, String) {
    let report = check_text("weir.toml", text).unwrap_err();
    assert_eq!(report.problems.len(), 1, "{report}");
    let problem = &report.problems[0];
    (problem.line, problem.column, problem.excerpt.clone())
}

const REST: &str =
    "\n[listener.web]\nbind = \"0.0.0.0:80\"\npool = \"app\"\n\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n";

#[test]
fn columns_are_characters_and_carets_are_cells() {
    let (line, column, excerpt) = only(&format!("log = {{ access = \"stdout\", \"日本\" = 1 }}{REST}"));
    assert_eq!((line, column), (1, 28));
    let caret = excerpt.lines().last().unwrap();
    // `| `, then 27 cells, then six for `"日本"`.
    assert_eq!(
        caret.split_once('|').unwrap().1.split_once("expected").unwrap().0,
        format!("{}{} ", " ".repeat(28), "^".repeat(6))
    );
}

#[test]
fn the_end_of_the_file_is_a_place_too() {
    let (line, column, _) = only("[listener.web");
    assert_eq!((line, column), (1, 14));
    let (line, column, _) = only("");
    assert_eq!((line, column), (1, 1));
}

#[test]
fn a_file_without_a_last_line_end_is_read_whole() {
    assert!(parse("weir.toml", REST.trim_end()).is_ok());
}

#[test]
fn lines_end_with_crlf_as_well() {
    assert!(parse("weir.toml", &REST.replace('\n', "\r\n")).is_ok());
    let (line, column, excerpt) = only(&format!("[runtime]\nworkers = 0\n{REST}").replace('\n', "\r\n"));
    assert_eq!((line, column), (2, 11));
    assert!(!excerpt.contains('\r'));
}

#[test]
fn a_byte_order_mark_is_no_column() {
    let (line, column, _) = only(&format!("\u{feff}runtime = 1\n{REST}"));
    assert_eq!((line, column), (1, 11));
}

#[test]
fn a_file_that_is_not_utf_8_is_refused_at_the_byte() {
    let report = decode("weir.toml", b"[log]\naccess = \"caf\xe9\"\n").unwrap_err();
    assert!(report.to_string().starts_with("weir.toml:2:14: byte 0xe9 is not UTF-8 text\n"), "{report}");
    assert_eq!(decode("weir.toml", "é".as_bytes()), Ok("é"));
}

#[test]
fn a_file_with_endless_mistakes_is_cut_off_and_says_so() {
    let text = (0..5000).map(|number| format!("key{number} = 1\n")).collect::<String>() + REST;
    let report = check_text("weir.toml", &text).unwrap_err();
    assert_eq!(report.problems.len(), 1001);
    assert_eq!(report.problems[1000].message, "4000 more problems are not listed");
}

#[test]
fn one_long_line_with_many_mistakes_is_read_in_reasonable_time() {
    let text = format!("[pool.app]\nbackends = [{}]\n", "\"x\", ".repeat(20_000));
    let report = check_text("weir.toml", &text).unwrap_err();
    assert_eq!(report.problems.len(), 1001);
    assert!(report.problems.iter().all(|problem| problem.excerpt.len() < 1000));
}

#[test]
fn deep_nesting_is_refused_and_does_not_exhaust_the_stack() {
    for open in ["[", "{a="] {
        let report = check_text("weir.toml", &format!("x = {}", open.repeat(100_000))).unwrap_err();
        assert!(report.error_count() > 0);
    }
    assert!(check_text("weir.toml", &format!("{} = 1", vec!["a"; 100_000].join("."))).is_err());
}

#[test]
fn a_file_beyond_the_limit_is_refused_unread() {
    let report = check_text("weir.toml", &"#".repeat((16 << 20) + 1)).unwrap_err();
    assert_eq!(report.problems[0].message, "the file is 16777217 bytes long");
}
