//! Reads and checks the configuration: what the operator asked for.
//!
//! Reads `weir.toml` into a [`Config`]: typed, complete (every default filled in) and cross-checked (every
//! name that is used exists). All mistakes are reported at once. The crate never opens a socket and never
//! reads a clock. Reading the files themselves is the caller's work, so that the same text gives the same
//! answer everywhere.
//!
//! The crate is laid out by subject: a key's name, type, default, bounds, text and checks are in one place,
//! in the file of its table. Start reading at `runtime.rs`, the smallest table, then `config.rs` (the whole
//! file) and `parse.rs` (the way from text to config). `setting.rs` explains how one declaration makes both a
//! struct and its keys.
#![forbid(unsafe_code)]

mod acme;
mod action;
mod adaptive;
mod admin;
mod auth;
mod bandwidth;
mod bind;
mod breaker;
mod buffer;
mod cache;
mod client_address;
mod compose;
mod compress;
mod condition;
mod config;
mod diff;
mod dns;
mod error_page;
mod fallback;
mod fields;
mod files;
mod given;
mod headers;
mod hedge;
mod hidden;
mod kernel;
pub mod keys;
mod listener;
mod log;
mod maintenance;
mod map;
mod mirror;
mod mysql;
mod named_files;
mod named_pool;
mod parse;
mod peers;
mod plane;
mod pool;
mod protocol;
mod report;
mod retry;
mod rewrite;
mod route;
mod runtime;
mod screen;
mod setting;
mod shared;
mod source;
mod split;
mod sqli;
mod suggest;
mod syntax;
mod timeout;
mod tls;
pub mod units;
mod uses;
mod values;
mod world;
mod write;

pub use acme::{Acme, AcmeChallenge, DnsProgram, DnsUpdate, ExternalAccount, OnDemand};
pub use action::{Redirect, Respond, RouteAction};
pub use admin::{Admin, AdminBind, AdminTls};
pub use auth::{Account, Authentication, BasicAuth, ForwardAuth, QuestionPart, RememberedAnswers, TokenAuth};
pub use auth::{Alphabet, KEYS_OF_A_NAME_MOST, PublicKey, Signing, TokenKey, decode_base64};
pub use auth::{FetchedKeys, KeySet, KeySource};
pub use bandwidth::{Bandwidth, RouteBandwidth};
pub use breaker::Breaker;
pub use buffer::Buffer;
pub use cache::{Cache, RouteCache, SetCookie};
pub use client_address::ClientAddress;
pub use compose::gather::Root;
pub use compress::{COMPRESSED_TYPES, Coding, CodingLevels, Compress, MediaRange};
pub use condition::{Condition, Others};
pub use config::{Config, ROOT};
pub use diff::{Change, ChangeKind, KeyChange, diff, how_to_change, until_restart};
pub use dns::{Dns, NameServer};
pub use error_page::{ErrorPage, ErrorStatus, PageFile};
pub use headers::{
    AttributeRule, CookieRule, CookieSite, RequestReplacement, ResponseReplacement, ValueRule, ValueRules,
};
pub use headers::{Headers, Marks, MergedHeaders, MergedSide, NewField, RuleOf, is_single_valued};
pub use hedge::{Hedge, HedgeAfter, RouteHedge};
pub use hidden::Hidden;
pub use kernel::Kernel;
pub use listener::unix::UnixSocket;
pub use listener::{Http, Listener, Speaks};
pub use log::{
    AccessFormat, AccessLog, AccessTarget, Facility, Level, LineTemplate, Log, LogLines, MAIN_LOG,
    MOST_ACCESS_LOGS, Syslog, SyslogAddress, SyslogForm, all as all_logs,
};
pub use maintenance::Maintenance;
pub use map::content::{MapContent, MapLine};
pub use map::{EditedMap, LineEdit, MAP_FILE_BYTES, MapFile, MapKind, PoolMap};
pub use mirror::Mirror;
pub use mysql::{ListenerMysql, MysqlAccess, MysqlCompression, MysqlTopology, Passwords, PoolMysql, Reads};
pub use named_files::{FileHolder, FileProblem, FileUse, NamedFiles};
pub use parse::{Checked, all_texts, check_files, check_text, decode, parse};
pub use peers::{Peers, PeersTls};
pub use plane::Plane;
pub use plane::forward::{Forward, PortRange};
pub use pool::hash::{Hash, HashKey};
pub use pool::health::{Agent, Check, GrpcProbe, Health, HttpProbe, OnDown, ProbedAt, Step, TcpProbe};
pub use pool::passive::{Passive, SuccessRate};
pub use pool::protocol::PoolProtocol;
pub use pool::source::Source;
pub use pool::sticky::{SameSite, Sticky};
pub use pool::{Backend, KeepAlive, Pool, ProxyDatagrams, ProxyVersion, Queue, Resolve};
pub use protocol::Protocol;
pub use report::{Problem, Report, Severity};
pub use retry::{Budget, Retry, RetryOn, RouteRetry};
pub use rewrite::Rewrite;
pub use route::{Route, is_position};
pub use runtime::Runtime;
/// `rate_limit`, `concurrency_limit`, `deny_…` and `allow_…`.
pub use screen::ClientScreen;
pub use shared::TakesOver;
pub use split::{Split, SplitPool};
pub use sqli::{Sqli, SqliMode};
pub use suggest::meant;
pub use timeout::{ExchangeTimeouts, HttpLimits, NEVER, Timeouts};
pub use tls::{
    Certificate, CipherPolicy, ClientAuth, ListenerTls, PoolTls, ServerTlsMode, TlsMode, TlsVersion, Verify,
};
pub use values::address::{
    UNIX_PEERS, backend_at, contains, is_backend, is_host_name, is_service, show_backend,
};
pub use values::bind::{Bind, InetBind};
pub use values::host::HostPattern;
pub use values::http::{HttpVersion, is_framing_field, is_written_request_field};
pub use values::interface::InterfacePattern;
pub use values::path::PathPattern;
pub use values::probe::{Expected, Octets};
pub use values::unix::unix_name;
pub use weir_screen::{Pattern, Settings as Screen};
pub use world::World;
pub use write::{SECRET, default_text, quoted, to_toml, to_toml_without_secrets};
