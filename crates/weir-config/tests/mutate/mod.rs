//! Broken configs, made from whole ones by a generator that gives the same files for the same seed.

use weir_config::{Report, Severity, check_text, to_toml};

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to choose what to break.
pub struct Seeded(pub u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { usize::try_from(self.next() % bound as u64).unwrap_or(0) }
    }
}

const PIECES: [&str; 44] = [
    "[listener.web]\n",
    "[[listener.web.route]]\n",
    "[pool.app]\n",
    "[pool.app.health]\n",
    "bind = \"0.0.0.0:80\"\n",
    "pool = \"app\"\n",
    "protocol = \"tcp\"\n",
    "protocol = \"udp\"\n",
    "health = \"off\"\n",
    "passive = { errors = 0 }\n",
    "= ",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    ",",
    "#",
    "\\",
    "\r",
    "\r\n",
    "\t",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "é",
    "日本",
    "👋🏽",
    "0",
    "-1",
    "1.5",
    "99999999999999999999",
    "inf",
    "nan",
    "0x",
    "1979-05-27T07:32:00Z",
    "true",
    "..",
    "\u{7f}",
    "timeout = {",
    "backends = [\"a:1\",",
];

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

/// Where the words and quoted texts of a file are.
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        let inside = c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '"' | '/' | ':' | '*');
        match (inside, start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                words.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    words
}

fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// One of `seeds`, broken in one to four ways.
pub fn broken(seeds: &[String], random: &mut Seeded) -> String {
    let mut text = seeds[random.below(seeds.len())].clone();
    // Half of them in one way only: a file that is almost right goes deepest.
    let more = if random.below(2) == 0 { 0 } else { random.below(4) };
    for _ in 0..=more {
        let from = boundary(&text, random.below(text.len() + 1));
        let to = boundary(&text, (from + random.below(12)).min(text.len()));
        let lines = line_starts(&text);
        let line = random.below(lines.len());
        let (start, end) = (lines[line], lines.get(line + 1).copied().unwrap_or(text.len()));
        match random.below(10) {
            8 | 9 => {
                // One word in the place of another: often right in form and wrong in meaning.
                let words: Vec<(usize, usize)> = words(&text);
                if words.is_empty() {
                    continue;
                }
                let (put, take) = (words[random.below(words.len())], words[random.below(words.len())]);
                let word = text[take.0..take.1].to_owned();
                text.replace_range(put.0..put.1, &word);
            }
            0 => text.replace_range(from..to.max(from), ""),
            1 | 2 => text.insert_str(from, PIECES[random.below(PIECES.len())]),
            3 => text.replace_range(start..end, ""),
            4 => {
                let copy = text[start..end].to_owned();
                text.insert_str(from, &copy);
            }
            5 => text.truncate(from),
            6 => {
                // Half of one file behind half of another.
                let other = &seeds[random.below(seeds.len())];
                let cut = boundary(other, random.below(other.len() + 1));
                text.truncate(from);
                text.push_str(&other[cut..]);
            }
            _ => {
                let shuffled: String = text[from..to.max(from)].chars().rev().collect();
                text.replace_range(from..to.max(from), &shuffled);
            }
        }
    }
    text
}

fn check_places(text: &str, report: &Report, severity: Severity) {
    for problem in &report.problems {
        assert_eq!(problem.severity, severity);
        let lines: Vec<&str> = text.split('\n').collect();
        assert!(problem.line >= 1 && problem.line <= lines.len(), "no line {}: {problem}", problem.line);
        let most = lines[problem.line - 1].chars().count() + 1;
        assert!(problem.column >= 1 && problem.column <= most, "no column {}: {problem}", problem.column);
        let shown = problem.to_string();
        assert!(shown.starts_with(&format!("fuzz.toml:{}:{}: ", problem.line, problem.column)), "{shown}");
        assert_eq!(shown.lines().count(), 4, "a head, and an excerpt of three lines:\n{shown}");
        assert!(
            !shown.chars().any(|c| c.is_control() && c != '\n'),
            "control characters reach the terminal: {shown:?}"
        );
        assert!(shown.contains('^'), "nothing is pointed at: {shown}");
        assert!(!problem.message.is_empty() && !problem.message.ends_with('.'), "{shown}");
    }
    let places: Vec<_> = report.problems.iter().map(|problem| (problem.line, problem.column)).collect();
    assert!(places.is_sorted(), "not in order: {places:?}");
}

/// Whatever the text, every problem has a place in it, and what is taken survives being written and read
/// again. Gives whether it was taken.
pub fn holds(text: &str) -> bool {
    match check_text("fuzz.toml", text) {
        Err(report) => {
            assert!(report.error_count() > 0, "refused without a reason");
            check_places(text, &report, Severity::Error);
            false
        }
        Ok(checked) => {
            check_places(text, &checked.warnings, Severity::Warning);
            let written = to_toml(&checked.config);
            let again = weir_config::parse("written.toml", &written)
                .unwrap_or_else(|report| panic!("{report}\nin\n{written}"));
            assert_eq!(checked.config, again, "{written}");
            true
        }
    }
}
