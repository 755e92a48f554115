//! `buffer` of a pool or a route: how much Weir buffers, so that slow clients don't occupy backends.

use crate::fields::Fields;
use crate::keys::{Limit, MIB, TIB, size};
use crate::report::{Findings, quote};
use crate::setting::table;
use crate::world::World;

table! {
    /// Requests are held until they are whole before a backend is asked, and responses are taken off the
    /// backend at its pace: a slow client holds no worker of gunicorn or puma.
    #[derive(Copy, Eq)]
    pub struct Buffer at "buffer = { … }" {
        /// How much of a request's body is waited for and held; a longer one goes on as it comes. 0: nothing.
        requests: u64 =
            size(Limit::new(MIB, 0, 1024 * MIB, "it is memory, within `runtime.memory`"))
                .also(&["request", "proxy_request_buffering", "max_request_body"]);
        /// How much more of a request's body is held in a file (`runtime.buffer_directory`). 0: nothing.
        requests_file: u64 =
            size(Limit::new(0, 0, 64 * TIB, "it is disk, within `runtime.buffer_files`"))
                .also(&["request_file", "client_body_temp_path"]);
        /// How much of a response is held for a client that is slower than the backend. 0: nothing.
        responses: u64 =
            size(Limit::new(MIB, 0, 1024 * MIB, "it is memory, within `runtime.memory`"))
                .also(&["response", "proxy_buffering", "max_response_body"]);
        /// How much more of a response is held in a file (`runtime.buffer_directory`). 0: nothing.
        responses_file: u64 =
            size(Limit::new(0, 0, 64 * TIB, "it is disk, within `runtime.buffer_files`"))
                .also(&["response_file", "proxy_max_temp_file_size"]);
    }
}

/// Reports if no files can be created in `runtime.buffer_directory`.
pub(crate) fn try_directory(root: &Fields, world: &dyn World, findings: &mut Findings<'_>) {
    let Some(runtime) = root.table("runtime") else { return };
    let Some(entry) = runtime.get("buffer_directory") else { return };
    if let Some(path) = runtime.text("buffer_directory")
        && let Err(why) = world.takes_files(path)
    {
        let hint = format!("{why}; expected a folder that this program may make files in");
        findings.error(entry.at, format!("no file can be made in {}", quote(path)), hint);
    }
}

/// Reports settings for buffer files that cannot work.
pub(crate) fn check(root: &Fields, findings: &mut Findings<'_>) {
    let runtime = root.table("runtime");
    let has_directory = runtime.is_some_and(|it| it.get("buffer_directory").is_some());
    let routes = root.named("listener").flat_map(|listener| listener.tables("route"));
    for fields in root.named("pool").chain(routes.map(|(_, route)| route)) {
        let Some(buffer) = fields.table("buffer") else { continue };
        for (memory, file) in [("requests", "requests_file"), ("responses", "responses_file")] {
            let Some(entry) = buffer.get(file).filter(|_| buffer.number(file) > 0) else { continue };
            if !has_directory {
                let hint = "expected `buffer_directory` in `[runtime]`, a folder that files are made in";
                findings.error(entry.key, format!("`{file}` has no folder"), hint);
            }
            if buffer.number(memory) == 0 {
                let hint = format!("the file takes what is beyond `{memory}`, which is 0");
                findings.error(entry.key, format!("`{file}` stands behind nothing"), hint);
            }
        }
    }
}
