//! Every endpoint of the admin API in one table. The router and the OpenAPI document are made from it, and
//! `cargo xtask docs` makes the reference page from it.

use serde_json::{Value, json};

use crate::auth::Access;

/// The HTTP methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Acts.
    Post,
    /// Replaces.
    Put,
    /// Changes.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    /// The method's name, in capitals.
    pub fn word(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

/// The operation of an endpoint; `api.rs` has one function for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Call {
    Page,
    Live,
    Ready,
    Metrics,
    Status,
    Config,
    Reload,
    Pools,
    Pool,
    PatchBackend,
    AddBackend,
    RemoveBackend,
    Certificates,
    PutCertificate,
    RemoveCertificate,
    CachePurge,
    Limits,
    ClearLimits,
    Maintenance,
    SwitchMaintenance,
    Maps,
    Map,
    PutMapLine,
    RemoveMapLine,
    Explain,
    Flows,
    Events,
    OpenApi,
}

/// One endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// Method.
    pub method: Method,
    /// Path, with `{parameters}`.
    pub path: &'static str,
    /// Its operation.
    pub call: Call,
    /// One line about it.
    pub summary: &'static str,
    /// The query parameters it takes, described as in `body`.
    pub query: &'static [(&'static str, &'static str, &'static str)],
    /// The fields of the JSON body it takes: name, type (ending in `?` if optional), meaning.
    pub body: &'static [(&'static str, &'static str, &'static str)],
    /// Content type of the answer.
    pub answers: &'static str,
    /// Statuses beside 200 and those that every endpoint may return.
    pub statuses: &'static [(u16, &'static str)],
}

impl Endpoint {
    /// The access it needs, which decides whether the token is required. `explain` only reads.
    pub fn access(&self) -> Access {
        match self.call {
            Call::Live | Call::Ready => Access::Watch,
            Call::Explain => Access::Read,
            _ if self.method == Method::Get => Access::Read,
            _ => Access::Change,
        }
    }
}

/// An endpoint without a body that returns JSON and has no statuses of its own.
const fn endpoint(method: Method, path: &'static str, call: Call, summary: &'static str) -> Endpoint {
    Endpoint {
        method,
        path,
        call,
        summary,
        query: &[],
        body: &[],
        answers: "application/json",
        statuses: &[],
    }
}

const NO_POOL: (u16, &str) = (404, "`not_found`: no such pool");
const NO_LISTENER: (u16, &str) = (404, "`not_found`: no such listener with TLS, or no such certificate");
const NO_FOLDER: (u16, &str) =
    (409, "`conflict`: the listener has no `certificate_folder`, or there are 1,000 already");
const MAP_LINE: &[(u16, &str)] = &[
    (404, "`not_found`: no such map"),
    (422, "`refused`: it is no line of such a map, or the file has mistakes; nothing has changed"),
    (500, "`failed`: the file can't be written; nothing has changed"),
];
const NO_BACKEND: (u16, &str) = (404, "`not_found`: no such pool or backend");

/// All endpoints.
pub const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        answers: "text/html",
        ..endpoint(
            Method::Get,
            "/",
            Call::Page,
            "Status page for people: HTML without scripts, reloads itself every two seconds.",
        )
    },
    Endpoint {
        answers: "text/plain",
        ..endpoint(Method::Get, "/livez", Call::Live, "200 as long as the control thread works.")
    },
    Endpoint {
        answers: "text/plain",
        statuses: &[(
            503,
            "`draining`: the process is on its way out; `unattached`: the kernel plane takes no packets at an interface where it is to",
        )],
        ..endpoint(
            Method::Get,
            "/readyz",
            Call::Ready,
            "200 while new clients are welcome: serving, not draining, and the kernel plane, where it is asked for, at all its interfaces.",
        )
    },
    Endpoint {
        answers: "text/plain",
        ..endpoint(Method::Get, "/metrics", Call::Metrics, "All metrics in the Prometheus text format.")
    },
    endpoint(Method::Get, "/v1/status", Call::Status, "Listeners, pools, backends, versions, last reload."),
    endpoint(
        Method::Get,
        "/v1/config",
        Call::Config,
        "The configuration in force with every default filled in; secrets left out.",
    ),
    Endpoint {
        statuses: &[
            (422, "`refused`: the file has mistakes; `reload` holds the outcome, `message` all of them"),
            (500, "`failed`: the file can't be read or a socket not be bound; nothing changed"),
        ],
        ..endpoint(
            Method::Post,
            "/v1/reload",
            Call::Reload,
            "Reads the config file and puts it in force; answers when all workers serve it. A file with mistakes changes nothing.",
        )
    },
    endpoint(Method::Get, "/v1/pools", Call::Pools, "All pools with their backends."),
    Endpoint {
        statuses: &[NO_POOL],
        ..endpoint(Method::Get, "/v1/pools/{pool}", Call::Pool, "One pool with its backends.")
    },
    Endpoint {
        body: &[
            (
                "state",
                "string?",
                "`ready`, `drain` (no new work; sticky sessions and running work go on) or `maintenance` (nothing)",
            ),
            ("weight", "integer?", "0 to 256"),
        ],
        statuses: &[NO_BACKEND],
        ..endpoint(
            Method::Patch,
            "/v1/pools/{pool}/backends/{address}",
            Call::PatchBackend,
            "Changes a backend at once. A state lasts until it is changed again or the process ends; a weight until the next reload of the file.",
        )
    },
    Endpoint {
        body: &[
            ("address", "string", "host:port"),
            ("weight", "integer?", "0 to 256; default 1"),
            ("max_connections", "integer?", "most in flight; default no limit"),
            ("backup", "boolean?", "used only when no other is up; default false"),
            ("lasting", "boolean?", "outlives reloads and upgrades, though not a stop; default false"),
        ],
        statuses: &[(201, "added"), NO_POOL, (409, "`conflict`: the pool has it already")],
        ..endpoint(
            Method::Post,
            "/v1/pools/{pool}/backends",
            Call::AddBackend,
            "Adds a backend as a new generation. It is forgotten by the next reload of the file, unless it is to last.",
        )
    },
    Endpoint {
        statuses: &[NO_BACKEND, (409, "`conflict`: it is the pool's last backend")],
        ..endpoint(
            Method::Delete,
            "/v1/pools/{pool}/backends/{address}",
            Call::RemoveBackend,
            "Removes a backend as a new generation; what it is working on goes on, on the kernel plane for at most `runtime.drain`. The next reload of the file brings back one that the file has.",
        )
    },
    Endpoint {
        statuses: &[NO_LISTENER, NO_FOLDER],
        ..endpoint(
            Method::Get,
            "/v1/listeners/{listener}/certificates",
            Call::Certificates,
            "Certificates in the `certificate_folder` of a listener: name, file, names that they are for, from when and until when they are good. Never their keys.",
        )
    },
    Endpoint {
        body: &[
            ("certificate", "string", "PEM: the certificate, then each that signed the one before"),
            ("key", "string", "PEM: its private key, without a passphrase"),
        ],
        statuses: &[
            (403, "`forbidden`: keys are taken over TLS, a Unix socket or loopback only"),
            NO_LISTENER,
            NO_FOLDER,
            (
                422,
                "`refused`: it can't be served: key and certificate do not belong together, the chain does not hold, or it is not good now",
            ),
        ],
        ..endpoint(
            Method::Put,
            "/v1/listeners/{listener}/certificates/{certificate}",
            Call::PutCertificate,
            "Checks a certificate and its key, keeps them as `CERTIFICATE.pem` in the `certificate_folder` of a listener, and serves them at once at every listener of that folder. One of that name is replaced. It outlives reloads, upgrades and restarts.",
        )
    },
    Endpoint {
        statuses: &[NO_LISTENER, NO_FOLDER],
        ..endpoint(
            Method::Delete,
            "/v1/listeners/{listener}/certificates/{certificate}",
            Call::RemoveCertificate,
            "Takes a certificate out of the folder; who connects from then on is not shown it.",
        )
    },
    Endpoint {
        body: &[
            ("host", "string?", "of this host, with a port or without; default every host"),
            ("path", "string?", "of this path as backends see it, whatever the query"),
            ("prefix", "string?", "of all paths that begin so"),
            ("tag", "string?", "with this tag in `surrogate-key` or `cache-tag`; stands alone"),
            ("all", "boolean?", "everything; stands alone"),
            (
                "soft",
                "boolean?",
                "make them out of date: they are confirmed before they are given again; default false",
            ),
        ],
        statuses: &[(404, "`not_found`: no route keeps anything")],
        ..endpoint(
            Method::Post,
            "/v1/cache/purge",
            Call::CachePurge,
            "Takes kept responses out, or makes them out of date. Answers with their number; what is fetched at the moment is not kept either.",
        )
    },
    Endpoint {
        query: &[
            ("listener", "string?", "limits of this listener and its routes; default all"),
            ("route", "string?", "limits of routes of this name; default all, and the listeners' own"),
            (
                "keys",
                "integer?",
                "at most so many keys of each limit, of 256 that are remembered; default 20",
            ),
        ],
        statuses: &[(404, "`not_found`: no such listener or route has a limit")],
        ..endpoint(
            Method::Get,
            "/v1/limits",
            Call::Limits,
            "Limits of rate, and of requests at once: what each says, how many keys it counts and how many it has room for, and whom it refused most often, with counts, when last, and after which time it is let in again. Clients and texts are shown; what may be a secret, such as a cookie, stands there as `[hidden …]`. Counts of one process.",
        )
    },
    Endpoint {
        body: &[
            (
                "client",
                "string?",
                "what is counted by this address, or by its network; by a header, a cookie or a text, of who has none",
            ),
            ("key", "string?", "what is counted by this value of a header, a cookie or a text"),
            ("all", "boolean?", "what anybody owes, and counts of all together"),
            ("listener", "string?", "of this listener and its routes; default all"),
            ("route", "string?", "of routes of this name; default all, and the listeners' own"),
        ],
        statuses: &[(404, "`not_found`: no such listener or route has a `rate_limit`")],
        ..endpoint(
            Method::Post,
            "/v1/limits/clear",
            Call::ClearLimits,
            "Has limits of rate forget what somebody owes, who may ask at once again. One of `client`, `key` and `all`. Answers in how many of how many limits anything was owed. A key that found no bucket of its own shares one, which only `all` clears.",
        )
    },
    endpoint(
        Method::Get,
        "/v1/maintenance",
        Call::Maintenance,
        "Which parts of the service are in maintenance.",
    ),
    Endpoint {
        body: &[
            ("state", "string", "`on` or `off`"),
            ("listener", "string?", "this listener, or with `route` that route of it"),
            ("route", "string?", "routes that have this `name`; a position, such as `web/4`, is refused"),
            (
                "pool",
                "string?",
                "requests that go to this pool, which an HTTP listener must use; stands alone",
            ),
        ],
        statuses: &[NO_POOL],
        ..endpoint(
            Method::Post,
            "/v1/maintenance",
            Call::SwitchMaintenance,
            "Puts a part of the service into maintenance, or takes it out; without a part everything that speaks HTTP. Clients get 503 and the page of `maintenance`. Listeners that speak something else go on; `untouched` beside a pool names those that use it. Lasts over reloads and upgrades.",
        )
    },
    endpoint(
        Method::Get,
        "/v1/maps",
        Call::Maps,
        "Maps: their files, how many lines are in force, and what is wrong.",
    ),
    Endpoint {
        query: &[
            ("key", "string?", "answers what the map says of this text, and by which line"),
            ("limit", "integer?", "without `key`: at most so many lines, up to 100,000; default 1,000"),
        ],
        statuses: &[(404, "`not_found`: no such map")],
        ..endpoint(
            Method::Get,
            "/v1/maps/{map}",
            Call::Map,
            "One map with its lines in force, or what it says of a text.",
        )
    },
    Endpoint {
        query: &[("key", "string", "the key of the line")],
        body: &[("value", "string", "what the map is to say of it")],
        statuses: MAP_LINE,
        ..endpoint(
            Method::Put,
            "/v1/maps/{map}",
            Call::PutMapLine,
            "Writes a line into the file of a map, in the place of the one with that key; in force at once. `change` says `added`, `changed` or `unchanged`.",
        )
    },
    Endpoint {
        query: &[("key", "string", "the key of the line")],
        statuses: MAP_LINE,
        ..endpoint(
            Method::Delete,
            "/v1/maps/{map}",
            Call::RemoveMapLine,
            "Takes a line out of the file of a map; in force at once. `change` says `removed` or `unchanged`.",
        )
    },
    Endpoint {
        body: &[
            ("protocol", "string", "`http`, `tcp`, `udp` or `sql`"),
            ("method", "string?", "http: method"),
            ("url", "string?", "http: `http://host[:port]/path?query`"),
            ("from", "string?", "http, sql: the client's address; default 127.0.0.1"),
            ("headers", "array?", "http: `[[name, value], …]`"),
            (
                "listener",
                "string?",
                "http, sql: name of the listener; default by the URL's port, or the only one that speaks MySQL",
            ),
            (
                "server_name",
                "string?",
                "http, tcp: the name asked for in the TLS greeting; default the URL's host, of tcp none",
            ),
            ("source", "string?", "tcp, udp: address:port of the client"),
            ("destination", "string?", "tcp, udp: address:port of the listener"),
            ("statement", "string?", "sql: the text, as it would come in one query"),
            (
                "transaction",
                "string?",
                "sql: the one that is open, `read-write` or `read-only`; default none",
            ),
            ("autocommit", "boolean?", "sql: whether it is on; default true"),
            ("sql_mode", "string?", "sql: the session's `sql_mode`; default empty"),
            ("charset", "string?", "sql: the session's `character_set_client`; default `utf8mb4`"),
        ],
        ..endpoint(
            Method::Post,
            "/v1/explain",
            Call::Explain,
            "Which listener, route, pool and backend a request, connection, flow or SQL statement would get, and why; on the kernel plane by the packet program itself. Changes nothing, so it needs the token only where reading does.",
        )
    },
    Endpoint {
        query: &[
            ("listener", "string?", "of this listener"),
            ("pool", "string?", "of backends of this pool"),
            ("backend", "string?", "of this backend: address, with a port or without"),
            ("client", "string?", "of this client: address, with a port or without"),
            ("stage", "string?", "`opening`, `open`, `over` or `direct`"),
            (
                "limit",
                "integer?",
                "at most so many rows, up to 100,000; default 1,000. The others are counted",
            ),
        ],
        ..endpoint(
            Method::Get,
            "/v1/flows",
            Call::Flows,
            "Flows that the kernel plane remembers: client, listener, backend, stage, silence. Without a kernel plane there are none.",
        )
    },
    Endpoint {
        answers: "text/event-stream",
        ..endpoint(
            Method::Get,
            "/v1/events",
            Call::Events,
            "Server-sent events: reloads, health changes, ejections, operators' changes. `last-event-id` brings back what was missed, up to 256 events.",
        )
    },
    endpoint(Method::Get, "/v1/openapi.json", Call::OpenApi, "This API as an OpenAPI 3.1 document."),
];

/// The OpenAPI document.
pub fn openapi() -> Value {
    let mut paths = serde_json::Map::new();
    for endpoint in ENDPOINTS {
        let entry = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        entry[endpoint.method.word().to_ascii_lowercase()] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Weir admin API", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": { "error": {
                        "type": "object",
                        "required": ["code", "message"],
                        "properties": { "code": { "type": "string" }, "message": { "type": "string" } },
                    } },
                },
            },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let error = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } });
    let mut responses = serde_json::Map::new();
    responses.insert("200".into(), json!({ "description": "done", "content": { endpoint.answers: {} } }));
    for (status, meaning) in endpoint.statuses {
        let content = if *status < 400 { json!({ endpoint.answers: {} }) } else { error.clone() };
        responses.insert(status.to_string(), json!({ "description": meaning, "content": content }));
    }
    responses.insert("default".into(), json!({ "description": "any other error", "content": error }));
    let mut parameters: Vec<Value> = parameters(endpoint.path)
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    parameters.extend(endpoint.query.iter().map(|(name, kind, meaning)| {
        let schema = json!({ "type": kind.trim_end_matches('?') });
        let required = !kind.ends_with('?');
        json!({ "name": name, "in": "query", "required": required, "schema": schema, "description": meaning })
    }));
    let mut operation = json!({
        "operationId": format!("{:?}", endpoint.call),
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    });
    match endpoint.access() {
        Access::Watch => {}
        // Either will do: on loopback no token is needed.
        Access::Read => operation["security"] = json!([{}, { "token": [] }]),
        Access::Change => operation["security"] = json!([{ "token": [] }]),
    }
    if !endpoint.body.is_empty() {
        let property = |(name, kind, meaning): &(&str, &str, &str)| {
            ((*name).to_owned(), json!({ "type": kind.trim_end_matches('?'), "description": meaning }))
        };
        let properties: serde_json::Map<String, Value> = endpoint.body.iter().map(property).collect();
        let required: Vec<&str> =
            endpoint.body.iter().filter(|field| !field.1.ends_with('?')).map(|field| field.0).collect();
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        operation["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
    }
    operation
}

fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_call_and_every_route_stands_in_the_table_once() {
        let calls: HashSet<Call> = ENDPOINTS.iter().map(|endpoint| endpoint.call).collect();
        let routes: HashSet<(&str, &str)> = ENDPOINTS.iter().map(|it| (it.method.word(), it.path)).collect();
        assert_eq!((calls.len(), routes.len()), (ENDPOINTS.len(), ENDPOINTS.len()));
    }

    #[test]
    fn openapi_has_every_endpoint_with_its_parameters_and_security() {
        let document = openapi();
        for endpoint in ENDPOINTS {
            let operation = &document["paths"][endpoint.path][endpoint.method.word().to_ascii_lowercase()];
            assert_eq!(operation["summary"], endpoint.summary, "{}", endpoint.path);
            let open = endpoint.access() == Access::Watch;
            assert_eq!(operation.get("security").is_none(), open, "{}", endpoint.path);
            let named = operation["parameters"].as_array().map_or(0, Vec::len);
            assert_eq!(named, endpoint.path.matches('{').count() + endpoint.query.len());
        }
    }
}
