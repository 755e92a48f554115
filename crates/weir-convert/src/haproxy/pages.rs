//! Error pages: `errorfile`, `errorfiles` and `http-error`.
//!
//! HAProxy answers with them also where a rule refuses a request and says no content itself, so each is kept
//! as the content of an answer, too.

use super::ledger::Ledger;
use super::output::{Keys, said};
use super::proxies::Proxy;
use super::sections::{Line, Section, SectionKind};
use crate::{ConvertedFile, SourceFiles};

/// The longest content that stands in the answers of rules (bytes).
const MOST_INLINE: usize = 8 << 10;

/// A page for one status.
#[derive(Clone, Debug)]
pub struct HaproxyPage {
    /// The status.
    pub status: u16,
    /// Its table in `error_page`.
    pub table: Keys,
    /// Keys of an answer with the same content; none where it is too long for that.
    pub content: Keys,
}

/// Where the texts of pages come from, and where those are put that are made.
pub struct PagePlaces<'p> {
    /// All sections, of which some are `http-errors`.
    pub sections: &'p [Section],
    /// The folder of the files that are made.
    pub folder: &'p str,
    /// Files that are read.
    pub source: &'p dyn SourceFiles,
    /// Files that are made.
    pub made: &'p mut Vec<ConvertedFile>,
}

/// What a line says of a page.
struct ToldPage<'s> {
    line: &'s Line,
    status: &'s str,
    text: PageSource<'s>,
    /// Its media type, where the line says it.
    kind: Option<&'s str>,
    /// What differs.
    notes: Vec<&'static str>,
}

/// Where the text of a page stands.
enum PageSource<'s> {
    /// In a file, behind a head.
    Whole(&'s str),
    /// In a file of its own.
    File(&'s str),
    /// In the line.
    Text(String),
    /// In HAProxy.
    Own,
    /// Nowhere that Weir knows, for this reason.
    Lost(String),
}

/// Whether a line says a page.
pub fn is_page(line: &Line) -> bool {
    matches!(
        line.word(0),
        "errorfile" | "errorfiles" | "http-error" | "errorloc" | "errorloc302" | "errorloc303"
    )
}

/// The pages that lines say, one for each status: that of the last line.
pub fn pages(lines: &[&Line], places: &mut PagePlaces<'_>, ledger: &mut Ledger) -> Vec<HaproxyPage> {
    let mut pages: Vec<HaproxyPage> = Vec::new();
    let mut statuses: Vec<&str> = Vec::new();
    let sections = places.sections;
    for one in told(lines, sections, ledger).into_iter().rev() {
        let number = one.line.number;
        if statuses.contains(&one.status) {
            if !ledger.has(number) {
                ledger.exact(number, "a later line holds in its place");
            }
            continue;
        }
        statuses.push(one.status);
        match one.status.parse::<u16>() {
            Ok(status) if (400..600).contains(&status) => pages.extend(page(one, status, places, ledger)),
            _ => ledger.unsupported(number, "pages are for errors: 400 to 599"),
        }
    }
    pages.reverse();
    // Where no connection to a server comes about HAProxy answers 503, and Weir 502.
    let of_503 = pages.iter().find(|page| page.status == 503).cloned();
    if let Some(HaproxyPage { mut table, .. }) = of_503.filter(|_| !statuses.contains(&"502")) {
        table.set("status", "502");
        pages.push(HaproxyPage { status: 502, table, content: Keys::default() });
    }
    pages
}

/// What the lines say, those of the sections that `errorfiles` names among them.
fn told<'s>(lines: &[&'s Line], sections: &'s [Section], ledger: &mut Ledger) -> Vec<ToldPage<'s>> {
    let mut all = Vec::new();
    for line in lines.iter().copied() {
        match line.word(0) {
            "errorfile" => all.push(file(line)),
            "http-error" => all.push(http_error(line, sections)),
            "errorfiles" => match named(sections, line.word(1)) {
                None => {
                    ledger.unsupported(line.number, format!("there is no `http-errors {}`", line.word(1)));
                }
                Some(section) => {
                    ledger.exact(line.number, "`error_page` of listeners");
                    let codes = line.from(2);
                    let is_meant = |page: &&Line| {
                        page.word(0) == "errorfile"
                            && (codes.is_empty() || codes.iter().any(|code| code == page.word(1)))
                    };
                    all.extend(section.lines.iter().filter(is_meant).map(file));
                }
            },
            _ => ledger.unsupported(
                line.number,
                "errors are not answered with redirects: a page of `error_page` can lead on",
            ),
        }
    }
    all
}

fn named<'s>(sections: &'s [Section], name: &str) -> Option<&'s Section> {
    sections.iter().find(|section| section.kind == SectionKind::HttpErrors && section.name == name)
}

/// `errorfile STATUS FILE`
fn file(line: &Line) -> ToldPage<'_> {
    let text = PageSource::Whole(line.word(2));
    ToldPage { line, status: line.word(1), text, kind: None, notes: Vec::new() }
}

/// `http-error status STATUS …`
fn http_error<'s>(line: &'s Line, sections: &'s [Section]) -> ToldPage<'s> {
    let text = PageSource::Text(String::new());
    let mut told = ToldPage { line, status: "", text, kind: None, notes: Vec::new() };
    let mut words = line.from(1).iter();
    while let Some(word) = words.next() {
        if word == "default-errorfiles" {
            told.text = PageSource::Own;
            continue;
        }
        let next = words.next().map_or("", String::as_str);
        match word.as_str() {
            "status" => told.status = next,
            "content-type" => told.kind = Some(next),
            "string" => told.text = PageSource::Text(next.to_owned()),
            "file" => told.text = PageSource::File(next),
            "errorfile" => told.text = PageSource::Whole(next),
            "errorfiles" => {
                let is_it = |page: &&Line| page.word(0) == "errorfile" && page.word(1) == told.status;
                let page = named(sections, next).and_then(|section| section.lines.iter().rfind(is_it));
                told.text = page.map_or(PageSource::Own, |page| PageSource::Whole(page.word(2)));
            }
            "lf-string" if !next.replace("%%", "").contains('%') => {
                told.text = PageSource::Text(next.replace("%%", "%"));
            }
            "lf-string" | "lf-file" => {
                told.text = PageSource::Lost("a page is a text without variables".to_owned());
            }
            "hdr" => {
                words.next();
                told.notes.push("a page has no fields of its own (`hdr`)");
            }
            other => told.text = PageSource::Lost(format!("a page has no `{other}`")),
        }
    }
    told
}

/// A page, unless there is nothing to be shown; the line gets its verdict.
fn page(
    told: ToldPage<'_>,
    status: u16,
    places: &mut PagePlaces<'_>,
    ledger: &mut Ledger,
) -> Option<HaproxyPage> {
    let number = told.line.number;
    let own = "Weir's own line of text is sent";
    let read = |path: &str| places.source.read(path);
    let mut kind = told.kind.map(str::to_owned);
    let mut behind = "";
    let (text, file) = match told.text {
        PageSource::Text(text) => (text, None),
        PageSource::Own => {
            ledger.approximate(number, format!("HAProxy's own page: {own}"));
            return None;
        }
        PageSource::Lost(why) => {
            ledger.unsupported(number, format!("{why}: {own} in its place"));
            return None;
        }
        PageSource::File(path) | PageSource::Whole(path) => {
            let text = match read(path) {
                Ok(text) => text,
                Err(why) => {
                    ledger.unsupported(number, format!("{path}: {why}; {own} in its place"));
                    return None;
                }
            };
            match told.text {
                PageSource::Whole(_) if text.trim().is_empty() => {
                    let note = "an empty page, which closes the connection without an answer";
                    ledger.unsupported(number, format!("{note}: {own}"));
                    return None;
                }
                PageSource::Whole(_) => {
                    let (content, of_head) = behind_head(&text);
                    kind = of_head.map(str::to_owned);
                    behind = ": the content alone, without its head";
                    (content.to_owned(), Some(path))
                }
                _ => (text, Some(path)),
            }
        }
    };
    let kind = kind.filter(|kind| kind.is_ascii() && kind.contains('/'));
    let (mut table, mut content) = (Keys::default(), Keys::default());
    table.set("status", status.to_string());
    content.set("body", said(&text));
    let mut what = "`error_page`".to_owned();
    match file {
        None => table.set("body", said(&text)),
        Some(path) => {
            let made = made_file(path, &text, places);
            what = format!("`error_page` with {made}{behind}");
            table.set("file", said(&made));
        }
    }
    if let Some(kind) = &kind {
        table.set("content_type", said(kind));
        content.set("content_type", said(kind));
    }
    let mut notes = told.notes;
    if text.len() > MOST_INLINE {
        content = Keys::default();
        notes.push("it is too long to be said by rules that refuse, too, which answer without a content");
    }
    match notes.is_empty() {
        true => ledger.exact(number, what),
        false => ledger.approximate(number, format!("{what}; {}", notes.join("; "))),
    }
    Some(HaproxyPage { status, table, content })
}

/// The content of a file with a head, and the media type that the head says.
fn behind_head(text: &str) -> (&str, Option<&str>) {
    let (head, content) =
        text.split_once("\r\n\r\n").or_else(|| text.split_once("\n\n")).unwrap_or(("", text));
    let is_type = |line: &&str| line.to_ascii_lowercase().starts_with("content-type:");
    let kind = head.lines().find(is_type).and_then(|line| line.split_once(':')).map(|(_, kind)| kind.trim());
    (content, kind)
}

/// The path of a file with this content that is made beside the converted one.
fn made_file(path: &str, content: &str, places: &mut PagePlaces<'_>) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let (stem, end) = match name.rsplit_once('.') {
        Some((stem, end)) if end != "http" && !stem.is_empty() => (stem, end),
        Some((stem, _)) if !stem.is_empty() => (stem, "html"),
        _ => (name, "html"),
    };
    let is_other =
        |path: &String| places.made.iter().any(|known| known.path == *path && known.text != content);
    let numbered = (2..).map(|number| format!("{}/{stem}-{number}.{end}", places.folder));
    let file = std::iter::once(format!("{}/{stem}.{end}", places.folder))
        .chain(numbered)
        .find(|path| !is_other(path))
        .unwrap_or_default();
    if !places.made.iter().any(|known| known.path == file) {
        places.made.push(ConvertedFile { path: file.clone(), text: content.to_owned() });
    }
    file
}

/// The lines of a proxy that say pages: its own alone, or those that it takes over, too.
pub fn lines_of<'s>(proxy: &Proxy<'s>, own_alone: bool) -> Vec<&'s Line> {
    let is_meant = |line: &&Line| is_page(line) && !line.negated;
    match own_alone {
        true => proxy.section.lines.iter().filter(is_meant).collect(),
        false => proxy.lines.iter().copied().filter(is_meant).collect(),
    }
}
