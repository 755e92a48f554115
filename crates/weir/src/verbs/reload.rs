//! `weir reload`

use hyper::{Method, StatusCode};
use weir_control::reload::{ReadError, Source};

use super::run::refuse;
use crate::cli::Running;
use crate::client::{CallError, Client, block_on, config_path};
use crate::exit::Exit;

/// Has the running Weir read its file anew. It is told even about a file with mistakes: it remembers the refusal, so that
/// those who look at its status see it too.
pub fn reload(running: &Running) -> Exit {
    let client = match Client::new(running) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let answered = match block_on(client.call(Method::POST, "/v1/reload", None)) {
        Ok(answered) => answered,
        Err(exit) => return exit,
    };
    let answer = match answered {
        Ok(answer) => answer,
        Err(CallError::NotRunning(message)) => return not_running(running, &message),
        Err(error) => return error.report(),
    };
    let outcome = &answer.body["reload"];
    let lines = |key: &str| {
        outcome[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|line| line.as_str())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    if let Some(warnings) = outcome["warnings"].as_str().filter(|warnings| !warnings.is_empty()) {
        eprintln!("{}", warnings.trim_end());
    }
    match answer.status {
        StatusCode::OK => {
            say!("{}, generation {}", outcome["result"].as_str().unwrap_or("done"), outcome["generation"]);
            lines("changes").iter().for_each(|line| say!("  {line}"));
            lines("needs_restart").iter().for_each(|key| say!("  {key} needs a restart, or USR2, to change"));
            Exit::Done
        }
        StatusCode::UNPROCESSABLE_ENTITY => {
            eprintln!(
                "{}\n\nweir: refused; generation {} stays in force",
                answer.error(),
                outcome["generation"]
            );
            Exit::Refused
        }
        _ => {
            eprintln!("weir: {}", answer.error());
            Exit::Failed
        }
    }
}

/// Nobody to tell. A file with mistakes is the more useful news of the two.
fn not_running(running: &Running, message: &str) -> Exit {
    if let Some(path) = config_path(&running.config)
        && let Err(error @ ReadError::Refused(_)) = Source::File(path).read()
    {
        refuse(&error);
        eprintln!("weir: and {message}");
        return Exit::Refused;
    }
    CallError::NotRunning(message.to_owned()).report()
}
