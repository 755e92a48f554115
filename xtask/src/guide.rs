//! Checks that every TOML block of the README and the guide is a config that Weir accepts.
//!
//! A block marked `toml` is a whole file and must be accepted without a warning. One marked `toml fragment`
//! shows a part; what it leaves out (a listener, the pools that it names) is filled in. One marked `toml
//! refused` must be refused.

use toml::{Table, Value};
use weir_config::{Root, World};

use crate::fences::fences;
use crate::tree::Tree;

/// The files and variables that the pages' configs need: a file that serves as a network list as well as a
/// secret, files of users, of public keys and of maps, empty folders, and addresses in the environment.
struct Around;

const LINE: &str = "192.0.2.1\n";
const MAP: &str = "192.0.2.1 app\n";
const USER: &str = "ann:$2b$04$abcdefghijklmnopqrstuuPp7HPfoAs8I2dCQCQ/fW7zEJv8I8C8e\n";
/// RFC 8037 appendix A.2.
const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

impl World for Around {
    fn read(&self, path: &str, _: usize) -> Result<Vec<u8>, String> {
        let content = match path.rsplit('/').next() {
            Some("users") => USER,
            Some("jwks.json") => KEYS,
            Some(name) if name.ends_with(".key") => "c2l4dGVlbiBvY3RldHMuLi4=\n",
            Some(map) if map.ends_with(".map") => MAP,
            _ => LINE,
        };
        Ok(content.into())
    }

    fn names(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        Ok(if name.ends_with("BIND") { "127.0.0.1:8080" } else { "4" }.to_owned())
    }
}

impl weir_config::NamedFiles for Around {}

/// The mistakes in the TOML blocks of the pages, as `file:line: message`, and the number of blocks.
fn check(tree: &Tree) -> (Vec<String>, usize) {
    let mut problems = Vec::new();
    let mut count = 0;
    let pages = tree
        .with_extension(&["md"])
        .filter(|(path, _)| *path == "README.md" || path.starts_with("docs/guide/"));
    for (path, page) in pages {
        for fence in fences(page).into_iter().filter(|fence| fence.info.starts_with("toml")) {
            count += 1;
            if let Some(problem) = problem(fence.info, &fence.text) {
                problems.push(format!("{path}:{}: {problem}", fence.line));
            }
        }
    }
    (problems, count)
}

/// The mistake in one block; `None` if it is as marked.
fn problem(info: &str, text: &str) -> Option<String> {
    match info {
        "toml" => complaints(text),
        "toml fragment" => match text.parse::<Table>() {
            Ok(fragment) => complaints(&completed(fragment)),
            Err(error) => Some(format!("not readable as TOML: {}", error.message())),
        },
        "toml refused" => {
            complaints(text).is_none().then(|| "this is taken, and the page says it is refused".to_owned())
        }
        other => Some(format!("expected `toml`, `toml fragment` or `toml refused`, found `{other}`")),
    }
}

/// The messages of `weir check` about a file; `None` if there are none.
fn complaints(text: &str) -> Option<String> {
    match weir_config::check_files(&[Root { name: "weir.toml", text }], &Around) {
        Ok(checked) if checked.warnings.is_empty() => None,
        Ok(checked) => Some(checked.warnings.to_string()),
        Err(report) => Some(report.to_string()),
    }
}

/// The fragment as a file: with a listener if it has none, with backends for every pool that is named.
fn completed(mut fragment: Table) -> String {
    if !fragment.contains_key("listener") {
        let mut names: Vec<String> = table(&mut fragment, "pool").keys().cloned().collect();
        names.resize(names.len().max(1), "app".to_owned());
        for (number, pool) in names.into_iter().enumerate() {
            let address = Value::String(format!("127.0.0.1:{}", 8080 + number));
            let listener = Table::from_iter([
                ("bind".to_owned(), address),
                ("pool".to_owned(), Value::String(pool.clone())),
            ]);
            table(&mut fragment, "listener").insert(format!("for-{pool}"), Value::Table(listener));
        }
    }
    for listener in
        table(&mut fragment, "listener").iter_mut().filter_map(|(_, listener)| listener.as_table_mut())
    {
        listener.entry("bind").or_insert_with(|| Value::String("127.0.0.1:8080".to_owned()));
        // Only an HTTP listener can do with routes alone; the fragment may be about any kind.
        if listener.contains_key("protocol") || !listener.contains_key("route") {
            listener.entry("pool").or_insert_with(|| Value::String("app".to_owned()));
        }
    }
    let mut named = Vec::new();
    pools_named(&Value::Table(fragment.clone()), &mut named);
    let pools = table(&mut fragment, "pool");
    for name in named {
        pools.entry(name).or_insert_with(|| Value::Table(Table::new()));
    }
    for pool in pools.iter_mut().filter_map(|(_, pool)| pool.as_table_mut()) {
        let backend = Value::String("10.0.0.1:8080".to_owned());
        pool.entry("backends").or_insert_with(|| Value::Array(vec![backend]));
    }
    toml::to_string(&fragment).unwrap_or_default()
}

fn table<'a>(root: &'a mut Table, name: &str) -> &'a mut Table {
    let value = root.entry(name).or_insert_with(|| Value::Table(Table::new()));
    value.as_table_mut().unwrap_or_else(|| panic!("`{name}` is a table in every fragment"))
}

/// Every text value of a key named `pool`.
fn pools_named(value: &Value, named: &mut Vec<String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                match value {
                    Value::String(name) if key == "pool" => named.push(name.clone()),
                    value => pools_named(value, named),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| pools_named(value, named)),
        _ => {}
    }
}

#[test]
fn every_toml_block_of_the_readme_and_the_guide_is_a_config_weir_takes() {
    let tree = Tree::tracked(&crate::root()).expect("a checkout");
    let (problems, count) = check(&tree);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count >= 20, "the guide has more than {count} TOML blocks; are they marked otherwise?");
}

#[test]
fn a_block_with_a_mistake_is_found_at_its_line() {
    let page = "# Guide\n\n```toml\n[listener.web]\nbind = \"127.0.0.1:80\"\npool = \"ap\"\n[pool.app]\nbackends = [\"10.0.0.1:1\"]\n```\n";
    let (problems, count) = check(&Tree::of(&[("docs/guide/x.md", page), ("docs/other.md", page)]));
    assert_eq!(count, 1);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("docs/guide/x.md:3: weir.toml:3:"), "{problems:?}");
}

#[test]
fn a_fragment_is_completed_and_still_checked() {
    assert_eq!(problem("toml fragment", "[[listener.web.route]]\npath = \"/api/*\"\npool = \"api\"\n"), None);
    assert_eq!(problem("toml fragment", "[pool.app]\nslow_start = \"10s\"\n"), None);
    assert_eq!(problem("toml fragment", "[log]\naccess = \"stdout\"\n"), None);
    let wrong = problem("toml fragment", "[pool.app]\nslow_strat = \"10s\"\n").expect("a misspelt key");
    assert!(wrong.contains("slow_start"), "{wrong}");
}

#[test]
fn a_block_marked_refused_must_be_refused() {
    assert_eq!(problem("toml refused", "[listener.web]\n"), None);
    let taken =
        "[listener.web]\nbind = \"127.0.0.1:80\"\npool = \"a\"\n[pool.a]\nbackends = [\"10.0.0.1:1\"]\n";
    assert!(problem("toml refused", taken).is_some());
    assert!(problem("toml fragmnet", taken).is_some());
}
