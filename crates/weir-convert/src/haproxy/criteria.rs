//! What an ACL tests: a sample, how it is compared, and with what.

use super::samples::{Call, Sample};
use super::sections::Line;
use crate::SourceFiles;

/// What an ACL says, as it stands there.
#[derive(Clone, Debug)]
pub struct Criterion {
    /// What is compared.
    pub sample: Sample,
    /// How: `str`, `beg`, `end`, `sub`, `dir`, `dom`, `reg`, `len`, `found`, `bool`, `int`, `ip`; empty if it
    /// is not said.
    pub method: String,
    /// `-i`
    pub ignore_case: bool,
    /// With what; for numbers with the operator before each, such as `gt 100`.
    pub patterns: Vec<String>,
    /// `-f`, for addresses, whose files Weir reads itself.
    pub files: Vec<String>,
    /// Whether it is about what a request has, and was not kept in a variable for its response.
    pub of_request: bool,
}

/// Stands before what an ACL tests if that is gone when the response comes.
const OF_REQUEST: char = '\u{E002}';

/// Marks what a line tests that is of a request, before variables are filled in.
pub fn mark(line: &mut Line) {
    let starts: Vec<usize> = match line.word(0) {
        "acl" => vec![2],
        "http-response" | "http-after-response" | "tcp-response" => {
            (1..line.words.len()).filter(|at| line.word(at - 1) == "{").collect()
        }
        _ => Vec::new(),
    };
    for at in starts {
        if let Some(word) = line.words.get_mut(at).filter(|word| is_of_request(word)) {
            word.insert(0, OF_REQUEST);
        }
    }
}

/// Whether a sample is of a request alone, so that HAProxy finds nothing in a rule for responses.
fn is_of_request(sample: &str) -> bool {
    let name = sample.split(['(', ',']).next().unwrap_or_default();
    let kept = ["req.proto_http", "req.ver"];
    let families = ["path", "url", "base", "query", "hdr", "cook", "req.", "urlp", "http_auth"];
    let is_of = |family: &&str| {
        let rest = name.strip_prefix(*family);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_') || family.ends_with('.'))
    };
    name == "pathq" || (families.iter().any(is_of) && !kept.contains(&name))
}

/// What of a response is not there yet when a rule is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// Nothing of it.
    Nothing,
    /// Its bytes, which nobody shows where HTTP is spoken.
    Bytes,
    /// All of it.
    All,
}

impl Unseen {
    /// Whether a sample is of what is not there.
    pub fn has(self, sample: &Sample) -> bool {
        let name = sample.fetch.name.as_str();
        let is_of_bytes = matches!(
            name,
            "res.payload" | "res.payload_lv" | "res.len" | "res.ssl_hello_type" | "rep_ssl_hello_type"
        );
        let is_of_head = name.starts_with("res.")
            || matches!(name, "status" | "set-cookie")
            || name.starts_with("shdr")
            || name.starts_with("scook");
        match self {
            Unseen::Nothing => false,
            Unseen::Bytes => is_of_bytes,
            Unseen::All => is_of_bytes || is_of_head,
        }
    }
}

const METHODS: &[&str] = &["str", "beg", "end", "sub", "dir", "dom", "reg", "len", "cnt", "ip", "val"];

/// Reads what stands behind the name of an ACL, or between braces. `Err` says what is wrong.
pub fn criterion(words: &[String], source: &dyn SourceFiles) -> Result<Criterion, String> {
    let first = words.first().ok_or("it tests nothing")?;
    let plain = first.strip_prefix(OF_REQUEST);
    let mut sample = Sample::parse(plain.unwrap_or(first))?;
    let mut method = take_suffix(&mut sample);
    let mut read = Criterion {
        sample,
        method: String::new(),
        ignore_case: false,
        patterns: Vec::new(),
        files: Vec::new(),
        of_request: plain.is_some(),
    };
    let is_address = matches!(read.sample.fetch.name.as_str(), "src" | "dst");
    let mut left = words[1..].iter();
    let mut operator = String::new();
    let mut flags = true;
    while let Some(word) = left.next() {
        match word.as_str() {
            "--" if flags => flags = false,
            "-i" if flags => read.ignore_case = true,
            "-n" | "-u" if flags => {
                left.by_ref().take(usize::from(word == "-u")).for_each(drop);
            }
            "-m" if flags => method = left.next().cloned().unwrap_or_default(),
            "-f" if flags => {
                let file = left.next().ok_or("`-f` names no file")?;
                match is_address {
                    true => read.files.push(file.clone()),
                    false => read.patterns.extend(lines(file, source)?),
                }
            }
            "-M" if flags => return Err("`-M` has other programs change the list".to_owned()),
            "eq" | "ge" | "gt" | "le" | "lt" if is_number(&read.sample, &method) => {
                operator = format!("{word} ");
                flags = false;
            }
            pattern => {
                read.patterns.push(format!("{operator}{pattern}"));
                flags = false;
            }
        }
    }
    read.method = method;
    Ok(read)
}

/// Whether what is asked for, as it stands behind the name of an ACL, is how much somebody or something does.
pub fn counts(words: &[String]) -> bool {
    let text = words.first().map_or("", |first| first.trim_start_matches(OF_REQUEST));
    let is_tracked = text
        .strip_prefix("sc")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '_'));
    let is_of_source = text.starts_with("src_") && !text.starts_with("src_port");
    let of_proxies = ["be_", "fe_", "srv_", "nbsrv", "queue", "connslots", "avg_queue", "act_conn", "table_"];
    is_tracked
        || is_of_source
        || text.starts_with("req.body_")
        || text.contains("hdr_val(content-length")
        || text.contains(",table_")
        || text.contains(",in_table(")
        || of_proxies.iter().any(|front| text.starts_with(front))
}

/// Takes a suffix such as `_beg` off the name of a fetch, which says how it is compared.
fn take_suffix(sample: &mut Sample) -> String {
    let fetch = &mut sample.fetch.name;
    let old = fetch.clone();
    *fetch = match fetch.as_str() {
        "req_ssl_sni" => "req.ssl_sni",
        "req_ssl_hello_type" => "req.ssl_hello_type",
        "req_proto_http" => "req.proto_http",
        "shdr" => "res.hdr",
        other => other,
    }
    .to_owned();
    if old != *fetch {
        return String::new();
    }
    let known = [
        "path",
        "url",
        "base",
        "hdr",
        "req.hdr",
        "cook",
        "req.cook",
        "url_param",
        "urlp",
        "ssl_fc_sni",
        "query",
        "res.hdr",
        "method",
        "pathq",
        "req.ssl_sni",
        "ssl_c_s_dn",
    ];
    if let Some((base, suffix)) = fetch.rsplit_once('_')
        && known.contains(&base)
        && METHODS.contains(&suffix)
    {
        let suffix = suffix.to_owned();
        *fetch = base.to_owned();
        return suffix;
    }
    String::new()
}

/// Whether numbers are compared, so that operators such as `gt` are none of the patterns.
fn is_number(sample: &Sample, method: &str) -> bool {
    let name = sample.fetch.name.as_str();
    let last = sample.converters.last().map(|call: &Call| call.name.as_str());
    matches!(method, "int" | "len" | "cnt" | "val")
        || matches!(last, Some("length" | "table_http_req_rate" | "mod" | "int"))
        || matches!(
            name,
            "dst_port"
                | "src_port"
                | "nbsrv"
                | "rand"
                | "status"
                | "req.body_size"
                | "req.body_len"
                | "req.len"
        )
        || name.contains("_rate")
        || name.contains("_cnt")
        || name.contains("_conn")
        || name.contains("_cur")
        || name.contains("gpc")
        || name.contains("gpt")
        || name.contains("conn_")
        || name.starts_with("date")
        || name.starts_with("ssl_c_verify")
        || name == "ssl_c_used"
        || matches!(
            name,
            "hour" | "ssl_fc_has_crt" | "req.ssl_hello_type" | "queue" | "connslots" | "avg_queue"
        )
}

/// The lines of a file of patterns.
fn lines(file: &str, source: &dyn SourceFiles) -> Result<Vec<String>, String> {
    let text = source.read(file).map_err(|why| format!("the patterns of `{file}` are not read: {why}"))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    if lines.len() > 1000 {
        return Err(format!(
            "`{file}` has {} patterns, too many for a list: a map can have them",
            lines.len()
        ));
    }
    Ok(lines)
}

/// A number with its operator: the least and the most that it holds for.
pub fn bounds(pattern: &str) -> Option<(u64, u64)> {
    let (operator, text) = pattern.split_once(' ').unwrap_or(("eq", pattern));
    if let Some((least, most)) = text.split_once(':').filter(|_| operator == "eq") {
        let least = if least.is_empty() { 0 } else { least.parse().ok()? };
        let most = if most.is_empty() { u64::MAX } else { most.parse().ok()? };
        return Some((least, most));
    }
    let number: u64 = text.parse().ok()?;
    Some(match operator {
        "eq" => (number, number),
        "ge" => (number, u64::MAX),
        "gt" => (number.checked_add(1)?, u64::MAX),
        "le" => (0, number),
        "lt" => (0, number.checked_sub(1)?),
        _ => return None,
    })
}
