//! A virtual machine for what this machine's kernel lacks: IPVS, netem, and a clock that counts instructions.
//!
//! QEMU boots the kernel of the Debian root that `lab/peers` made; that root and this program are shared over
//! 9p. The lab runs again inside and takes orders over the second serial line, one JSON document per line;
//! the first serial line is the console, kept as a log. QEMU emulates in software and needs no hardware
//! virtualisation, so this works inside a virtual machine too.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::contender::{Contender, Tools};
use crate::load::Load;
use crate::process::{Output, Placement, Running, own_program};
use crate::runner::{Cell, Options, Turn, namespaces::Spread};
use crate::scenario::{Length, Point};
use crate::topology::{Namespaces, Topology};

/// An order to the guest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestTask {
    /// Give a contender its turn.
    Cell {
        /// Folder/template.
        contender: String,
        load: Load,
        topology: Namespaces,
        length: Length,
    },
    /// Run this program with other arguments.
    Run { arguments: Vec<String> },
}

/// The guest's answer to an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Turn(Turn),
    /// What a program printed, and whether it exited with 0.
    Printed {
        text: String,
        well: bool,
    },
    Failed {
        problem: String,
    },
}

/// What the agent in the guest prints when it is ready for orders.
const READY: &str = "ready";

/// A guest that has booted. Dropping it ends it.
pub struct Guest {
    machine: Running,
    console: PathBuf,
}

impl Guest {
    /// Boots a guest, which takes 10 to 60 s; its files go into `directory`. With `instructions` it has one
    /// core whose clock counts instructions, one nanosecond each; otherwise two cores and real time.
    ///
    /// Err, with the last lines of its console, if it does not come up.
    pub fn boot(tools: &Tools, lab: &Path, instructions: bool, directory: &Path) -> io::Result<Self> {
        let stage = directory.join("stage");
        let initrd = directory.join("initrd.gz");
        let console = directory.join("console.log");
        fill_stage(tools, lab, &stage)?;
        said(Command::new(lab.join("guest/initrd.sh")).arg(&tools.peers_root).arg(&initrd))?;
        let kernel = said(Command::new(&tools.peers).args(["path", "kernel"]))?;
        let command = qemu(tools, kernel.trim(), &initrd, &stage, &console, instructions);
        let placement = Placement { core: None, nice: -10, realtime: false };
        let mut machine =
            Running::start("guest", placement, &command, &directory.join("qemu.log"), Output::Piped)?;
        let ready = machine.expect_line(READY);
        let mut guest = Self { machine, console };
        ready.map_err(|error| guest.explain(&error))?;
        Ok(guest)
    }

    /// Gives an order and waits for its answer.
    pub fn order(&mut self, order: &GuestTask) -> io::Result<Answer> {
        let sent = self.machine.tell(&serde_json::to_string(order)?);
        let line = sent.and_then(|()| self.machine.next_line()).map_err(|error| self.explain(&error))?;
        serde_json::from_str(&line).map_err(|error| {
            self.explain(&io::Error::other(format!("it answered `{line}`, which is not understood: {error}")))
        })
    }

    /// Adds to `error` what a person needs to know.
    fn explain(&mut self, error: &io::Error) -> io::Error {
        const LINES: usize = 12;
        let console = String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(LINES)..].join("\n    ");
        io::Error::other(format!("the guest: {error}\n    {tail}\n{}", self.machine.log_tail()))
    }
}

/// Copies what the guest needs from this machine into `stage`, which is shared with it.
fn fill_stage(tools: &Tools, lab: &Path, stage: &Path) -> io::Result<()> {
    fs::create_dir_all(stage.join("lab"))?;
    fs::copy(std::env::current_exe()?, stage.join("weir-lab"))?;
    // Without Weir the other contenders can still be measured.
    if Path::new(&tools.weir).exists() {
        fs::copy(&tools.weir, stage.join("weir"))?;
    }
    fs::copy(lab.join("guest/agent.sh"), stage.join("agent.sh"))?;
    fs::copy(&tools.peers, stage.join("lab/peers"))?;
    // Files that `lab/peers` reads.
    fs::create_dir_all(stage.join("xtask"))?;
    fs::copy(lab.join("../xtask/debian-root.sh"), stage.join("xtask/debian-root.sh"))?;
    said(Command::new("cp").arg("-r").arg(lab.join("contenders")).arg(stage.join("lab"))).map(drop)
}

fn qemu(
    tools: &Tools,
    kernel: &str,
    initrd: &Path,
    stage: &Path,
    console: &Path,
    instructions: bool,
) -> Vec<String> {
    let share = |path: &str, tag: &str| {
        format!("local,path={path},mount_tag={tag},security_model=none,readonly=on,multidevs=remap")
    };
    let machine = if instructions {
        "-accel tcg,thread=single -icount shift=0,sleep=off -smp 1"
    } else {
        "-accel tcg,thread=multi -smp 2"
    };
    let mut command: Vec<String> = [tools.peers.as_str(), "run", "qemu", "--"].map(str::to_owned).into();
    command.extend(machine.split(' ').map(str::to_owned));
    command.extend("-cpu max -m 2048 -nodefaults -display none -no-reboot".split(' ').map(str::to_owned));
    let rest = [
        ["-kernel", kernel],
        ["-initrd", &initrd.display().to_string()],
        ["-append", "console=ttyS0 quiet panic=1"],
        ["-serial", &format!("file:{}", console.display())],
        ["-serial", "stdio"],
        ["-virtfs", &share(&tools.peers_root, "root")],
        ["-virtfs", &share(&stage.display().to_string(), "stage")],
    ];
    command.extend(rest.concat().into_iter().map(str::to_owned));
    command
}

/// The output of `command`. Err, with its error output, if it does not exit with 0.
fn said(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let problem =
            format!("{:?} ended with {}: {}", command.get_program(), output.status, complaint.trim());
        return Err(io::Error::other(problem));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs the lab inside the guest: takes orders from standard input until it ends, and answers on standard
/// output.
pub fn obey(options: &Options, directory: &Path) -> io::Result<()> {
    let mut spread = Spread::new(options)?;
    println!("{READY}");
    for line in BufReader::new(io::stdin()).lines() {
        let answer = carry_out(&line?, options, &mut spread, directory)
            .unwrap_or_else(|error| Answer::Failed { problem: error.to_string() });
        println!("{}", serde_json::to_string(&answer)?);
        io::stdout().flush()?;
    }
    Ok(())
}

fn carry_out(line: &str, options: &Options, spread: &mut Spread, directory: &Path) -> io::Result<Answer> {
    match serde_json::from_str(line)? {
        GuestTask::Run { arguments } => {
            let output = Command::new(own_program()).args(arguments).stdin(Stdio::null()).output()?;
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            Ok(Answer::Printed { text, well: output.status.success() })
        }
        GuestTask::Cell { contender, load, topology, length } => {
            let contender = Contender::read(&options.lab, &contender)?;
            let home = directory.join("cell");
            let _ = fs::remove_dir_all(&home);
            fs::create_dir_all(&home)?;
            let point = Point { at: None, load, topology: Topology::Namespaces(topology.clone()) };
            let cell = Cell { contender: &contender, point: &point, length, directory: &home };
            spread.cell_on(&topology, &cell).map(Answer::Turn)
        }
    }
}

/// Boots a guest, runs this program in it with `arguments`, and prints its output. Returns whether it
/// succeeded.
pub fn run_in_guest(
    tools: &Tools,
    lab: &Path,
    instructions: bool,
    directory: &Path,
    arguments: &[String],
) -> io::Result<bool> {
    let mut guest = Guest::boot(tools, lab, instructions, directory)?;
    match guest.order(&GuestTask::Run { arguments: arguments.to_vec() })? {
        Answer::Printed { text, well } => {
            print!("{text}");
            Ok(well)
        }
        Answer::Failed { problem } => Err(io::Error::other(problem)),
        Answer::Turn(_) => Err(io::Error::other("the guest answered another question")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_fit_on_one_line_and_are_read_back() {
        let order = GuestTask::Cell {
            contender: "ipvs/s3".to_owned(),
            load: Load::Netperf { connections: 100, test: crate::load::netperf::Test::Crr },
            topology: toml::from_str("backend = 'echo-once'").unwrap(),
            length: Length { rounds: 1, seconds: 2, warm_up_seconds: 1 },
        };
        let text = serde_json::to_string(&order).unwrap();
        assert!(!text.contains('\n'));
        let GuestTask::Cell { load, topology, .. } = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(load, Load::Netperf { connections: 100, test: crate::load::netperf::Test::Crr });
        assert_eq!(topology.endpoints, 3);
        let answer = serde_json::to_string(&Answer::Failed { problem: "line\nline".to_owned() }).unwrap();
        assert!(!answer.contains('\n'), "{answer}");
    }

    #[test]
    fn a_guest_that_counts_instructions_has_one_core() {
        let tools = Tools {
            lab: String::new(),
            peers: "peers".to_owned(),
            peers_root: "/root".to_owned(),
            weir: String::new(),
        };
        let path = Path::new("/x");
        let words = |instructions| qemu(&tools, "/boot/k", path, path, path, instructions).join(" ");
        assert!(words(true).contains("-icount shift=0,sleep=off -smp 1"), "{}", words(true));
        assert!(words(false).contains("-smp 2") && !words(false).contains("icount"));
        assert!(words(true).starts_with("peers run qemu -- "), "{}", words(true));
    }
}
