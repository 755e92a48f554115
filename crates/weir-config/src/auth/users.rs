//! The file of users of `auth.basic`: lines of `NAME:HASH`, as `htpasswd -B` writes them.

use std::collections::HashSet;

use crate::report::quote;

/// A user, and the hash of the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account<'f> {
    /// The name.
    pub name: &'f str,
    /// A bcrypt hash (`$2b$…`) or an Argon2 one (`$argon2id$…`) that [`accounts`] has checked.
    pub hash: &'f str,
}

/// A mistake in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// From 1.
    pub line: usize,
    /// What was found.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Most rounds of bcrypt, as a power of two: 14 take about a second.
const BCRYPT_MOST: u32 = 14;
/// Most memory of Argon2, KiB.
const ARGON2_KIB: u32 = 256 << 10;
/// Most passes of Argon2 over it.
const ARGON2_PASSES: u32 = 16;
const MAKE: &str = "make it with `htpasswd -B`, or an Argon2 hash with `argon2 SALT -id -e`";

/// The users of a file, and the mistakes in its lines. Empty lines and those that begin with `#` are ignored.
/// O(n) in its bytes.
pub fn accounts(content: &[u8]) -> (Vec<Account<'_>>, Vec<Mistake>) {
    let (mut accounts, mut mistakes) = (Vec::<Account<'_>>::new(), Vec::new());
    let mut names = HashSet::new();
    for (number, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        match account(line) {
            Ok(account) if !names.insert(account.name) => {
                let message = format!("{} is there twice", quote(account.name));
                mistakes.push(Mistake { line: number + 1, message, hint: "keep one".to_owned() });
            }
            Ok(account) => accounts.push(account),
            Err((message, hint)) => mistakes.push(Mistake { line: number + 1, message, hint }),
        }
    }
    (accounts, mistakes)
}

/// Parses a line. The text of a mistake contains nothing of the hash, which may be a password.
fn account(line: &[u8]) -> Result<Account<'_>, (String, String)> {
    let expected = || "expected `NAME:HASH`, as `htpasswd -B` writes it".to_owned();
    let line = std::str::from_utf8(line).map_err(|_| ("it is not UTF-8".to_owned(), expected()))?;
    let Some((name, hash)) = line.split_once(':') else {
        return Err(("it has no colon".to_owned(), expected()));
    };
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(("it has no name that a client could send".to_owned(), expected()));
    }
    // Some programs append a comment after another colon.
    let hash = hash.split(':').next().unwrap_or_default();
    match checked(hash) {
        Ok(()) => Ok(Account { name, hash }),
        Err((message, hint)) => Err((format!("{} {message}", quote(name)), hint)),
    }
}

fn checked(hash: &str) -> Result<(), (&'static str, String)> {
    let weak = |message| Err((message, MAKE.to_owned()));
    match hash.split('$').nth(1).filter(|_| hash.starts_with('$')) {
        Some("2a" | "2b" | "2y") => bcrypt(hash),
        Some("argon2id" | "argon2i") => argon2(hash),
        Some("argon2d") => weak("has a hash by argon2d, which gives passwords away by its timing"),
        Some("2" | "2x") => weak("has a hash of a version of bcrypt that was broken"),
        Some("apr1" | "1") => weak("has a hash by MD5, which is found out in no time"),
        Some("5" | "6") => weak("has a hash by SHA-crypt, which is not taken"),
        Some(_) => weak("has a hash of a kind that is not known"),
        None if hash.starts_with("{SHA}") || hash.starts_with("{SSHA}") => {
            weak("has a hash by SHA-1, which is found out in no time")
        }
        None if hash.is_empty() => weak("has no hash"),
        None => weak("has a password in plain text or a hash by DES, which is as good as one"),
    }
}

/// `$2b$COST$` and 53 characters.
fn bcrypt(hash: &str) -> Result<(), (&'static str, String)> {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/');
    let mut parts = hash.splitn(4, '$').skip(2);
    let (cost, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if cost.len() != 2 || rest.len() != 53 || !rest.bytes().all(is_digit) {
        return Err(("has a broken hash", MAKE.to_owned()));
    }
    match cost.parse() {
        Ok(4..=BCRYPT_MOST) => Ok(()),
        _ => {
            let hint = format!("expected 4 to {BCRYPT_MOST}: each login takes a processor for that long");
            Err(("has a hash whose cost is out of bounds", hint))
        }
    }
}

/// `$argon2id$v=19$m=65536,t=3,p=4$SALT$HASH`
fn argon2(hash: &str) -> Result<(), (&'static str, String)> {
    let broken = || ("has a broken hash", MAKE.to_owned());
    let [_, _, version, costs, salt, key] = hash.split('$').collect::<Vec<_>>()[..] else {
        return Err(broken());
    };
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let is_base64 = |text: &str| text.bytes().all(is_digit) && text.len() % 4 != 1;
    let mut costs = costs.split(',');
    let mut cost = |name: &str| -> Option<u32> { costs.next()?.strip_prefix(name)?.parse().ok() };
    let (memory, passes, lanes) = (cost("m="), cost("t="), cost("p="));
    let (Some(memory), Some(passes), Some(lanes), None) = (memory, passes, lanes, costs.next()) else {
        return Err(broken());
    };
    let is_known = matches!(version, "v=19" | "v=16");
    let is_long = (11..=64).contains(&salt.len()) && (14..=86).contains(&key.len());
    if !is_known
        || !is_long
        || !is_base64(salt)
        || !is_base64(key)
        || memory < lanes.saturating_mul(8)
        || lanes == 0
    {
        return Err(broken());
    }
    if memory > ARGON2_KIB || !(1..=ARGON2_PASSES).contains(&passes) || lanes > 16 {
        let hint = format!(
            "expected at most m={ARGON2_KIB}, t={ARGON2_PASSES} and p=16: each login takes memory and a processor for that long"
        );
        return Err(("has a hash whose costs are out of bounds", hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCRYPT: &str = "$2y$05$abcdefghijklmnopqrstuuPp7HPfoAs8I2dCQCQ/fW7zEJv8I8C8e";
    const ARGON2: &str = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNo";

    fn mistakes(file: &str) -> Vec<(usize, String)> {
        accounts(file.as_bytes()).1.into_iter().map(|it| (it.line, it.message)).collect()
    }

    #[test]
    fn names_and_hashes_are_read_and_comments_left_out() {
        let file = format!("# staff\r\n\nann:{BCRYPT}\r\nb\u{f6}b:{ARGON2}:B\u{f6}b\n");
        let (accounts, mistakes) = accounts(file.as_bytes());
        assert_eq!(mistakes, []);
        let found: Vec<_> = accounts.iter().map(|it| (it.name, it.hash)).collect();
        assert_eq!(found, [("ann", BCRYPT), ("b\u{f6}b", ARGON2)]);
    }

    #[test]
    fn weak_hashes_are_refused_by_their_line_and_never_shown() {
        let file = "a:$apr1$salt$xxxx\nb:{SHA}xxxx\nc:hunter2\nd:$6$salt$xxxx\ne:\nf\n:x\ng:$2x$05$x\nh:$1$x$x\ni:$argon2d$x";
        let found = mistakes(file);
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
        assert!(found[0].1.contains("`a` has a hash by MD5"), "{found:?}");
        assert!(found[2].1.contains("plain text"), "{found:?}");
        assert!(found.iter().all(|it| !it.1.contains("hunter2") && !it.1.contains("xxxx")), "{found:?}");
    }

    #[test]
    fn costs_that_would_take_a_machine_are_refused() {
        let of = |hash: String| mistakes(&format!("a:{hash}")).pop().map(|it| it.1).unwrap_or_default();
        assert!(of(BCRYPT.replace("$05$", "$15$")).contains("cost is out of bounds"));
        assert!(of(BCRYPT.replace("$05$", "$03$")).contains("cost is out of bounds"));
        assert!(of(BCRYPT.replace("$05$", "$5$")).contains("broken"));
        assert!(of(BCRYPT.replace("8e", "8")).contains("broken"));
        assert!(of(ARGON2.replace("65536", "4194304")).contains("out of bounds"));
        assert!(of(ARGON2.replace("t=3", "t=0")).contains("out of bounds"));
        assert!(of(ARGON2.replace("p=4", "p=0")).contains("broken"));
        assert!(of(ARGON2.replace("p=4", "p=4294967295")).contains("broken"));
        assert!(of(ARGON2.replace("m=65536,", "")).contains("broken"));
        assert!(of(ARGON2.replace("v=19", "v=20")).contains("broken"));
    }

    #[test]
    fn nobody_is_there_twice() {
        assert_eq!(mistakes(&format!("a:{BCRYPT}\na:{ARGON2}\n")), [(2, "`a` is there twice".to_owned())]);
    }
}
