//! A test that needs a program names its Debian package; `xtask/setup.sh` must install that package.

use crate::tree::{Finding, Tree};

const SETUP: &str = "xtask/setup.sh";

/// Finds packages that tests ask for and the setup script does not install.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let installed: Vec<&str> = tree.text(SETUP).map(table).unwrap_or_default();
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(&["rs"]).filter(|(path, _)| !path.starts_with("xtask/")) {
        for (index, line) in text.lines().enumerate() {
            for package in asked_for(line).filter(|package| !installed.contains(package)) {
                let message = format!("this needs the package `{package}`, which {SETUP} does not install");
                findings.push(Finding::at(path, index + 1, message));
            }
        }
    }
    findings
}

/// The first column of the table in the set-up script.
fn table(script: &str) -> Vec<&str> {
    let rows = script.lines().filter(|line| line.matches('|').count() == 2);
    rows.filter_map(|row| row.split('|').next()).map(str::trim).collect()
}

/// The packages in `tool("program", "package")`, and those after `apt-get install`.
fn asked_for(line: &str) -> impl Iterator<Item = &str> {
    let by_tool = line.split("tool(\"").skip(1).filter_map(|rest| rest.split('"').nth(2));
    let by_words = line.split("apt-get install ").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-+.".contains(c)).unwrap_or(rest.len());
        &rest[..end]
    });
    by_tool.chain(by_words).filter(|package| !package.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `debian_mirror` prints if apt's sources are `text`.
    fn mirror_of(name: &str, text: &str) -> String {
        let file = std::env::temp_dir().join(format!("weir-sources-{name}-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let script = ". xtask/debian-root.sh; debian_sources=(/nowhere/debian.sources \"$0\"); debian_mirror";
        let mut bash = std::process::Command::new("bash");
        let output = bash.args(["-c", script]).arg(&file).current_dir(crate::root()).output().unwrap();
        std::fs::remove_file(file).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_mirror_is_found_in_both_forms_of_apts_sources() {
        let stanza = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n";
        assert_eq!(mirror_of("stanza", stanza), "http://mirror.example/debian\n");
        let lines = "# a comment\ndeb [arch=amd64 signed-by=/a.gpg] http://mirror.example/debian bookworm main\ndeb x y\n";
        assert_eq!(mirror_of("lines", lines), "http://mirror.example/debian\n");
        assert_eq!(
            mirror_of("plain", "deb\thttp://mirror.example/d bookworm main\n"),
            "http://mirror.example/d\n"
        );
        assert_eq!(mirror_of("none", "# nothing\n"), "");
    }

    #[test]
    fn a_package_that_a_test_asks_for_must_be_installed_by_the_set_up() {
        let script = "table='\ncurl | test | a client\nlibfaketime | test | jumps\n'\n";
        let test = "let curl = tool(\"curl\", \"curl\");\nlet x = tool(\"nc\", \"netcat-openbsd\");\n\
                    assert!(there, \"needs it: apt-get install libfaketime\");\npanic!(\"apt-get install {package}\");\n";
        let found =
            check(&Tree::of(&[(SETUP, script), ("tests/tests/x.rs", test), ("xtask/src/y.rs", test)]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("tests/tests/x.rs", 2));
        assert!(found[0].message.contains("`netcat-openbsd`"), "{found:?}");
    }
}
