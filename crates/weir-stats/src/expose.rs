//! Metric names, help texts and labels in one table, and the Prometheus text format (version 0.0.4) written
//! from it.
//!
//! `cargo xtask docs` generates the reference page of metrics from the same table, so a name that is exported
//! is a name that is documented. The format is written here rather than by `prometheus-client`: that
//! crate writes OpenMetrics, which strips `_total` from `# TYPE` lines, so that every reader of the older
//! format (and `promtool check metrics`) sees untyped counters.

use std::fmt::Write as _;

use crate::cells::{BUCKET_COUNT, HistogramSum};

/// The `content-type` for the result of [`Exposition::into_text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; starts at 0 with the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations in buckets, with sum and count.
    Histogram,
}

impl Kind {
    /// The word after `# TYPE name`.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric: everything the exposition and the reference page say about it.
#[derive(Debug)]
pub struct Metric {
    /// Full name with unit and `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Label names, in the order in which the values are passed.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

/// Declares the metrics: a constant for each and the list of all.
macro_rules! metrics {
    ($($constant:ident = $name:literal $kind:ident [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: Metric = Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*

        /// Every metric, in the order in which they are exported.
        pub const ALL: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    BUILD_INFO = "weir_build_info" Gauge ["version"] "Always 1; the label says which build runs.";
    CONFIG_GENERATION = "weir_config_generation" Gauge [] "Generation of the configuration in force; grows with every change that took effect.";
    LAST_RELOAD_SUCCESSFUL = "weir_config_last_reload_successful" Gauge [] "1 if the last reload took effect, 0 if it was refused.";
    LAST_RELOAD_TIMESTAMP = "weir_config_last_reload_timestamp_seconds" Gauge [] "When the last reload was tried, Unix time.";
    RELOADS = "weir_reloads_total" Counter ["result"] "Reloads tried, by result: `applied`, `unchanged`, `refused` (mistakes in the file) or `failed` (unreadable file, port in use).";
    DNS_LOOKUPS = "weir_dns_lookups_total" Counter ["result"] "Look-ups of backends' names, by what they brought: `good`, `empty` (no address that may be used) or `failed` (no answer).";
    DNS_REFUSED = "weir_dns_addresses_refused_total" Counter ["reason"] "Addresses of answers that were not used, by the key of `[dns]` that says so: `allow_address` or `max_members`.";
    DNS_OTHER_ADDRESS = "weir_dns_other_address_total" Counter [] "Times that another address of a name of one backend came into use because the one before did not accept within `dns.try_next`, or refused; found by requests and probes.";
    DNS_NAME_FAILED = "weir_dns_name_failed" Gauge ["pool", "name"] "1 if the last look-up of a name that stands for several backends brought nothing, so that they stay as they are, else 0.";
    MAP_LINES = "weir_map_lines" Gauge ["map"] "Lines of a map's file that are in force.";
    MAP_VERSIONS = "weir_map_versions_total" Counter ["map", "result"] "Versions of a map's file that were found on the disk, by what became of them: `applied`, or `refused` (mistakes, or unreadable).";
    MAP_STALE = "weir_map_stale" Gauge ["map"] "1 if the file of a map as it is now is not what is in force, else 0.";
    JWT_KEYS = "weir_jwt_keys" Gauge ["source"] "Keys of a JWK set that is fetched (`auth.jwt`) that tokens are held against; 0 before the first fetch, and once they are `stale`.";
    JWT_KEYS_SKIPPED = "weir_jwt_keys_skipped" Gauge ["source"] "Keys of the last answer that can't be used: of another kind, or with a secret.";
    JWT_KEYS_AGE = "weir_jwt_keys_age_seconds" Gauge ["source"] "For how long no fetch has confirmed the keys; nothing before the first.";
    JWT_KEY_FETCHES = "weir_jwt_key_fetches_total" Counter ["source", "result"] "Fetches of a JWK set, by result: `fetched` or `failed`.";
    JWT_KEY_WAITS = "weir_jwt_key_waits_total" Counter ["source", "result"] "Requests with a token that none of the keys at hand has signed: `waited` for a fetch, or were answered without because as many waited as may (`no_place`), or as many of their client (`client_full`), or the last fetch had just begun (`too_soon`).";
    WORKERS = "weir_workers" Gauge [] "Worker threads.";
    SESSIONS = "weir_sessions" Gauge [] "Client connections and UDP flows open now, over all listeners.";
    MEMORY_IN_USE = "weir_memory_in_use_bytes" Gauge [] "Memory that connections have in use, as far as it counts against `runtime.memory`; as of the last 2 s, like the following.";
    MEMORY_BUDGET = "weir_memory_budget_bytes" Gauge [] "Memory that connections may have in use: `runtime.memory`, less what the cache may take.";
    MEMORY_CLIENT_MAX = "weir_memory_client_max_bytes" Gauge [] "Memory that the connections of one client may have in use (`runtime.memory_share_per_client`), on all workers together.";
    MEMORY_LARGEST_CLIENT = "weir_memory_largest_client_bytes" Gauge [] "Memory in use by the client that has most; 0 while less than an eighth of the budget is in use.";
    MEMORY_CLIENT_REFUSALS = "weir_memory_client_refusals_total" Counter [] "How often a client was refused memory that the budget had, because of its share (`runtime.memory_share_per_client`).";
    BLOCKING_REFUSED = "weir_blocking_refused_total" Counter [] "Questions to a disk or a resolver that were not asked, because 512 waited for an answer already or the system granted no thread. They are asked again later.";
    PANICS = "weir_panics_total" Counter [] "Panics caught while serving one connection, or in a task of the control side or a thread of the kernel plane. Every one is a bug in Weir; the log names the task, and says where it doesn't begin again by itself.";
    REQUESTS = "weir_requests_total" Counter ["listener", "code"] "Requests answered, by class of status; HTTP listeners.";
    REQUEST_DURATION = "weir_request_duration_seconds" Histogram ["listener"] "From the first byte of a request to the last byte of its response; HTTP listeners.";
    ROUTE_REQUESTS = "weir_route_requests_total" Counter ["listener", "route", "code"] "Requests answered, by route and class of status; listeners with `route_metrics`. What no route took is `(default)`.";
    ROUTE_DURATION = "weir_route_request_duration_seconds" Histogram ["listener", "route"] "From the first byte of a request to the last byte of its response, by route; listeners with `route_metrics`.";
    CONNECTIONS = "weir_connections" Gauge ["listener"] "Client connections (UDP: flows) open now.";
    KERNEL_PACKETS = "weir_l4_packets_total" Counter ["listener", "verdict"] "Packets that came for the listener or from its backends, by what became of them, each under one verdict; listeners on the kernel plane.";
    KERNEL_FLOWS = "weir_l4_flows" Gauge ["listener"] "Flows that are remembered, ended ones for a while included; listeners on the kernel plane.";
    KERNEL_ATTACHED = "weir_l4_attached" Gauge ["interface"] "Whether the packet program runs at the interface: 0 where it is to and does not. Interfaces of the kernel plane.";
    KERNEL_LOST = "weir_l4_attachments_lost_total" Counter [] "Times that an interface was found without the packet program that had been attached to it: another process had put its own there, or the interface came anew.";
    KERNEL_LEFT_OUT = "weir_l4_left_out" Gauge ["what"] "What of this host the packet program has no room for: its addresses (`addresses`), and interfaces into other namespaces (`peers`).";
    CONNECTIONS_TOTAL = "weir_connections_total" Counter ["listener"] "Client connections (UDP: flows) accepted.";
    BYTES = "weir_bytes_total" Counter ["listener", "direction"] "Bytes from clients (`received`) and to clients (`sent`): heads and content; what is sent in chunks with their sizes, what is received so without.";
    REJECTED = "weir_rejected_total" Counter ["listener", "reason"] "What was refused before or instead of forwarding, by reason.";
    WOULD_REJECT = "weir_would_reject_total" Counter ["listener", "reason"] "What was let pass and would have been refused, but for `dry_run` or `report`, by reason; HTTP listeners.";
    RATE_LIMIT_OVERFLOW = "weir_rate_limit_overflow_total" Counter ["listener"] "Times a key of a `rate_limit` found no room among its `keys` and shared a bucket; HTTP listeners.";
    PEERS_TOLD = "weir_peers_told" Gauge ["peer"] "1 if the Weir at this address of `[peers]` is told what this one counts, and has been told everything; else 0.";
    PEERS_HEARD = "weir_peers_heard" Gauge [] "Processes of other Weirs that this one listens to; `[peers]`.";
    PEERS_LISTENING = "weir_peers_listening" Gauge [] "1 if this Weir listens at `peers.bind`, else 0.";
    PEERS_LIMITS = "weir_peers_limits" Gauge [] "Rate limits that are counted together with other Weirs.";
    PEERS_SENT_ENTRIES = "weir_peers_sent_entries_total" Counter ["peer"] "Counts and debts of keys that the Weir at this address was told.";
    PEERS_SENT_BYTES = "weir_peers_sent_bytes_total" Counter ["peer"] "Bytes of this, without those of TLS.";
    PEERS_BEHIND = "weir_peers_behind_total" Counter ["peer"] "Times that a Weir read so slowly that what waited for it was dropped, and it was told everything again.";
    PEERS_RECEIVED_ENTRIES = "weir_peers_received_entries_total" Counter [] "Counts and debts of keys that other Weirs have told this one.";
    PEERS_RECEIVED_BYTES = "weir_peers_received_bytes_total" Counter [] "Bytes of this, without those of TLS.";
    PEERS_UNKNOWN = "weir_peers_unknown_total" Counter [] "Messages about limits that this Weir does not have: its config differs from that of another one.";
    PEERS_REFUSED = "weir_peers_refused_total" Counter ["reason"] "Connections to `peers.bind` that ended because the other side did not prove to be a peer (`stranger`: for one, it has another secret), or because of what it said (`mistake`).";
    ADAPTIVE_LIMIT = "weir_adaptive_limit_requests" Gauge ["listener", "route"] "Requests that may be under way now by a `concurrency_limit` with `adaptive`; of a listener's own, without a route.";
    ADAPTIVE_UNLOADED = "weir_adaptive_limit_unloaded_seconds" Gauge ["listener", "route"] "What an answer takes when nothing waits, as that limit has found; 0 until it is known.";
    SQLI = "weir_sqli_requests_total" Counter ["listener", "verdict"] "Requests on routes with `sqli`, by what was found; listeners that have such routes.";
    AUTH = "weir_auth_requests_total" Counter ["listener", "result"] "Requests on routes with `auth`, by what came of asking who they are from; listeners that have such routes.";
    AUTH_FORGOTTEN = "weir_auth_forgotten_total" Counter ["listener"] "Answers of services that were forgotten before their time, for there were more than `entries` of `remember`; listeners that have routes with `auth`.";
    NAMES_FORGOTTEN = "weir_names_forgotten_total" Counter ["listener"] "Clients without a flow that senders of datagrams had named by a PROXY header and that were forgotten before `client_idle` was over, for there were more than 65,536; udp listeners with `accept_proxy`.";
    MIRRORED = "weir_mirrored_requests_total" Counter ["listener", "result"] "Requests that were to be copied (`mirror`), by what became of the copy; listeners that have such routes.";
    ENDS = "weir_ends_total" Counter ["listener", "reason"] "Exchanges, TCP sessions and UDP flows that ended, by the end reason of the access log.";
    MYSQL_LOGINS = "weir_mysql_logins_total" Counter ["listener", "result"] "MySQL logins, by how clients showed who they are, or why they were not let in.";
    MYSQL_STATEMENTS = "weir_mysql_statements_total" Counter ["listener", "role", "reason"] "Statements by the role of the server that they went to (`primary` or `any`), and why.";
    MYSQL_PINS = "weir_mysql_pins_total" Counter ["listener", "reason"] "Times that a session began to keep its connection to a server, by what it had left there; `plugin`: the account proves something else than a password, and no statement is looked at.";
    MYSQL_RERUNS = "weir_mysql_reruns_total" Counter ["listener", "reason"] "Statements that ran again on another server: theirs was `lost`, or had refused them as `read_only`.";
    MYSQL_PREPARED_REFUSALS = "weir_mysql_prepared_refusals_total" Counter ["listener", "reason"] "Statements that were not prepared because their texts are held: those of the `session` are longer than `prepared_text`, or there was no `memory` left for them (`runtime.memory`).";
    MYSQL_CATCH_UPS = "weir_mysql_catch_ups_total" Counter ["listener", "result"] "Reads whose server had to wait for what their session had written: it `waited`, or was `behind` and the primary was asked.";
    MYSQL_LOGINS_WAITED = "weir_mysql_logins_waited_total" Counter ["listener"] "MySQL logins with the password itself that waited for their turn (`full_logins`, `full_logins_per_client`, `full_logins_per_account`).";
    TLS_HANDSHAKES = "weir_tls_handshakes_total" Counter ["listener", "result"] "TLS handshakes with clients, by result: `full` and `resumed` came about, the others say why not.";
    CERTIFICATE_EXPIRY = "weir_certificate_expiry_timestamp_seconds" Gauge ["listener", "certificate"] "When the certificate stops being good, Unix time.";
    PEERS_CERTIFICATE_EXPIRY = "weir_peers_certificate_expiry_timestamp_seconds" Gauge ["certificate"] "When the certificate by which other Weirs know this one (`peers.tls`) stops being good, Unix time.";
    CRL_EXPIRY = "weir_crl_expiry_timestamp_seconds" Gauge ["listener", "pool", "file"] "When the list of revoked certificates stops being good, Unix time: from then on no certificate of its authority is taken. Of a listener's clients, of a pool's backends, or, with neither name, of other Weirs (`peers.tls`).";
    TICKET_KEYS_READ = "weir_ticket_keys_read_timestamp_seconds" Gauge ["listener"] "When the ticket keys of `ticket_keys` that are in force were read, Unix time.";
    TICKET_KEYS_GOOD = "weir_ticket_keys_last_read_successful" Gauge ["listener"] "1 if the files of `ticket_keys` held keys when they were looked at last, 0 if older keys are in force because they did not.";
    ACME_ORDERS = "weir_acme_orders_total" Counter ["certificate", "result"] "Attempts to get a certificate, by result: `issued`, `away` (the authority could not be spoken with), `refused` (by it), `store` (our disk), `dns` (the record for `dns-01` did not get into its zone), `late` (ordered and not here yet: the same order is asked for again) or `held` (not tried, for the authority has refused all orders of the account for a time, or another Weir with the same `store` was refused this one).";
    ACME_LAST_SUCCESSFUL = "weir_acme_last_attempt_successful" Gauge ["certificate"] "1 if the last attempt to get the certificate succeeded or none was needed, 0 if it failed.";
    ACME_NEXT = "weir_acme_next_attempt_timestamp_seconds" Gauge ["certificate"] "When the certificate will be renewed, or tried again, Unix time.";
    ACME_CAME = "weir_acme_issued_timestamp_seconds" Gauge ["certificate"] "When the certificate was got, Unix time.";
    ON_DEMAND_NAMES = "weir_acme_on_demand_names_total" Counter ["directory", "result"] "Names that a certificate was to be got for on demand (`on_demand`), or renewed, by what came of it: `issued`, `stored` (it was in the store), `refused` (by the service at `ask`), `unanswered` (by it), `busy` (`max_names` were under way), `limited` (more orders than `rate` and `burst`, or the authority, allow), `away` (the authority could not be spoken with a moment ago) or `failed` (no certificate came).";
    ON_DEMAND_HANDSHAKES = "weir_acme_on_demand_handshakes_total" Counter ["directory", "result"] "Handshakes over TCP for a name whose certificate was not in memory: `served` after a wait, `refused` after a wait, `timed_out` (`wait`), `left` (by the client), or without a wait: `no_place` (none in the store, and `max_waiting` others wait), `remembered` (refused or failed a moment ago).";
    ON_DEMAND_WAITING = "weir_acme_on_demand_waiting" Gauge ["directory"] "Handshakes that wait for a certificate that is not in the store.";
    ON_DEMAND_UNDER_WAY = "weir_acme_on_demand_names" Gauge ["directory"] "Names that are asked about or ordered now.";
    ON_DEMAND_HELD = "weir_acme_on_demand_certificates" Gauge ["directory"] "Certificates held in memory; the store may have more.";
    ON_DEMAND_EVICTIONS = "weir_acme_on_demand_evictions_total" Counter ["directory"] "Certificates that gave way to others in memory (`max_certificates`).";
    CACHE_REQUESTS = "weir_cache_requests_total" Counter ["listener", "result"] "Requests on routes with a cache, by what became of them there.";
    CACHE_BYTES = "weir_cache_bytes" Gauge [] "Memory that what is kept takes.";
    CACHE_BUDGET = "weir_cache_budget_bytes" Gauge [] "Memory that what is kept may take (`[cache] memory`).";
    CACHE_LINGERING = "weir_cache_lingering_bytes" Gauge [] "Memory of responses that had to give way and that slow clients still read.";
    CACHE_OBJECTS = "weir_cache_objects" Gauge [] "Responses kept.";
    CACHE_EVICTIONS = "weir_cache_evictions_total" Counter [] "Responses that gave way to others.";
    CACHE_PURGED = "weir_cache_purged_total" Counter [] "Responses that purges took out or made out of date.";
    CACHE_BACKGROUND = "weir_cache_background_fetches" Gauge [] "Fetches under way that no client waits for.";
    CACHE_BACKGROUND_REFUSED = "weir_cache_background_refused_total" Counter [] "Fetches that could not go on or begin without a client that waits for them, because `[cache] background_fetches` were under way, or it took a minute.";
    CACHE_ENCODINGS = "weir_cache_encodings_total" Counter [] "Times that an encoder ran over content to keep it encoded too.";
    COMPRESSED = "weir_compressed_responses_total" Counter ["listener", "coding"] "Responses that could be compressed and whose client asked for it, by what came of it.";
    COMPRESSION_BYTES = "weir_compression_bytes_total" Counter ["listener", "content"] "Content that was compressed, before (`plain`) and after (`encoded`).";
    REPLACED = "weir_replaced_answers_total" Counter ["listener"] "Answers of backends that an `error_page` with `intercept` took the place of.";
    THROTTLED = "weir_bandwidth_waits_total" Counter ["listener", "direction"] "Times a connection or a response waited for `bandwidth`, or a flow had no room: to the client (`sent`) or from it (`received`); listeners with `bandwidth`, or a route that has it.";
    LOG_DROPPED = "weir_access_log_dropped_total" Counter ["listener"] "Access-log lines dropped because the queue to the writer was full.";
    LOG_MISSING = "weir_access_log_missing_total" Counter ["log", "reason"] "Lines that are not in an access log: left out by its conditions (`filter`) or its `share`, dropped because the queue to the writer was full, or not taken by the target; or that are there in part (`cut`).";
    LOG_WAITS = "weir_access_log_waiting" Gauge ["log"] "1 while lines of an access log wait in memory, because its file can't be opened or its daemon takes none, else 0.";
    LOG_LOST = "weir_access_log_lost_total" Counter [] "Access-log lines that their target did not take: a full disk, a reader that is gone or stands still.";
    OWN_LOG_DROPPED = "weir_log_dropped_total" Counter [] "Lines of the program's own log that were dropped: nobody read its standard error in time, or it took no more.";
    QUIC_HANDSHAKES = "weir_quic_handshakes_total" Counter ["result"] "QUIC handshakes begun, by what came of them: `established`, `timed_out` or `refused`.";
    QUIC_RETRIES = "weir_quic_retries_total" Counter [] "QUIC clients told to prove their address first, because many handshakes were under way.";
    QUIC_FORWARDED = "weir_quic_forwarded_total" Counter [] "QUIC datagrams passed on to another worker, or to the process before or after an upgrade.";
    QUIC_DROPPED = "weir_quic_dropped_total" Counter ["reason"] "QUIC datagrams dropped: no connection has them (`unknown`), a queue between workers was full (`queue_full`), passed on for a socket that is closed (`no_socket`), of a connection of another listener (`other_listener`), a new connection without room (`no_room`).";
    QUIC_STATELESS = "weir_quic_stateless_answers_total" Counter [] "Answers to QUIC datagrams without a connection: version negotiation, stateless resets, refusals.";
    QUIC_MIGRATIONS = "weir_quic_migrations_total" Counter [] "QUIC clients that moved to another address and proved it.";
    QUIC_WITHHELD = "weir_quic_withheld_total" Counter [] "QUIC datagrams not sent to an address that a client has not proved yet, because too little came from there.";
    QUIC_EARLY = "weir_quic_early_requests_total" Counter [] "HTTP/3 requests served before their client's handshake was over (`early_data`).";
    BACKEND_UP = "weir_backend_up" Gauge ["pool", "backend"] "1 if the backend may be chosen for new work, else 0: a backend that the operator drains, too.";
    BACKEND_HEALTHY = "weir_backend_healthy" Gauge ["pool", "backend"] "1 if neither its probes nor an ejection keep the backend out, else 0; what the operator says of it does not count.";
    POOL_BACKENDS = "weir_pool_backends" Gauge ["pool", "state"] "Backends of the pool by state.";
    BACKEND_WEIGHT = "weir_backend_weight" Gauge ["pool", "backend"] "Weight in force.";
    BACKEND_CONNECTIONS = "weir_backend_connections" Gauge ["pool", "backend"] "Connections to the backend open now, idle ones included.";
    BACKEND_IN_FLIGHT = "weir_backend_in_flight" Gauge ["pool", "backend"] "Requests (TCP: connections, UDP: flows) that the backend is working on now.";
    BACKEND_CONNECTIONS_TOTAL = "weir_backend_connections_total" Counter ["pool", "backend"] "Connections opened to the backend.";
    BACKEND_CONNECT_FAILURES = "weir_backend_connect_failures_total" Counter ["pool", "backend"] "Connections to the backend that did not come about.";
    BACKEND_REUSED = "weir_backend_connections_reused_total" Counter ["pool", "backend"] "Requests that used a connection kept from before; pools of HTTP listeners.";
    BACKEND_ENDED_IDLE = "weir_backend_idle_connections_ended_total" Counter ["pool", "backend"] "Idle connections of HTTP/1.1 that the backend had closed or reset, or sent something on, before they were used again: they are set aside, and cost no request; pools of HTTP listeners.";
    BACKEND_REQUESTS = "weir_backend_requests_total" Counter ["pool", "backend", "code"] "Requests sent to the backend, by class of status; `none` got no response.";
    BACKEND_RESPONSE = "weir_backend_response_seconds" Histogram ["pool", "backend"] "From the request sent to the head of the response received; pools of HTTP listeners.";
    BACKEND_BYTES = "weir_backend_bytes_total" Counter ["pool", "backend", "direction"] "Bytes from the backend (`received`) and to it (`sent`).";
    BACKEND_TLS = "weir_backend_tls_handshakes_total" Counter ["pool", "backend", "result"] "TLS handshakes with the backend: `full`, `resumed` or `failed`.";
    BACKEND_PICKED = "weir_backend_picked_total" Counter ["pool", "backend", "protocol"] "Connections by what is spoken on them, `h3`, `h2` or `h1`; pools with `protocol` `\"auto\"` or `\"h3\"`.";
    BACKEND_FELL_BACK = "weir_backend_fallbacks_total" Counter ["pool", "backend"] "Times that no connection of HTTP/3 came about within `fall_back_after`, and TCP was taken; pools with `protocol = \"h3\"`.";
    BACKEND_FAILURES = "weir_backend_failures_total" Counter ["pool", "backend"] "Failures of real traffic that passive health counted.";
    BACKEND_EJECTIONS = "weir_backend_ejections_total" Counter ["pool", "backend"] "Times passive health ejected the backend.";
    BACKEND_OUTLIERS = "weir_backend_outliers_total" Counter ["pool", "backend"] "Times the backend was ejected because it failed much more often than the others (`success_rate`).";
    BACKEND_ENDED = "weir_backend_connections_cut_total" Counter ["pool", "backend"] "Connections to the backend that were ended because it went down (`on_down`), idle ones included.";
    AGENT_CHECKS = "weir_agent_checks_total" Counter ["pool", "backend", "result"] "Questions to the backend's agent, by result: `good` or `bad`; pools with `agent`.";
    PROBES = "weir_probes_total" Counter ["pool", "backend", "result"] "Health probes, by result: `good`, `bad`, or `unsent`, which says nothing of the backend: no descriptor, port or memory was left here, or it could not go to a listener's address (`health.at`).";
    PROBE_DURATION = "weir_probe_duration_seconds" Gauge ["pool", "backend"] "How long the last health probe took.";
    RETRIES = "weir_retries_total" Counter ["pool"] "Attempts after the first.";
    RETRY_REASONS = "weir_retry_reasons_total" Counter ["pool", "reason"] "Attempts after the first, by what the one before had failed of.";
    REDISPATCHES = "weir_redispatches_total" Counter ["pool"] "Attempts after the first that went to another backend.";
    HEDGES = "weir_hedges_total" Counter ["pool"] "Requests sent to a second backend beside the first (`hedge`).";
    HEDGE_RESULTS = "weir_hedge_results_total" Counter ["pool", "result"] "Requests that were due to be sent to a second backend beside the first, by what became of that.";
    HEDGE_DELAY = "weir_hedge_delay_seconds" Gauge ["pool"] "After how long the pool asks a second backend now; absent while too few answers are known.";
    BREAKER_OPENED = "weir_breaker_opened_total" Counter ["pool"] "Times the pool's breaker opened; pools that have one.";
    BUFFERED_REQUESTS = "weir_buffered_requests_total" Counter ["pool"] "Requests whose body was whole before a backend was asked.";
    UNBUFFERED_REQUESTS = "weir_unbuffered_requests_total" Counter ["pool"] "Requests whose body went on as it came, because it is longer than `buffer` lets it be, or memory or disk are short.";
    READ_AHEAD = "weir_read_ahead_responses_total" Counter ["pool"] "Responses that had left their backend before their client had all of them.";
    BUFFER_FILES = "weir_buffer_files" Gauge [] "Files that hold bodies for slow clients now; with `runtime.buffer_directory`.";
    BUFFER_FILE_BYTES = "weir_buffer_file_bytes" Gauge [] "Bytes in these files.";
    BUFFER_FILE_LIMIT = "weir_buffer_file_limit_bytes" Gauge [] "Bytes that may be in these files (`runtime.buffer_files`).";
    BUFFER_FILES_MADE = "weir_buffer_files_made_total" Counter [] "Such files that were made.";
    BUFFER_FILE_REFUSALS = "weir_buffer_file_refusals_total" Counter ["reason"] "Times that bytes were not put into such a file, so that the body streamed, or were `lost` there.";
    BREAKER_OPEN = "weir_breaker_open" Gauge ["pool"] "1 while the pool's breaker refuses requests or tries a few, else 0; pools that have one.";
    QUEUED = "weir_queued_total" Counter ["pool"] "Exchanges that waited because every backend was at `max_connections`.";
    PARKED = "weir_mysql_parked_total" Counter ["pool"] "Statements and logins that waited because no server was in the role that they needed.";
    PARK_REFUSALS = "weir_mysql_park_refusals_total" Counter ["pool", "reason"] "Statements and logins that were told so because no server was in the role that they needed: `full`, for `park_max` waited already, or `timeout`, after `park`.";
    MYSQL_LOST = "weir_mysql_lost_total" Counter ["pool", "result"] "Statements whose server was lost, took no writes any more or was not there: they `moved` to another, or `failed`, with an error or the end of the connection; sessions that lost what they had on a server count as failed.";
    MYSQL_LAG_SECONDS = "weir_mysql_lag_seconds" Gauge ["pool", "backend"] "For how long a secondary has lacked a transaction that the primary had, at least; absent while nobody knows.";
    MYSQL_LAG_TRANSACTIONS = "weir_mysql_lag_transactions" Gauge ["pool", "backend"] "Transactions that the primary had executed and a secondary had not when they were last asked.";
    MYSQL_ROLE = "weir_mysql_role" Gauge ["pool", "backend", "role"] "1 for the role that a MySQL server has: `primary`, `secondary`, or `none`.";
    MYSQL_PREPARED = "weir_mysql_prepared_statements" Gauge ["pool", "backend"] "Statements that are prepared on Weir's connections to a MySQL server (`prepared_statements`).";
    MYSQL_STATEMENTS_CLOSED = "weir_mysql_statements_closed_total" Counter ["pool", "backend"] "Prepared statements that were closed to make room for others at a MySQL server: there were more than `prepared_statements`, or the server had no room (error 1461).";
    MYSQL_LOOKS = "weir_mysql_looks_total" Counter ["pool", "backend", "result"] "Times that a MySQL server was asked for its role, by result: `answered` or `failed`.";
    MYSQL_PRIMARY_CHANGES = "weir_mysql_primary_changes_total" Counter ["pool"] "Times that another server of the pool became the primary.";
    MYSQL_WITHOUT_PRIMARY = "weir_mysql_without_primary_seconds_total" Counter ["pool"] "Time for which the pool had no primary.";
    MYSQL_FAILOVER = "weir_mysql_failover_seconds" Histogram ["pool"] "From the last sign of a primary to the next that takes writes.";
    FALLBACKS = "weir_fallbacks_total" Counter ["pool"] "Requests that went to the `fallback_pool` because no backend of this pool could serve.";
    LAST_RESORT = "weir_last_resort_total" Counter ["pool"] "Choices of a backend that is down or ejected, because no other was left.";
    PANIC = "weir_panic_total" Counter ["pool"] "Choices among all ordinary backends, because fewer were healthy than `panic_below` asks for.";
    QUEUE_DEPTH = "weir_queue_depth" Gauge ["pool"] "Exchanges waiting now.";
    PROCESS_CPU = "process_cpu_seconds_total" Counter [] "User and system CPU time of the process.";
    PROCESS_RESIDENT = "process_resident_memory_bytes" Gauge [] "Resident memory.";
    PROCESS_VIRTUAL = "process_virtual_memory_bytes" Gauge [] "Virtual memory.";
    PROCESS_OPEN_FDS = "process_open_fds" Gauge [] "Open file descriptors.";
    PROCESS_MAX_FDS = "process_max_fds" Gauge [] "Most file descriptors the process may open.";
    PROCESS_THREADS = "process_threads" Gauge [] "Threads.";
    PROCESS_START = "process_start_time_seconds" Gauge [] "When the process started, Unix time.";
}

/// The text of one scrape while it is being written. All samples of a metric must follow its
/// [`Self::family`].
#[derive(Default)]
pub struct Exposition {
    text: String,
}

/// One metric being written.
pub struct Family<'a> {
    text: &'a mut String,
    metric: &'static Metric,
}

impl Exposition {
    /// Writes the head of a metric; write the samples to the returned family.
    pub fn family(&mut self, metric: &'static Metric) -> Family<'_> {
        let _ = writeln!(self.text, "# HELP {} {}", metric.name, metric.help.replace('\\', "\\\\"));
        let _ = writeln!(self.text, "# TYPE {} {}", metric.name, metric.kind.word());
        Family { text: &mut self.text, metric }
    }

    /// Writes a metric without labels and its one sample.
    pub fn single(&mut self, metric: &'static Metric, value: f64) {
        self.family(metric).sample(&[], value);
    }

    /// The text written so far.
    pub fn into_text(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// Writes one sample. `values` are the values of the metric's labels, in its order.
    pub fn sample(&mut self, values: &[&str], value: f64) {
        debug_assert_eq!(values.len(), self.metric.labels.len(), "{} has other labels", self.metric.name);
        self.line("", values, None, value);
    }

    /// Writes the buckets, sum and count of a histogram: one bucket per power of two, half of those that are
    /// kept, so that a thousand backends stay readable.
    pub fn histogram(&mut self, values: &[&str], sum: &HistogramSum) {
        let mut below = 0;
        for (index, count) in sum.counts.iter().enumerate() {
            below += count;
            if index % 2 == 0 && index + 1 < BUCKET_COUNT {
                let bound = number(HistogramSum::upper_bound_seconds(index));
                self.line("_bucket", values, Some(&bound), below as f64);
            }
        }
        self.line("_bucket", values, Some("+Inf"), below as f64);
        self.line("_sum", values, None, sum.sum_us as f64 / 1e6);
        self.line("_count", values, None, below as f64);
    }

    fn line(&mut self, suffix: &str, values: &[&str], bound: Option<&str>, value: f64) {
        self.text.push_str(self.metric.name);
        self.text.push_str(suffix);
        let labels = self.metric.labels.iter().copied().zip(values.iter().copied());
        let mut separator = '{';
        for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
            self.text.push(separator);
            separator = ',';
            let _ = write!(self.text, "{name}=\"");
            escape(self.text, value);
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        self.text.push_str(&number(value));
        self.text.push('\n');
    }
}

/// Label values come from the config; a quote or line end in one must not start a new sample.
fn escape(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

/// Counts are written as integers, other values with as many digits as they need.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 9e15 { format!("{}", value as i64) } else { format!("{value}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::cells::Histogram;

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let names: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert_eq!(metric.kind == Kind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{} needs a sentence", metric.name);
            assert!(metric.kind != Kind::Histogram || metric.name.ends_with("_seconds"), "{}", metric.name);
        }
    }

    #[test]
    fn a_label_value_can_not_break_out_of_its_quotes() {
        let mut out = Exposition::default();
        out.family(&WORKERS).sample(&[], 2.0);
        out.family(&CONNECTIONS).sample(&["a\"} 1\nevil 2\\"], 1.5);
        let text = out.into_text();
        assert!(text.contains("weir_workers 2\n"), "{text}");
        assert!(text.contains("weir_connections{listener=\"a\\\"} 1\\nevil 2\\\\\"} 1.5\n"), "{text}");
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn histogram_buckets_are_cumulative_and_end_with_the_count() {
        let histogram = Histogram::default();
        for us in [10, 100, 100, 5_000, 90_000_000] {
            histogram.record(Duration::from_micros(us));
        }
        let mut sum = HistogramSum::default();
        histogram.add_to(&mut sum);
        let mut out = Exposition::default();
        out.family(&REQUEST_DURATION).histogram(&["web"], &sum);
        let text = out.into_text();
        let counts: Vec<f64> = text
            .lines()
            .filter(|line| line.contains("_bucket"))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!(counts.last(), Some(&5.0));
        assert_eq!(counts[counts.len() - 2], 4.0, "90 s is above the largest bound");
        assert!(text.contains("le=\"0.000064\"} 1\n"), "{text}");
        assert!(text.contains("weir_request_duration_seconds_count{listener=\"web\"} 5\n"));
    }
}
