//! Maps: `map(FILE,default)` and its kin as `[map.NAME]`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::output::said;
use super::samples::{Call, Sample, variable};
use crate::ConvertedFile;
use crate::write::line;

/// The maps that the file uses, each once.
#[derive(Debug, Default)]
pub struct Maps {
    maps: Vec<Map>,
    /// Where files of maps are put that are made here.
    folder: String,
    /// Files of maps that are made here.
    made: Vec<ConvertedFile>,
}

#[derive(Debug, PartialEq, Eq)]
struct Map {
    name: String,
    file: String,
    kind: &'static str,
    key: String,
    default: Option<String>,
    ignore_case: bool,
}

/// The kind of map that a converter looks up in.
pub fn kind_of(converter: &str) -> Option<&'static str> {
    Some(match converter {
        "map" | "map_str" | "map_str_str" => "exact",
        "map_beg" | "map_beg_str" => "prefix",
        "map_end" | "map_end_str" => "suffix",
        "map_sub" | "map_sub_str" => "contains",
        "map_dom" | "map_dom_str" => "domain",
        "map_reg" | "map_reg_str" | "map_regm" => "expression",
        "map_ip" | "map_ip_str" => "network",
        _ => return None,
    })
}

impl Maps {
    /// None yet. Files of maps that are made are to be in this folder.
    pub fn beside(folder: &str) -> Maps {
        Maps { folder: folder.to_owned(), ..Maps::default() }
    }

    /// The files of the maps that were made.
    pub fn files(&self) -> &[ConvertedFile] {
        &self.made
    }

    /// The name of a map that says `yes` where what `key` says is one of these: for what no route asks for by
    /// itself, such as the server name of TLS.
    pub fn made(&mut self, key: &str, kind: &'static str, keys: &[String]) -> String {
        let mut lines: Vec<String> = Vec::new();
        for name in keys {
            let line = format!("{} yes\n", name.replace(' ', "\\x20"));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        self.of_text(key, kind, lines.concat())
    }

    /// The name of a map that says each of these of itself, where what `key` says is one of them.
    pub fn each(&mut self, key: &str, keys: &[String]) -> String {
        let lines: Vec<String> = keys.iter().map(|name| format!("{name} {name}\n")).collect();
        self.of_text(key, "exact", lines.concat())
    }

    fn of_text(&mut self, key: &str, kind: &'static str, text: String) -> String {
        let path = match self.made.iter().find(|file| file.text == text && file.path.contains(kind)) {
            Some(known) => known.path.clone(),
            None => {
                let of = match key {
                    "$server_name" => "names",
                    "$query" => "queries",
                    "$client_cert_subject" => "certificates",
                    _ => "values",
                };
                let path = format!("{}/{of}-{kind}-{}.map", self.folder, self.made.len() + 1);
                self.made.push(ConvertedFile { path: path.clone(), text });
                path
            }
        };
        let key = key.to_owned();
        self.keep(Map { name: String::new(), file: path, kind, key, default: None, ignore_case: false })
    }

    /// The name of the map that this looks up, and what differs. `Err` says what there is nothing like.
    pub fn named(&mut self, looked_up: &Sample, converter: &Call) -> Result<(String, Vec<String>), String> {
        let kind = kind_of(&converter.name).ok_or_else(|| format!("there is no `{}`", converter.name))?;
        let file = converter.argument(0).to_owned();
        if file.is_empty() {
            return Err(format!("`{}` names no file", converter.name));
        }
        let (ignore_case, plain) = looked_up.without_case();
        let key = variable(&plain, self)?;
        if key.text.contains("$map.") {
            return Err("no map is asked for what another one says".to_owned());
        }
        let is_host = key.text == "$host";
        let mut notes = key.notes;
        if is_host && !ignore_case && kind != "expression" {
            notes.push("hosts are looked up without regard to case".to_owned());
        }
        match converter.name.as_str() {
            "map_dom" | "map_dom_str" => {
                notes.push("a name is found with those below it, never in the middle of another".to_owned());
            }
            "map_reg" | "map_reg_str" => {
                notes.push("in values `$1` to `$9` are what groups matched: write `$` as `$$`".to_owned());
            }
            "map_regm" => notes.push("in values write `\\1` as `$1`".to_owned()),
            _ => {}
        }
        let default = (converter.arguments.len() > 1).then(|| converter.argument(1).to_owned());
        let may_lack = ["$header.", "$cookie.", "$query.", "$server_name", "$client_cert"];
        if default.is_some() && may_lack.iter().any(|family| key.text.starts_with(family)) {
            notes.push("who has nothing to be looked up gets the default, too".to_owned());
        }
        let ignore_case = ignore_case && !is_host;
        let name = self.keep(Map { name: String::new(), file, kind, key: key.text, default, ignore_case });
        Ok((name, notes))
    }

    fn keep(&mut self, mut map: Map) -> String {
        let same = |other: &&Map| {
            (&other.file, other.kind, &other.key, &other.default, other.ignore_case)
                == (&map.file, map.kind, &map.key, &map.default, map.ignore_case)
        };
        if let Some(known) = self.maps.iter().find(same) {
            return known.name.clone();
        }
        let taken: BTreeSet<&str> = self.maps.iter().map(|map| map.name.as_str()).collect();
        let file = map.file.rsplit('/').next().unwrap_or_default();
        let stem = file.split('.').next().unwrap_or_default();
        let stem: String =
            stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(40).collect();
        let stem = stem.trim_start_matches('_');
        let stem = if stem.is_empty() { "map" } else { stem };
        let name = std::iter::once(stem.to_owned())
            .chain((2..).map(|number| format!("{stem}_{number}")))
            .find(|name| !taken.contains(name.as_str()))
            .unwrap_or_default();
        map.name.clone_from(&name);
        self.maps.push(map);
        name
    }

    /// Writes the tables.
    pub fn write(&self, body: &mut String) {
        for map in &self.maps {
            let _ = writeln!(body, "\n[map.{}]", map.name);
            line(body, "file", said(&map.file));
            if map.kind != "exact" {
                line(body, "kind", said(map.kind));
            }
            line(body, "key", said(&map.key));
            if let Some(default) = &map.default {
                line(body, "default", said(default));
            }
            if map.ignore_case {
                line(body, "ignore_case", true);
            }
        }
    }
}
