//! How many attacks are caught, and how much ordinary traffic is taken for one: both rates on corpora of
//! which one part was looked at while the rules were written (`tuned`), and the other was not (`held`).
//! `cargo test -p weir-screen --test sqli_rates -- --nocapture` prints them.

mod sqli;

use sqli::corpus::{self, CorpusValue};
use sqli::traffic;
use weir_screen::sqli::Screen;

/// Least share of attacks that must be caught, in per mille, of the part that was looked at and of the other.
const CAUGHT_PER_MILLE: [usize; 2] = [995, 995];
/// Most ordinary values that may be taken for attacks, of the part that was looked at and of the other.
const WRONG: [usize; 2] = [0, 1];
/// Ordinary requests that are made up.
const MADE_UP: usize = 20_000;

/// Prints the rate of each source, and gives how many of how many are taken for injections.
fn rate(name: &str, entries: &[CorpusValue], expected: bool) -> (usize, usize) {
    let mut screen = Screen::default();
    let mut caught = 0;
    let mut by_source: Vec<(&str, usize, usize)> = Vec::new();
    let mut odd = Vec::new();
    for entry in entries {
        let found = screen.value(&entry.value).is_some();
        caught += usize::from(found);
        if by_source.last().is_none_or(|(source, ..)| *source != entry.source) {
            by_source.push((&entry.source, 0, 0));
        }
        if let Some((_, of_source, all)) = by_source.last_mut() {
            *of_source += usize::from(found);
            *all += 1;
        }
        if found != expected {
            odd.push(entry.value.escape_ascii().to_string());
        }
    }
    for (source, of_source, all) in by_source {
        println!("  {source}: {of_source} of {all}");
    }
    println!(
        "{name}: {caught} of {} taken for injections, {:.3} %",
        entries.len(),
        caught as f64 * 100.0 / entries.len() as f64
    );
    if !expected {
        for value in odd {
            println!("  wrongly: {value}");
        }
    }
    (caught, entries.len())
}

#[test]
fn nearly_all_attacks_of_the_corpora_are_caught() {
    let parts = [("tuned", corpus::ATTACKS_TUNED), ("held out", corpus::ATTACKS_HELD)];
    for ((name, text), least) in parts.into_iter().zip(CAUGHT_PER_MILLE) {
        let (caught, all) = rate(&format!("attacks, {name}"), &corpus::entries(text), true);
        assert!(all > 1000, "a corpus of {all} attacks says little");
        assert!(caught * 1000 >= all * least, "{name}: {caught} of {all} caught, expected {least} of 1000");
    }
}

#[test]
fn hardly_any_ordinary_value_is_taken_for_an_attack() {
    let parts = [("tuned", corpus::ORDINARY_TUNED), ("held out", corpus::ORDINARY_HELD)];
    for ((name, text), most) in parts.into_iter().zip(WRONG) {
        let (wrong, all) = rate(&format!("ordinary, {name}"), &corpus::entries(text), false);
        assert!(all > 1000, "a corpus of {all} values says little");
        assert!(wrong <= most, "{name}: {wrong} of {all} taken for attacks");
    }
}

#[test]
fn made_up_requests_of_shops_and_forums_pass() {
    let mut screen = Screen::default();
    let mut wrong = 0;
    for request in traffic::requests(0x5eed, MADE_UP) {
        let found = screen
            .path(request.path.as_bytes())
            .or_else(|| screen.query(request.query.as_bytes()))
            .or_else(|| {
                request
                    .headers
                    .iter()
                    .find_map(|(name, value)| screen.header(name.as_bytes(), value.as_bytes()))
            })
            .or_else(|| {
                let (kind, body) = request.body.as_ref()?;
                screen.body(kind, body.as_bytes()).expect("a body that can be read")
            });
        if let Some(found) = found {
            wrong += 1;
            println!("wrongly: {found}: {request:?}");
        }
    }
    println!("made up: {wrong} of {MADE_UP} requests taken for attacks");
    assert!(wrong * 10_000 <= MADE_UP, "{wrong} of {MADE_UP}");
}

#[test]
fn names_searches_and_sentences_pass_alone_and_in_pairs() {
    let mut screen = Screen::default();
    let (mut all, mut wrong) = (0, 0);
    for value in traffic::pairs() {
        all += 1;
        if let Some(found) = screen.value(value.as_bytes()) {
            wrong += 1;
            println!("wrongly {}: {value}", found.reason.word());
        }
    }
    println!("pairs: {wrong} of {all} taken for attacks");
    assert!(wrong * 10_000 <= all, "{wrong} of {all}");
}

#[test]
fn what_people_write_about_sql_passes() {
    let mut screen = Screen::default();
    for value in [
        "O'Reilly",
        "D'Angelo & O'Neil",
        "select a plan from the union of both offers",
        "1 or 2 items",
        "Rock 'n' Roll",
        "The teachers' union select committee meets at 5",
        "How do I select from two tables and union them?",
        "SELECT name FROM users WHERE id = 5",
        "What does `SELECT * FROM t WHERE a = 'x' OR b = 'y'` return?",
        "it's 5 o'clock; drop me at the table",
        "5' 11\" tall, 3/4\" pipe",
        "x=1 and y=2",
        "if (a == 1 && b == 2) { return c; }",
        "<a href=\"#top\">back</a>",
        "run it with \"--help\"",
        "C# -- the good parts",
        "the '=' sign, the '<' and the '>'",
        "{\"user\":{\"name\":\"O'Hara\",\"tags\":[\"a\",\"b or c\"]}}",
        "https://a.example/?a=1&b=2&c=%27",
        "GA1.2.1234567890.1600000000",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "00000000-0000-4000-8000-000000000000",
        "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
        "\"error\" AND status=500",
        "'| \"*\", \"@\"   | '",
        "'execute()', except the operation is skipped",
        "f'INSERT INTO \"t\" VALUES(\\'{row[0]}\\')'",
        "\"*\"",
        "select 'and'",
        "1+1=2 having fun",
        "\"pink\" or \"rose\" between 10 and 20",
        "project = \"Web\" AND status = \"Open\" ORDER BY created",
    ] {
        assert_eq!(screen.value(value.as_bytes()), None, "{value}");
    }
}

#[test]
fn each_kind_of_injection_is_named() {
    let mut screen = Screen::default();
    for (value, reason) in [
        ("1 UNION SELECT username, password FROM users", "union"),
        ("-1' union/**/all/**/select null,null-- -", "union"),
        ("1 /*!50000union*/ /*!50000select*/ 1,2,3", "union"),
        ("' or '1'='1", "tautology"),
        ("1 or 1=1", "tautology"),
        ("admin'--", "comment"),
        ("1; DROP TABLE users", "stacked"),
        ("1'; exec master..xp_cmdshell 'dir'--", "stacked"),
        ("1' and sleep(5)-- ", "function"),
        ("1 and 1=(select pg_sleep(5))", "function"),
        ("1'; waitfor delay '0:0:5'--", "stacked"),
        ("1' and benchmark(1000000,md5(1))#", "function"),
        ("1' and (select count(*) from information_schema.tables)>0-- ", "dictionary"),
        ("1' order by 10-- ", "order-by"),
        ("1' into outfile '/var/www/x.php'-- ", "file"),
        ("1' and ascii(substring(password,1,1))>64-- ", "condition"),
        ("x'||(select password from users limit 1)||'", "subquery"),
        ("1' and 0x61=char(97)-- ", "condition"),
        ("a]-(select 0 where 1=1 and 2=exp(3))|[", "subquery"),
        ("1'); begin user_lock.sleep(5); end--", "stacked"),
        ("end and 'a' like 'a", "tautology"),
        ("{d 2} union select 1,name from users", "union"),
        ("1;iif(1=2,1,1/0)", "stacked"),
        (" or name like '%", "condition"),
        ("234 - ascii(substring(name,1,1))", "expression"),
    ] {
        let found = screen.value(value.as_bytes());
        assert_eq!(found.map(|found| found.reason.word()), Some(reason), "{value}");
    }
}

/// However its parts are arranged: what took time that grows with the square of the length would take
/// minutes.
#[test]
#[expect(clippy::disallowed_methods, reason = "a bound on time is measured with a clock")]
fn a_long_value_takes_no_longer_than_its_length_asks_for() {
    let mut screen = Screen::default();
    for piece in [
        "'or",
        "((",
        "/*",
        "''",
        "\"'",
        "[",
        "$$",
        "--\n",
        "union select ",
        "(select ",
        ";begin ",
        "1;if(",
        "\\",
        "%25",
        "&#39;",
        "`",
        "a.",
        "1 ",
    ] {
        let value = piece.repeat(400_000 / piece.len());
        let began = std::time::Instant::now();
        let _ = screen.value(value.as_bytes());
        let taken = began.elapsed();
        assert!(taken < std::time::Duration::from_secs(5), "{piece:?} takes {taken:?}");
    }
}
