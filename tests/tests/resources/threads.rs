//! No thread is granted for a while: the limit of a control group, or of a user. Needs strace, which refuses
//! them.

use std::process::{Child, Command, Stdio};

use weir_tests::dialogue::{Backend, ONE_POOL, Setup, Signal, Weir, tool, until};

/// Lets no thread and no process begin in Weir until it is dropped.
struct NoThreads(Child);

impl NoThreads {
    fn of(weir: &Weir) -> NoThreads {
        let pid = weir.pid().to_string();
        let calls = "clone,clone3,fork,vfork";
        let inject = format!("inject={calls}:error=EAGAIN");
        let mut command = Command::new(tool("strace", "strace"));
        command.args([
            "-f",
            "-qqq",
            "-o",
            "/dev/null",
            "-e",
            &format!("trace={calls}"),
            "-e",
            &inject,
            "-p",
            &pid,
        ]);
        let strace = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("strace starts");
        let is_traced = || {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
            let mut states =
                tasks.map(|task| std::fs::read_to_string(task.path().join("status")).unwrap_or_default());
            states.all(|status| !status.contains("TracerPid:\t0\n")).then_some(())
        };
        until("strace to hold every thread", is_traced);
        NoThreads(strace)
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        // It lets go of what it holds when it is told to end.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let _ = self.0.wait();
    }
}

fn is_served(weir: &Weir, path: &str, status: u16) {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
    client.receives_status(status);
}

#[test]
fn an_upgrade_that_no_thread_is_granted_for_is_refused_and_the_process_serves_on() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(ONE_POOL).with("app", backend.address()).start();
    let pids = weir.pids();
    let shortage = NoThreads::of(&weir);
    weir.signals(Signal::USR2);
    until("a word why", || weir.stderr().contains("upgrade failed, this process serves on").then_some(()));
    assert!(weir.stderr().contains("no thread could be started"), "{}", weir.story());
    is_served(&weir, "/", 200);
    drop(shortage);
    assert_eq!(weir.pids(), pids);
    weir.signals(Signal::USR2);
    until("a process that takes over", || (weir.pids() != pids && weir.pids().len() == 1).then_some(()));
    is_served(&weir, "/", 200);
}

#[test]
fn files_of_maps_are_looked_at_again_once_threads_are_granted() {
    let config = r#"
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        map = { known = "*" }
        respond = { status = 204 }
        [[listener.web.route]]
        respond = { status = 404 }
        "#;
    let with_map = format!("{config}[map.known]\nfile = \"@dir/known\"\nkey = \"$path\"\n");
    let weir = Setup::of(&with_map).with_file("known", "/a yes\n").start();
    let shortage = NoThreads::of(&weir);
    until("a word why", || weir.stderr().contains("files of maps could not be looked at").then_some(()));
    is_served(&weir, "/a", 204);
    drop(shortage);
    std::fs::write(weir.dir().join("known"), "/b yes\n").expect("write");
    until("the file to be taken over", || {
        weir.stderr().contains("the file has changed and is in force").then_some(())
    });
    is_served(&weir, "/b", 204);
}

/// A control group with the time of one processor, as `docker run --cpus 1` makes it, in files.
const QUOTA: &str = "mount -t tmpfs none /sys/fs/cgroup && echo 100000 100000 > /sys/fs/cgroup/cpu.max && \
                     echo cpu > /sys/fs/cgroup/cgroup.controllers && echo 0::/ > cgroup && \
                     mount --bind cgroup /proc/$$/cgroup && exec \"$@\"";

/// All containers of a machine that were granted the time of two processors had their workers on the first
/// two of it.
#[test]
fn workers_that_a_quota_makes_few_may_run_on_every_processor() {
    let backend = Backend::saying("ok");
    let setup = Setup::of(ONE_POOL).with("app", backend.address());
    let weir = setup.under(&["unshare", "-m", "sh", "-c", QUOTA, "sh"]).start();
    assert_eq!(weir.admin().reads("/v1/status").json()["workers"], 1);
    let processors = |status: std::path::PathBuf| {
        let status = std::fs::read_to_string(status).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list")).expect("a line");
        line.to_owned()
    };
    let all = processors("/proc/self/status".into());
    let tasks = std::fs::read_dir(format!("/proc/{}/task", weir.pid())).expect("it runs").flatten();
    for task in tasks {
        let name = std::fs::read_to_string(task.path().join("comm")).expect("a name");
        assert_eq!(processors(task.path().join("status")), all, "{name}");
    }
}
