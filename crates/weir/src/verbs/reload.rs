//! `weir reload`

use std::path::PathBuf;

use hyper::{Method, StatusCode};
use weir_control::reload::{ReadError, Source};

use crate::arguments::Running;
use crate::client::{CallError, Client, block_on, config_paths};
use crate::exit::Exit;

/// Makes the running Weir reload its config. It is told to even if the file has mistakes: it remembers the
/// refusal, so that it shows in its status.
pub fn reload(running: &Running) -> Result<Exit, Exit> {
    let client = Client::new(running)?;
    reads_the_same_file(running, &client)?;
    let answered = block_on(client.call(Method::POST, "/v1/reload", None))?;
    let answer = answered.map_err(|error| match error {
        CallError::NotRunning(message) => not_running(running, &client, &message),
        CallError::Broken(_) => error.report(),
    })?;
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
        tell!("{}", warnings.trim_end());
    }
    match answer.status {
        StatusCode::OK => {
            let result = outcome["result"].as_str().ok_or_else(|| client.no_weir().report())?;
            say!("{result}, generation {}", outcome["generation"]);
            lines("changes").iter().for_each(|line| say!("  {line}"));
            let how = weir_config::how_to_change;
            lines("needs_restart").iter().for_each(|key| say!("  {key} {}", how(key)));
            Ok(Exit::Done)
        }
        StatusCode::UNPROCESSABLE_ENTITY => {
            tell!("{}\n\nweir: refused; generation {} stays in force", answer.error(), outcome["generation"]);
            Err(Exit::Refused)
        }
        StatusCode::UNAUTHORIZED => {
            let exit = Exit::Failed.saying(answer.error());
            tell!("{FILES_HAVE_CHANGED}");
            Err(exit)
        }
        _ => Err(Exit::Failed.saying(answer.error())),
    }
}

/// Advice for when the admin API's token or certificate file is newer than what the process has read.
const FILES_HAVE_CHANGED: &str = "weir: if the token or the certificate of its admin API has changed in the file since it was read: \
                                  send it HUP, which needs neither";

/// Checks that the running Weir reads the file that is meant here. It always reloads its own file, whatever
/// `--config` says: told to reload because of another file, it would answer "unchanged", which is true but
/// misleading.
///
/// `Err` if another file was named and that alone identified the running Weir. If the file was found by
/// default, or the Weir was named by `--admin`, it only prints a note.
fn reads_the_same_file(running: &Running, client: &Client) -> Result<(), Exit> {
    let ours = config_paths(&running.config);
    if ours.is_empty() {
        return Ok(());
    }
    let answer = match block_on(client.call(Method::GET, "/v1/status", None))? {
        Ok(answer) => answer,
        // The reload itself would only wait for it once more.
        Err(error @ CallError::Broken(_)) => return Err(error.report()),
        Err(CallError::NotRunning(_)) => return Ok(()),
    };
    let source = answer.body["config_source"].as_str().unwrap_or_default();
    // A file that does not exist, or not on this machine, can't be told from this one.
    let whole =
        |paths: &[PathBuf]| paths.iter().map(|path| path.canonicalize()).collect::<Result<Vec<_>, _>>();
    let theirs = Source::paths_in(source);
    let (Ok(found), Ok(meant)) = (whole(&theirs), whole(&ours)) else { return Ok(()) };
    if found == meant || theirs.iter().any(|path| !path.is_absolute()) {
        return Ok(());
    }
    let named: Vec<String> = ours.iter().map(|path| path.display().to_string()).collect();
    let difference = format!("the Weir at {} reads {source}, not {}", client.address(), named.join(", "));
    if running.config.config.is_empty() || running.admin.is_some() {
        tell!("weir: note: {difference}");
        return Ok(());
    }
    Err(Exit::Failed.saying(format_args!(
        "{difference}: nothing was reloaded. Change that file, or start Weir with this one; \
         `--admin {}` reloads that Weir whatever its file",
        client.address()
    )))
}

/// Reports that no Weir is running. If the file has mistakes, reports those instead, as the more useful news.
fn not_running(running: &Running, client: &Client, message: &str) -> Exit {
    let paths = config_paths(&running.config);
    if !paths.is_empty()
        && let Err(error @ ReadError::Refused(_)) = Source::Files(paths).look()
    {
        return Exit::refusing(&error).saying(format_args!("and {message}"));
    }
    let exit = CallError::NotRunning(message.to_owned()).report();
    if client.is_over_tls() {
        tell!("{FILES_HAVE_CHANGED}");
    }
    if running.admin.is_none() {
        tell!(
            "weir: if it runs and its `admin.bind` was changed in the file: that takes a restart, or USR2. To reload the rest until \
             then, say where it answers still (--admin ADDRESS), or send it HUP"
        );
    }
    exit
}
