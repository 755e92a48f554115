//! Contenders: the load balancers measured against each other. Each is a folder in `lab/contenders/`.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::backend::BackendKind;
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

/// What `contender.toml` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// The command that runs it in the foreground.
    command: Vec<String>,
    /// The command that prints its version.
    version: Vec<String>,
    /// How its config templates' names end.
    extension: String,
}

/// A load balancer with one config.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Folder and template, as the scenario names it.
    pub name: String,
    manifest: Manifest,
    template: String,
    extension: String,
}

/// Where a contender is to listen and whom it serves.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// Where clients connect.
    pub listen: u16,
    /// Where the backend listens.
    pub backend: u16,
    /// Where its admin interface may listen.
    pub admin: u16,
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
        let extension = manifest.extension.clone();
        Ok(Self { name: name.to_owned(), manifest, template, extension })
    }

    /// Its version, as it prints it itself. Err when it does not run, with what it said.
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

    /// Starts it in `directory`, which must be empty and lasts longer than it, and waits until it serves the backend.
    ///
    /// Err, with the last lines of its log, when it ends or does not serve within 10 s.
    pub fn start(
        &self,
        tools: &Tools,
        ports: Ports,
        backend: BackendKind,
        placement: Placement,
        directory: &Path,
    ) -> io::Result<Running> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let config = directory.join("config").with_extension(&self.extension);
        let mut values = tool_values(tools);
        values.extend([
            ("listen_port", ports.listen.to_string()),
            ("backend_port", ports.backend.to_string()),
            ("admin_port", ports.admin.to_string()),
            ("directory", directory.display().to_string()),
            ("config", config.display().to_string()),
        ]);
        fs::write(&config, fill(&self.template, &values)?)?;
        let command: Vec<String> =
            self.manifest.command.iter().map(|word| fill(word, &values)).collect::<Result<_, _>>()?;
        let log: PathBuf = directory.join("log");
        let mut running = Running::start(&self.name, placement, &command, &log, Output::Log)?;
        let begin = Instant::now();
        let mut last_problem = String::new();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = running.ended()? {
                let tail = running.log_tail();
                return Err(io::Error::other(format!("ended with {status}; its log ends:\n{tail}")));
            }
            match probe(ports.listen, backend) {
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

/// Asks once whether the load balancer on 127.0.0.1:`port` serves its backend.
fn probe(port: u16, backend: BackendKind) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    match backend {
        BackendKind::Bulk => stream.read_exact(&mut [0; 1]),
        BackendKind::Http => {
            stream.write_all(b"GET /health HTTP/1.1\r\nhost: lab\r\nconnection: close\r\n\r\n")?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            if answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"Hello World!\n") {
                return Ok(());
            }
            let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
            Err(io::Error::other(format!("it answered `{line}` where 200 was expected")))
        }
    }
}

/// A TCP port nobody listens on at the moment.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn tool_values(tools: &Tools) -> Vec<(&'static str, String)> {
    vec![
        ("lab", tools.lab.clone()),
        ("peers", tools.peers.clone()),
        ("peers_root", tools.peers_root.clone()),
        ("weir", tools.weir.clone()),
    ]
}

/// Puts `values` in the place of their `{names}`. Err when a `{name}` is left that nobody knows.
fn fill(template: &str, values: &[(&'static str, String)]) -> io::Result<String> {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        rest = &rest[open..];
        let name_end =
            rest[1..].find(|letter: char| !letter.is_ascii_lowercase() && letter != '_').map(|end| end + 1);
        match name_end.filter(|end| *end > 1 && rest[*end..].starts_with('}')) {
            Some(end) => {
                let name = &rest[1..end];
                let (_, value) = values.iter().find(|(known, _)| *known == name).ok_or_else(|| {
                    let known: Vec<&str> = values.iter().map(|(known, _)| *known).collect();
                    io::Error::other(format!("`{{{name}}}` has no meaning; there are: {}", known.join(", ")))
                })?;
                filled.push_str(value);
                rest = &rest[end + 1..];
            }
            // A brace of the config's own language.
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The first thing in `text` that looks like a version: digits, a dot, digits, and what follows without a space.
fn version_in(text: &str) -> Option<&str> {
    text.split(|letter: char| letter.is_whitespace() || letter == '/' || letter == ',').find(|word| {
        let mut parts = word.splitn(3, '.');
        let numeric = |part: Option<&str>| {
            part.is_some_and(|part| part.starts_with(|letter: char| letter.is_ascii_digit()))
        };
        numeric(parts.next()) && numeric(parts.next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<(&'static str, String)> {
        vec![("port", "80".to_owned()), ("config", "/a b".to_owned())]
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
    fn versions_are_found_in_what_programs_print() {
        assert_eq!(
            version_in("HAProxy version 3.2.26-1 2026/10/14 - https://haproxy.org/"),
            Some("3.2.26-1")
        );
        assert_eq!(version_in("nginx version: nginx/1.30.6\n"), Some("1.30.6"));
        assert_eq!(version_in("weir 0.1.0\n"), Some("0.1.0"));
        assert_eq!(version_in("no version. here"), None);
    }
}
