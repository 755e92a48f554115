//! `[log]`: the access log, and the program's own log on standard error.

use std::fmt;
use std::path::PathBuf;

use crate::fields::Value;
use crate::keys::{Shape, text_or, word};
use crate::report::quote;
use crate::setting::{one, table, words};
use crate::suggest::nearest;
use crate::units::{Refused, refuse};

table! {
    /// The access log, and the program's own log on standard error.
    pub struct Log at "[log]" {
        /// Where access-log lines go; a file is opened anew on USR1.
        access: AccessTarget = text_or(&ACCESS_TARGET, "off");
        /// Form of an access-log line.
        format: AccessFormat = word(AccessFormat::WORDS, "json");
        /// Threshold of the program's own log.
        level: Level = word(Level::WORDS, "info");
    }
}

words! {
    /// Form of an access-log line.
    pub enum AccessFormat {
        Json = "json": "one JSON object a line",
        Combined = "combined": "the combined format of Apache and nginx",
        Haproxy = "haproxy": "HAProxy's `option httplog` and `tcplog`",
    }
}

words! {
    /// Threshold of the program log.
    pub enum Level {
        Error = "error": "what an operator must look at",
        Warn = "warn": "what may become trouble",
        Info = "info": "starts, reloads, state changes",
        Debug = "debug": "single connections",
        Trace = "trace": "everything",
    }
}

/// Where access-log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessTarget {
    /// Nowhere (default); costs nothing.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, opened for appending and opened anew on USR1.
    File(PathBuf),
}

static ACCESS_TARGET: Shape =
    Shape::new("`\"off\"`, `\"stdout\"`, `\"stderr\"` or a file name", "/var/log/weir/access.log", |text| {
        access_target(text).map(|target| target.to_string())
    });

one!(AccessTarget, Value::Text(text) => access_target(text).ok(), |it| Value::Text(it.to_string()), AccessTarget::Off);

impl fmt::Display for AccessTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessTarget::Off => f.write_str("off"),
            AccessTarget::Stdout => f.write_str("stdout"),
            AccessTarget::Stderr => f.write_str("stderr"),
            AccessTarget::File(path) => write!(f, "{}", path.display()),
        }
    }
}

fn access_target(text: &str) -> Result<AccessTarget, Refused> {
    match text {
        "off" => Ok(AccessTarget::Off),
        "stdout" => Ok(AccessTarget::Stdout),
        "stderr" => Ok(AccessTarget::Stderr),
        // A path is written with a slash, so that `stdot` does not become a file in the working directory.
        path if path.contains('/') && !path.ends_with('/') && !path.contains('\0') => {
            Ok(AccessTarget::File(PathBuf::from(path)))
        }
        other => {
            let hint = match nearest(other, ["off", "stdout", "stderr"]) {
                Some(word) => format!("did you mean \"{word}\"?"),
                None => format!(
                    "expected \"off\", \"stdout\", \"stderr\" or a path with a slash, such as \"./{other}\""
                ),
            };
            refuse(format!("{} is not a place for the access log", quote(other)), hint)
        }
    }
}
