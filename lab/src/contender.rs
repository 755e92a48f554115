//! Contenders: the load balancers that are measured against each other. Each is a folder in
//! `lab/contenders/`.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::certificate;
use crate::namespace;
use crate::process::{Output, Placement, Running};

/// Programs that commands and templates refer to.
#[derive(Debug, Clone)]
pub struct Tools {
    /// This program.
    pub lab: String,
    /// `lab/peers`.
    pub peers: String,
    /// The Debian root that `lab/peers` made.
    pub peers_root: String,
    /// The Weir binary.
    pub weir: String,
}

impl Tools {
    /// `command` as a reader would type it, without this machine's paths.
    pub fn shown(&self, command: &[String]) -> String {
        let command = match command {
            [peers, run, program, dashes, ..] if *peers == self.peers && run == "run" && dashes == "--" => {
                [std::slice::from_ref(program), &command[4..]].concat()
            }
            // The working directory does not matter to a reader.
            [env, place, rest @ ..] if env == "env" && place.starts_with("--chdir=") => {
                return self.shown(rest);
            }
            _ => command.to_vec(),
        };
        let temporary = std::env::temp_dir().join("weir-lab-").display().to_string();
        let places = [temporary.as_str(), crate::enclosure::WORKPLACE];
        let word = |word: &String| -> String {
            let word = word.replace(&self.lab, "weir-lab").replace(&self.weir, "weir");
            let word = match places.iter().find_map(|place| word.find(place)) {
                Some(begin) => {
                    let last = word.rsplit('/').next().unwrap_or_default();
                    format!("{}{last}", &word[..begin])
                }
                None => word,
            };
            if word.contains([' ', '*', '$', '\'', '"']) { format!("'{word}'") } else { word }
        };
        command.iter().map(word).collect::<Vec<String>>().join(" ")
    }
}

/// The folder of the contender that stands for no load balancer at all.
const DIRECT: &str = "direct/";

/// What `contender.toml` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// Its name as its makers write it.
    title: String,
    /// The command that runs it in the foreground.
    command: Vec<String>,
    /// The command that prints its version.
    version: Vec<String>,
    /// How its config templates' names end.
    extension: String,
    /// The command that exits with 0 if the contender supports a config. A scenario that is marked as not
    /// built yet is run as soon as this command accepts its template.
    #[serde(default)]
    check: Vec<String>,
    /// Whether it is a bound for comparison rather than a rival.
    #[serde(default)]
    reference: bool,
    /// Whether it works in the kernel, on whatever core a packet arrives; its processor time belongs to no
    /// process.
    #[serde(default)]
    in_kernel: bool,
    /// What a reader must know to judge whether it was treated fairly.
    #[serde(default)]
    fairness: String,
    /// Path on its admin interface with its failovers as JSON; none if it does not report them.
    #[serde(default)]
    receipts: Option<String>,
    /// Whether it runs as several processes that share its ports. Its templates may then use `{processes}`,
    /// the number needed to hold all connections.
    #[serde(default)]
    has_processes: bool,
}

/// A load balancer with one config.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Folder and template, as the scenario names it.
    pub name: String,
    manifest: Manifest,
    template: String,
}

/// Where a contender listens, which backends it has, and other values for its template.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Where clients connect: `{listen}`, `{listen_port}`.
    pub listen: SocketAddr,
    /// Where its admin interface may listen: `{admin}`, `{admin_port}`.
    pub admin: SocketAddr,
    /// Its backends: `{backend_1}`, `{backend_2}` and so on, the first also as `{backend}` and
    /// `{backend_port}`.
    pub backends: Vec<SocketAddr>,
    /// The network namespace it runs in, as a path; `None` for the lab's own.
    pub network: Option<String>,
    /// Further values by name, such as the password of a database.
    pub more: Vec<(String, String)>,
}

impl Seat {
    /// A seat on free ports of 127.0.0.1 in front of `backends`.
    pub fn on_loopback(backends: Vec<SocketAddr>) -> io::Result<Self> {
        let free = || Ok::<_, io::Error>(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
        Ok(Self { listen: free()?, admin: free()?, backends, network: None, more: Vec::new() })
    }

    fn values(&self) -> Vec<(String, String)> {
        let mut values = vec![
            ("listen".to_owned(), self.listen.to_string()),
            ("listen_port".to_owned(), self.listen.port().to_string()),
            ("admin".to_owned(), self.admin.to_string()),
            ("admin_port".to_owned(), self.admin.port().to_string()),
        ];
        if let Some(first) = self.backends.first() {
            values.push(("backend".to_owned(), first.to_string()));
            values.push(("backend_port".to_owned(), first.port().to_string()));
        }
        for (index, backend) in self.backends.iter().enumerate() {
            values.push((format!("backend_{}", index + 1), backend.to_string()));
        }
        values.extend(self.more.iter().cloned());
        values
    }
}

impl Contender {
    /// Reads contender `name` (folder/template) of the lab in `lab`.
    pub fn read(lab: &Path, name: &str) -> io::Result<Self> {
        let explain = |path: &Path, error: &dyn std::fmt::Display| {
            io::Error::other(format!("contender {name}: {}: {error}", path.display()))
        };
        let (folder, template) = name.split_once('/').ok_or_else(|| {
            io::Error::other(format!(
                "contender `{name}`: folder/template was expected, such as `nginx/http`"
            ))
        })?;
        let folder = lab.join("contenders").join(folder);
        let path = folder.join("contender.toml");
        let text = fs::read_to_string(&path).map_err(|error| explain(&path, &error))?;
        let manifest: Manifest = toml::from_str(&text).map_err(|error| explain(&path, &error))?;
        let path = folder.join(template).with_extension(&manifest.extension);
        let template = fs::read_to_string(&path).map_err(|error| explain(&path, &error))?;
        Ok(Self { name: name.to_owned(), manifest, template })
    }

    /// The name of the contender in `folder` as its makers write it, without reading a template.
    pub fn title_of_folder(lab: &Path, folder: &str) -> Option<String> {
        let text = fs::read_to_string(lab.join("contenders").join(folder).join("contender.toml")).ok()?;
        toml::from_str::<Manifest>(&text).ok().map(|manifest| manifest.title)
    }

    /// Its name as its makers write it.
    pub fn title(&self) -> &str {
        &self.manifest.title
    }

    /// Whether it is a bound for comparison rather than a rival.
    pub fn is_reference(&self) -> bool {
        self.manifest.reference
    }

    /// What a reader must know to judge whether it was treated fairly; may be empty.
    pub fn fairness(&self) -> &str {
        self.manifest.fairness.trim()
    }

    /// Path on its admin interface with its failovers.
    pub fn receipts(&self) -> Option<&str> {
        self.manifest.receipts.as_deref()
    }

    /// Whether it runs as several processes that share its ports.
    pub fn has_processes(&self) -> bool {
        self.manifest.has_processes
    }

    /// Whether it works in the kernel, so that its processor time belongs to no process.
    pub fn is_in_kernel(&self) -> bool {
        self.manifest.in_kernel
    }

    /// Its config before anything is filled in.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// Its version as it prints it. Err, with its output, if it does not run.
    pub fn version(&self, tools: &Tools) -> io::Result<String> {
        let command: Vec<String> = self
            .manifest
            .version
            .iter()
            .map(|word| fill(word, &tool_values(tools)))
            .collect::<Result<_, _>>()?;
        let output = Command::new(&command[0])
            .args(&command[1..])
            .output()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", command[0])))?;
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "{} ended with {}: {printed}",
                command.join(" "),
                output.status
            )));
        }
        version_in(&printed)
            .map(str::to_owned)
            .ok_or_else(|| io::Error::other(format!("{} printed no version: {printed}", command.join(" "))))
    }

    /// Whether it is no load balancer: clients connect to the backends themselves.
    pub fn is_direct(&self) -> bool {
        self.name.starts_with(DIRECT)
    }

    /// The command that runs it in `directory`.
    pub fn command_line(&self, tools: &Tools, seat: &Seat, directory: &Path) -> io::Result<Vec<String>> {
        let values = self.values(tools, seat, directory);
        self.manifest.command.iter().map(|word| fill(word, &values)).collect()
    }

    /// Checks with its own command that it supports this config, with sample addresses, in the empty
    /// `directory`.
    ///
    /// Err, with its output, if it refuses or has no command that checks.
    pub fn check(&self, tools: &Tools, directory: &Path) -> io::Result<()> {
        const BACKENDS: u16 = 3;
        if self.manifest.check.is_empty() {
            return Err(io::Error::other(format!("{} has no command that checks a config", self.name)));
        }
        let backends = (1..=BACKENDS).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect();
        let mut seat = Seat::on_loopback(backends)?;
        if self.template.contains("{certificate") {
            seat.more = certificate::make(directory)?;
        }
        let values = self.values(tools, &seat, directory);
        fs::write(self.config(directory), fill(&self.template, &values)?)?;
        let command: Vec<String> =
            self.manifest.check.iter().map(|word| fill(word, &values)).collect::<Result<_, _>>()?;
        let output = Command::new(&command[0]).args(&command[1..]).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
            return Err(io::Error::other(format!("{} refuses this config: {said}", self.name)));
        }
        Ok(())
    }

    fn config(&self, directory: &Path) -> PathBuf {
        directory.join("config").with_extension(&self.manifest.extension)
    }

    fn values(&self, tools: &Tools, seat: &Seat, directory: &Path) -> Vec<(String, String)> {
        let mut values = tool_values(tools);
        values.extend(seat.values());
        values.push(("directory".to_owned(), directory.display().to_string()));
        values.push(("config".to_owned(), self.config(directory).display().to_string()));
        values
    }

    /// Starts it in `directory`, which must be empty and outlive it, and waits until `serves` succeeds.
    ///
    /// Err, with the last lines of its log, if it ends or does not serve within 10 s.
    pub fn start(
        &self,
        tools: &Tools,
        seat: &Seat,
        placement: Placement,
        directory: &Path,
        serves: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<Running> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let values = self.values(tools, seat, directory);
        fs::write(self.config(directory), fill(&self.template, &values)?)?;
        let command = self.command_line(tools, seat, directory)?;
        let command = match &seat.network {
            Some(network) => namespace::command_inside(network, &command),
            None => command,
        };
        let log: PathBuf = directory.join("log");
        let mut running = Running::start(&self.name, placement, &command, &log, Output::Log)?;
        let begin = Instant::now();
        let mut last_problem = String::new();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = running.ended()? {
                let tail = running.log_tail();
                return Err(io::Error::other(format!("ended with {status}; its log ends:\n{tail}")));
            }
            match serves() {
                Ok(()) => return Ok(running),
                Err(error) => last_problem = error.to_string(),
            }
            thread::sleep(Duration::from_millis(20));
        }
        let tail = running.log_tail();
        Err(io::Error::other(format!(
            "did not serve within {PATIENCE:?}: {last_problem}; its log ends:\n{tail}"
        )))
    }
}

/// A TCP port nobody listens on at the moment.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn tool_values(tools: &Tools) -> Vec<(String, String)> {
    vec![
        ("lab".to_owned(), tools.lab.clone()),
        ("peers".to_owned(), tools.peers.clone()),
        ("peers_root".to_owned(), tools.peers_root.clone()),
        ("weir".to_owned(), tools.weir.clone()),
    ]
}

/// Replaces each `{name}` by its value. Err if a `{name}` has no value.
pub fn fill(template: &str, values: &[(String, String)]) -> io::Result<String> {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        rest = &rest[open..];
        let name_end = rest[1..]
            .find(|letter: char| !(letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'))
            .map(|end| end + 1);
        match name_end.filter(|end| *end > 1 && rest[*end..].starts_with('}')) {
            Some(end) => {
                let name = &rest[1..end];
                let (_, value) = values.iter().find(|(known, _)| known == name).ok_or_else(|| {
                    let known: Vec<&str> = values.iter().map(|(known, _)| known.as_str()).collect();
                    io::Error::other(format!("`{{{name}}}` has no meaning; there are: {}", known.join(", ")))
                })?;
                filled.push_str(value);
                rest = &rest[end + 1..];
            }
            // A brace of the config's own syntax.
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The first thing in `text` that looks like a version: digits, a dot, digits, and what follows without a
/// space. Letters may stand before it, as in `(varnish-7.1.1`.
fn version_in(text: &str) -> Option<&str> {
    let words = text.split(|letter: char| letter.is_whitespace() || letter == '/' || letter == ',');
    let numbers = words.map(|word| word.trim_start_matches(|letter: char| !letter.is_ascii_digit()));
    numbers.into_iter().find(|word| {
        let mut parts = word.splitn(3, '.');
        let whole = parts.next().is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        whole && parts.next().is_some_and(|part| part.starts_with(|letter: char| letter.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<(String, String)> {
        vec![("port".to_owned(), "80".to_owned()), ("config".to_owned(), "/a b".to_owned())]
    }

    #[test]
    fn placeholders_are_filled_and_other_braces_stay() {
        let filled = fill("http { listen {port}; x {config} {} timeout = { a = 1 }", &values()).unwrap();
        assert_eq!(filled, "http { listen 80; x /a b {} timeout = { a = 1 }");
    }

    #[test]
    fn a_misspelt_placeholder_is_an_error() {
        let error = fill("bind {prot}", &values()).unwrap_err().to_string();
        assert_eq!(error, "`{prot}` has no meaning; there are: port, config");
    }

    #[test]
    fn a_contender_says_itself_what_it_can_carry_out() {
        let directory = std::env::temp_dir().join(format!("weir-lab-check-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
        let check = |name: &str, weir: &str| {
            let [lab_program, peers, peers_root] = [String::new(), String::new(), String::new()];
            let tools = Tools { lab: lab_program, peers, peers_root, weir: weir.to_owned() };
            Contender::read(lab, name).unwrap().check(&tools, &directory).map_err(|error| error.to_string())
        };
        let accepted = check("weir/round-robin-tls", "true");
        let config = fs::read_to_string(directory.join("config.toml")).unwrap();
        let refused = check("weir/round-robin", "false");
        let silent = check("floor/relay", "true");
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(accepted, Ok(()));
        assert!(config.contains("/certificate.pem\"") && config.contains("127.0.0.1:3\"]"), "{config}");
        assert_eq!(refused, Err("weir/round-robin refuses this config: ".to_owned()));
        assert_eq!(silent, Err("floor/relay has no command that checks a config".to_owned()));
    }

    #[test]
    fn versions_are_found_in_what_programs_print() {
        assert_eq!(
            version_in("HAProxy version 3.2.26-1 2026/10/14 - https://haproxy.org/"),
            Some("3.2.26-1")
        );
        assert_eq!(version_in("nginx version: nginx/1.30.6\n"), Some("1.30.6"));
        assert_eq!(version_in("nftables v1.1.7 (Commodore Bullmoose #8)"), Some("1.1.7"));
        assert_eq!(version_in("weir 0.1.0\n"), Some("0.1.0"));
        assert_eq!(version_in("varnishd (varnish-7.1.1 revision 7cee1c58)"), Some("7.1.1"));
        assert_eq!(version_in("k6 v1.8.1 (go1.26.8, linux/amd64)"), Some("1.8.1"));
        assert_eq!(version_in("no version. here, x86_64.a"), None);
    }
}
