//! MySQL servers for tests: a primary and a replica, started once for a test program.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak, mpsc};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::client::{Client, Login};
use crate::dialogue::{fingerprint, free_address, until_within};

/// A server that runs. Killed, and its directory removed, when dropped.
#[derive(Debug)]
pub struct Mysqld {
    /// Where it serves.
    pub address: SocketAddr,
    dir: PathBuf,
    child: Mutex<Child>,
}

/// A primary and a replica that follows it. Or a single server, which is also `replica`, since its data are
/// the same.
#[derive(Debug)]
pub struct Pair {
    /// Takes writes.
    pub primary: Mysqld,
    /// Follows the primary by GTID; takes no writes but those of root.
    pub replica: Mysqld,
}

/// The command words that start a program that `lab/peers` installs. Panics with what to install if it is
/// missing.
pub fn words_of(peer: &str) -> Vec<String> {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/peers");
    let output = Command::new(&peers).args(["command", peer]).output().expect("lab/peers runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "this test needs `{peer}`: lab/peers install mysqld mysql\n{said}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

impl Mysqld {
    /// Starts one in a directory of its own, with `more` lines of configuration, and waits until it serves.
    pub fn start(name: &str, more: &str) -> Mysqld {
        // Two servers with one name never share a directory: the one before may still be ending while the
        // next one starts.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let (template, number) = (template(), STARTED.fetch_add(1, Ordering::Relaxed));
        let dir = format!("weir-mysqld-{}-{name}-{number}.d", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory");
        let copied = Command::new("cp").arg("-a").arg(template.join("data")).arg(dir.join("data")).status();
        assert!(copied.is_ok_and(|status| status.success()), "the data of a new server are copied");
        // Each server makes an identity of its own.
        let _ = fs::remove_file(dir.join("data/auto.cnf"));
        let address = free_address();
        fs::write(dir.join("my.cnf"), config(&dir, address, more)).expect("a config");
        let child = spawn(&dir);
        let server = Mysqld { address, dir, child: Mutex::new(child) };
        server.serves();
        server
    }

    /// Waits until it lets clients in.
    fn serves(&self) {
        until_within(std::time::Duration::from_secs(60), &format!("mysqld serves\n{}", self.log()), || {
            let ended = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            assert!(!matches!(ended, Ok(Some(_))), "mysqld has ended\n{}", self.log());
            Client::log_in(self.address, &Login::of("root", "")).ok()
        });
    }

    /// The path of a file in its data directory, such as `ca.pem`.
    pub fn path(&self, file: &str) -> String {
        self.dir.join("data").join(file).display().to_string()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// A client of root's.
    pub fn root(&self) -> Client {
        Client::log_in(self.address, &Login::of("root", "")).expect("root is let in")
    }

    /// Ends it at once, as a crash would.
    pub fn dies(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Stops its process until it dies: it no longer answers, and its connections stay open.
    pub fn freezes(&self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, Signal::STOP).expect("a process of ours");
        // Some threads go on answering until all of them have stopped.
        waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child of ours");
    }

    /// Lets it go on after [`Self::freezes`].
    pub fn thaws(&self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, Signal::CONT).expect("a process of ours");
    }

    /// Starts it again at the same address, after it died.
    pub fn starts_again(&self) {
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = spawn(&self.dir);
        self.serves();
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.log_end(20)
    }

    /// Its last log lines if it has ended by itself; `None` while it runs.
    pub fn ended(&self) -> Option<String> {
        let ended = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        let status = ended.ok().flatten()?;
        // A crash logs its stack and the statement.
        Some(format!("mysqld at {} has ended ({status}):\n{}", self.address, self.log_end(80)))
    }

    fn log_end(&self, most: usize) -> String {
        let log = fs::read_to_string(self.dir.join("error.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(most)..].join("\n")
    }

    /// Makes it follow `primary` from a common state, and waits until it does.
    pub fn follows(&self, primary: &Mysqld) {
        let mut root = self.root();
        let (host, port) = (primary.address.ip(), primary.address.port());
        root.does(&format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{host}', SOURCE_PORT = {port}, SOURCE_USER = 'root', \
             SOURCE_PASSWORD = '', SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 1"
        ));
        root.does("START REPLICA");
        root.does("SET GLOBAL super_read_only = ON");
        self.has_all_of(primary);
    }

    /// Waits until it has executed what the other has.
    pub fn has_all_of(&self, other: &Mysqld) {
        let executed = other.root().does("SELECT @@GLOBAL.gtid_executed").value().replace('\n', "");
        let waited = self.root().does(&format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 30)"));
        assert_eq!(waited.value(), "0", "the replica follows\n{}", self.log());
    }
}

impl Drop for Mysqld {
    fn drop(&mut self) {
        self.dies();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Pair {
    /// Starts a new pair; `name` distinguishes its directories from others'.
    pub fn start(name: &str) -> Pair {
        let primary = Mysqld::start(&format!("{name}-primary"), "");
        let replica = Mysqld::start(&format!("{name}-replica"), "");
        replica.follows(&primary);
        Pair { primary, replica }
    }
}

/// The pair that the tests of this program share, as long as one of them uses it.
pub fn pair() -> Arc<Pair> {
    static SHARED: Mutex<Weak<Pair>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let pair = Arc::new(Pair::start("shared"));
        *shared = Arc::downgrade(&pair);
        pair
    })
}

/// A directory with the data of a new server, made once.
fn template() -> PathBuf {
    static MADE: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.get_or_insert_with(|| {
        // Kept beside the test programs for the next run; another program may be making the same.
        let words = words_of("mysqld");
        let version = fingerprint(format!("{words:?} {ACCOUNTS}").as_bytes());
        let programs = std::env::current_exe().expect("own path");
        let kept = programs.with_file_name(format!("mysqld-{version:016x}.d"));
        if kept.is_dir() {
            return kept;
        }
        let dir = kept.with_extension(format!("{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory");
        let accounts = dir.join("init.sql");
        fs::write(&accounts, ACCOUNTS).expect("a file");
        fs::write(dir.join("my.cnf"), config(&dir, free_address(), "")).expect("a config");
        let output = Command::new(&words[0])
            .args(&words[1..])
            .arg(format!("--defaults-file={}", dir.join("my.cnf").display()))
            .arg("--initialize-insecure")
            .arg(format!("--init-file={}", accounts.display()))
            .output()
            .expect("mysqld starts");
        let log = fs::read_to_string(dir.join("error.log")).unwrap_or_default();
        assert!(output.status.success(), "mysqld makes its data\n{log}");
        if fs::rename(&dir, &kept).is_err() {
            let _ = fs::remove_dir_all(&dir);
        }
        kept
    })
    .clone()
}

/// The accounts of every server: root and `app` have no password, so that a login needs one round trip.
const ACCOUNTS: &str = "CREATE USER root@'127.0.0.1' IDENTIFIED BY '';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
CREATE USER app@'%' IDENTIFIED BY '';
GRANT ALL ON *.* TO app@'%';
REVOKE SUPER, CONNECTION_ADMIN, SYSTEM_VARIABLES_ADMIN ON *.* FROM app@'%';
CREATE DATABASE shop;
";

fn spawn(dir: &Path) -> Child {
    let words = words_of("mysqld");
    // It ends with this process, whatever ends that.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .args(words)
        .arg(format!("--defaults-file={}", dir.join("my.cnf").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    spawn_by_parent(command)
}

/// What [`spawn_by_parent`] asks for: a command, and where its process goes.
type ToSpawn = (Command, mpsc::Sender<Child>);

/// Starts a process from a thread that lives as long as this process: to the kernel the thread is the parent,
/// and a test's own thread ends before others are done with the server (prctl(2), PR_SET_PDEATHSIG).
fn spawn_by_parent(command: Command) -> Child {
    static PARENT: LazyLock<Mutex<mpsc::Sender<ToSpawn>>> = LazyLock::new(|| {
        let (wanted, asked) = mpsc::channel::<ToSpawn>();
        std::thread::spawn(move || {
            for (mut command, answer) in asked {
                let _ = answer.send(command.spawn().expect("mysqld starts"));
            }
        });
        Mutex::new(wanted)
    });
    let (answer, child) = mpsc::channel();
    let parent = PARENT.lock().unwrap_or_else(PoisonError::into_inner);
    parent.send((command, answer)).expect("a thread that does not end");
    child.recv().expect("mysqld starts")
}

/// A server's configuration: small, fast, and not safe against a crash of the machine.
fn config(dir: &Path, address: SocketAddr, more: &str) -> String {
    let words = words_of("mysqld");
    let program = words.last().expect("a program");
    let root = program.strip_suffix("/usr/sbin/mysqld").unwrap_or_default();
    let (dir, port) = (dir.display(), address.port());
    format!(
        "[mysqld]
basedir = {root}/usr
plugin_dir = {root}/usr/lib/mysql/plugin
lc_messages_dir = {root}/usr/share/mysql
character_sets_dir = {root}/usr/share/mysql/charsets
datadir = {dir}/data
tmpdir = {dir}
socket = {dir}/socket
pid_file = {dir}/pid
log_error = {dir}/error.log
secure_file_priv = NULL
user = root
server_id = {port}
port = {port}
bind_address = 127.0.0.1
mysqlx = OFF
skip_name_resolve = ON
local_infile = ON
max_connections = 1000
max_allowed_packet = 256M
innodb_buffer_pool_size = 64M
innodb_flush_log_at_trx_commit = 0
innodb_doublewrite = OFF
sync_binlog = 0
gtid_mode = ON
enforce_gtid_consistency = ON
performance_schema_instrument = '%=OFF'
performance_schema_instrument = 'wait/lock/metadata/sql/mdl=ON'
{more}
"
    )
}
