//! Files with mistakes: whatever is cut off or changed, nothing panics, and what is converted is told whole.

use super::{FILES, NoFiles, convert};

/// A small generator (xorshift), so that the same seed makes the same files.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound.max(1)).unwrap_or(1)).unwrap_or(0)
    }
}

/// `WEIR_SEED`, or a fixed one.
#[expect(clippy::disallowed_methods, reason = "a test may be told its seed")]
fn seed() -> u64 {
    std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0x5eed_0001)
}

/// Words that have a meaning, to stand in other places.
const WORDS: [&str; 24] = [
    "if",
    "unless",
    "{",
    "}",
    "!",
    "or",
    "\"",
    "'",
    "\\",
    "%[",
    "]",
    "$",
    "\"${X}\"",
    "frontend a",
    "backend b",
    "no",
    "acl x path",
    "(",
    ")",
    ",",
    "~",
    "*",
    "\u{e9}",
    "\0",
];

fn changed(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..=random.below(4) {
        let at = random.below(lines.len());
        let other = random.below(lines.len());
        match random.below(6) {
            0 => lines.swap(at, other),
            1 => {
                lines.remove(at);
            }
            2 => lines[at] = lines[other].clone(),
            3 => {
                let mut words: Vec<&str> = lines[at].split(' ').collect();
                let place = random.below(words.len());
                words[place] = WORDS[random.below(WORDS.len())];
                lines[at] = words.join(" ");
            }
            4 => {
                let mut words: Vec<&str> = lines[at].split(' ').collect();
                words.truncate(random.below(words.len()));
                lines[at] = words.join(" ");
            }
            _ => {
                let word = WORDS[random.below(WORDS.len())];
                lines[at] = format!("{} {word}", lines[at]);
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n")
}

#[test]
fn files_that_are_cut_off_or_changed_never_panic() {
    let seed = seed();
    println!("WEIR_SEED={seed}");
    let mut random = Random(seed | 1);
    for round in 0..1500 {
        let text = FILES[random.below(FILES.len())];
        let text = if round % 5 == 0 {
            let cut = text.char_indices().map(|(at, _)| at).nth(random.below(text.len())).unwrap_or(0);
            text[..cut].to_owned()
        } else {
            changed(text, &mut random)
        };
        match convert(&text, &NoFiles) {
            Ok(converted) => {
                assert!(converted.directives.iter().all(|directive| !directive.name.is_empty()), "{text}");
            }
            Err(problem) => assert!(!problem.message.is_empty(), "{text}"),
        }
    }
}
