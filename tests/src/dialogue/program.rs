//! Other people's programs, which end with the test.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{tool, until};

/// A running program: told to end (SIGTERM) when dropped, and waited for.
#[derive(Debug)]
pub struct Program(Child);

impl Program {
    /// Starts it, and waits until it accepts connections at `address`.
    pub fn start(command: &mut Command, address: SocketAddr) -> Program {
        Program::start_until(command, || TcpStream::connect(address).is_ok())
    }

    /// Starts it, and waits until `ready`.
    pub fn start_until(command: &mut Command, ready: impl Fn() -> bool) -> Program {
        let program =
            Program(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
        until(&format!("{command:?} to be ready"), || ready().then_some(()));
        program
    }

    /// Takes a program that was started in another way.
    pub fn of(child: Child) -> Program {
        Program(child)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|ended| ended.is_none())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// A gunicorn with one worker, which serves one request at a time, at a Unix socket in a folder of its own.
#[derive(Debug)]
pub struct Gunicorn {
    program: Option<Program>,
    dir: PathBuf,
}

impl Gunicorn {
    /// Serves the `application` of this Python module.
    pub fn start(application: &str) -> Gunicorn {
        Gunicorn::start_at(application, &[])
    }

    /// [`Gunicorn::start`] that serves at these addresses too.
    pub fn start_at(application: &str, addresses: &[SocketAddr]) -> Gunicorn {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-gunicorn-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        std::fs::write(dir.join("app.py"), application).expect("written");
        let socket = dir.join("app.sock");
        let mut command = Command::new(tool("gunicorn", "gunicorn"));
        command.args(["--workers", "1", "--timeout", "300", "--graceful-timeout", "1"]);
        for address in addresses {
            command.args(["--bind", &address.to_string()]);
        }
        // It binds the socket last, and tests look for the socket first.
        command.arg("--bind").arg(format!("unix:{}", socket.display()));
        command.arg("app:application").current_dir(&dir);
        let program = Program::start_until(&mut command, || socket.exists());
        Gunicorn { program: Some(program), dir }
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("app.sock")
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Gunicorn {
    fn drop(&mut self) {
        // Its worker ends with it, and the folder is removed after both.
        drop(self.program.take());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
