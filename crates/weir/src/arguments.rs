//! Arguments that verbs of the command line take.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use weir_admin::explain::{SqlQuestion, Transaction};
use weir_config::AdminBind;

/// Which config file.
#[derive(Debug, Args)]
pub struct ConfigArgument {
    /// The config file; several are read as one; default $WEIR_CONFIG, ./weir.toml, /etc/weir/weir.toml
    #[arg(long, short, value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

/// Which config file, of commands that are about nothing else: with `--config` or without.
#[derive(Debug, Args)]
pub struct ConfigFiles {
    /// The config file; several are read as one; default $WEIR_CONFIG, ./weir.toml, /etc/weir/weir.toml
    #[arg(value_name = "FILE")]
    file: Vec<PathBuf>,
    /// The same, as other commands name it
    #[arg(long, short, value_name = "FILE", conflicts_with = "file")]
    config: Vec<PathBuf>,
}

impl From<ConfigFiles> for ConfigArgument {
    fn from(files: ConfigFiles) -> ConfigArgument {
        let ConfigFiles { file, config } = files;
        ConfigArgument { config: if file.is_empty() { config } else { file } }
    }
}

/// Which running Weir.
#[derive(Debug, Args)]
pub struct Running {
    #[command(flatten)]
    pub config: ConfigArgument,
    /// Admin address of the running Weir, or `unix:/path`; default `admin.bind` of the config
    #[arg(long, value_name = "ADDRESS", env = "WEIR_ADMIN")]
    pub admin: Option<AdminBind>,
    /// File with the admin token; default `admin.token_file` of the config
    #[arg(long, value_name = "FILE", env = "WEIR_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    #[command(flatten)]
    pub tls: AdminTrust,
}

/// With what TLS is spoken to the admin API. Any of it asks for TLS, as `[admin.tls]` of the config does.
#[derive(Debug, Args)]
pub struct AdminTrust {
    /// Authorities that the admin API's certificate must come from; default the certificate in the config's
    /// `[admin.tls]`, or the system's
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_CA")]
    pub admin_ca: Option<PathBuf>,
    /// Name that its certificate must be for; default the host of its address
    #[arg(long, value_name = "NAME", env = "WEIR_ADMIN_NAME")]
    pub admin_name: Option<String>,
    /// Client certificate that is shown to it
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_CERT", requires = "admin_key")]
    pub admin_cert: Option<PathBuf>,
    /// Key of the client certificate
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_KEY", requires = "admin_cert")]
    pub admin_key: Option<PathBuf>,
}

/// What `weir cache purge` takes out.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").args(["path", "prefix", "tag", "all"]))]
#[command(group = clap::ArgGroup::new("any")
    .args(["host", "path", "prefix", "tag", "all"]).required(true).multiple(true))]
pub struct Purge {
    /// Of this host; default every host
    #[arg(long, conflicts_with_all = ["tag", "all"])]
    pub host: Option<String>,
    /// Of this path as backends see it, whatever the query
    #[arg(long)]
    pub path: Option<String>,
    /// Of all paths that begin so
    #[arg(long)]
    pub prefix: Option<String>,
    /// With this tag in `surrogate-key` or `cache-tag`
    #[arg(long)]
    pub tag: Option<String>,
    /// Everything
    #[arg(long)]
    pub all: bool,
    /// Make them out of date instead: they are confirmed before they are given again
    #[arg(long)]
    pub soft: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// Which limits `weir limits show` shows.
#[derive(Args, Debug)]
pub struct ShownLimits {
    /// Of this listener and its routes
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Of routes of this name
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// At most so many keys of each limit, those refused most often
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub keys: usize,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir limits clear` has forgotten.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("whose").args(["client", "key", "all"]).required(true))]
pub struct Cleared {
    /// What is counted by this address, or by its network
    #[arg(long, value_name = "IP")]
    pub client: Option<IpAddr>,
    /// What is counted by this value of a header, a cookie or a text, as `weir explain http` shows it
    #[arg(long, value_name = "TEXT")]
    pub key: Option<String>,
    /// What anybody owes, and counts of all together
    #[arg(long)]
    pub all: bool,
    /// Of this listener and its routes
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Of routes of this name
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir maintenance` takes.
#[derive(Args, Debug)]
pub struct InMaintenance {
    /// Begin or end it; without it, show what is in maintenance
    #[arg(value_enum)]
    pub state: Option<OnOff>,
    /// This listener, or with `--route` that route of it
    #[arg(long, value_name = "NAME", requires = "state")]
    pub listener: Option<String>,
    /// Routes that have this `name`; one that has none cannot be switched by itself
    #[arg(long, value_name = "NAME", requires = "state")]
    pub route: Option<String>,
    /// Requests that go to this pool; connections and flows of other protocols go on
    #[arg(long, value_name = "NAME", requires = "state", conflicts_with_all = ["listener", "route"])]
    pub pool: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// One way or the other.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnOff {
    /// Clients get 503
    On,
    /// They are served again
    Off,
}

/// What `weir explain sql` takes.
#[derive(Args, Debug)]
pub struct AskedSql {
    /// Name of the listener; default the only one that speaks MySQL
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// A transaction is open
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "read-write"
    )]
    in_transaction: Option<InTransaction>,
    /// The session has `autocommit = 0`
    #[arg(long)]
    autocommit_off: bool,
    /// The session's `sql_mode`
    #[arg(long, value_name = "MODES", default_value = "")]
    sql_mode: String,
    /// The session's `character_set_client`
    #[arg(long, value_name = "NAME")]
    charset: Option<String>,
    /// Address of the client
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// The statement; several words are joined by spaces. Behind `--` it may begin with a hyphen
    #[arg(required = true)]
    statement: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum InTransaction {
    /// One that may write
    ReadWrite,
    /// One that began with READ ONLY
    ReadOnly,
}

impl AskedSql {
    /// The question that these arguments ask.
    pub fn question(self) -> SqlQuestion {
        SqlQuestion {
            statement: self.statement.join(" "),
            listener: self.listener,
            transaction: self.in_transaction.map(|kind| match kind {
                InTransaction::ReadWrite => Transaction::ReadWrite,
                InTransaction::ReadOnly => Transaction::ReadOnly,
            }),
            autocommit: !self.autocommit_off,
            sql_mode: self.sql_mode,
            charset: self.charset,
            from: self.from,
        }
    }
}

/// What `weir drain` and `weir enable` take.
#[derive(Debug, Args)]
pub struct Change {
    /// Name of the pool
    pub pool: String,
    /// Address of the backend, as the config writes it
    pub backend: String,
    /// Longest wait
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir add` takes.
#[derive(Debug, Args)]
pub struct Added {
    /// Name of the pool
    pub pool: String,
    /// Address of the backend, host:port
    pub backend: String,
    /// Share of the load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub weight: u32,
    /// Most in flight; default no limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: Option<u32>,
    /// Use it only when no other is up
    #[arg(long)]
    pub backup: bool,
    /// Keep it over reloads and upgrades; without this the next reload of the file forgets it
    #[arg(long)]
    pub lasting: bool,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir remove` takes.
#[derive(Debug, Args)]
pub struct Removed {
    /// Name of the pool
    pub pool: String,
    /// Address of the backend, as `weir status` has it
    pub backend: String,
    #[command(flatten)]
    pub running: Running,
}

/// Parses a duration with its unit, as in configs.
pub fn duration(text: &str) -> Result<Duration, String> {
    weir_config::units::duration(text).map_err(|refused| format!("{}: {}", refused.message, refused.hint))
}
