//! `weir convert nginx.conf`: a real nginx with a config and a Weir with the converted one, before the same
//! backends, are sent the same requests, and do the same.

mod bodies;
mod clients;
mod locations;
mod peers;
mod redirects;
mod refusals;
mod rules;
mod stream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_tests::dialogue::{
    After, Backend, Finished, PATIENCE, Program, Response, Setup, Weir, Wire, free_address, run_tool, tool,
    weir_binary,
};

/// A folder of a test's own, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-nginx-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A backend that tells its name, and the request that it got.
fn telling(name: &'static str) -> Backend {
    Backend::serving(move |request, wire| {
        let mut told = format!("{name} {} {}\n", request.method, request.target);
        for (field, value) in &request.fields.0 {
            told.push_str(&format!("{field}: {value}\n"));
        }
        told.push_str(&format!("\n{}", String::from_utf8_lossy(&request.body)));
        wire.answers(200, &[("x-powered-by", "snakes"), ("server", "snake")], &told);
        After::Keep
    })
}

/// What nginx's processes need, before the part that is tested.
fn with_frame(folder: &Folder, http: &str) -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|of| format!("    {of}_temp_path {};\n", folder.path(of)))
        .concat();
    format!(
        "user root;\ndaemon off;\nworker_processes 1;\npid {};\nerror_log stderr;\nevents {{}}\n\
         http {{\n{temporary}    access_log off;\n{http}\n}}\n",
        folder.path("nginx.pid")
    )
}

/// Converts a file with the built program into `weir.toml` beside it.
fn convert(folder: &Folder, file: &str) -> Finished {
    let output = folder.path("weir.toml");
    let _ = std::fs::remove_file(&output);
    run_tool(&weir_binary(), &["convert", file, "--output", &output], b"", PATIENCE)
}

/// A real nginx and a Weir with the same config, each at an address of its own.
struct Both {
    nginx_at: SocketAddr,
    weir_at: SocketAddr,
    /// What the conversion said of each directive.
    said: String,
    folder: Folder,
    // The program ends before its folder goes.
    _nginx: (Program, Folder),
    weir: Weir,
}

impl Both {
    /// Starts both with an `http` block in which `@web` stands for the address to listen at, and `@NAME` for
    /// that of a backend.
    fn of(http: &str, backends: &[(&str, &Backend)]) -> Both {
        Both::with_files(http, backends, &[])
    }

    /// [`Both::of`] with files, in which the same names have a meaning; `@dir` stands for their folder.
    fn with_files(http: &str, backends: &[(&str, &Backend)], files: &[(&str, &str)]) -> Both {
        let (nginx_at, weir_at) = (free_address(), free_address());
        let written = |at: SocketAddr| {
            let folder = Folder::new();
            let replaced = |text: &str| {
                let mut text = text.replace("@dir", &folder.path("")).replace("@web", &at.to_string());
                for (name, backend) in backends {
                    text = text.replace(&format!("@{name}"), &backend.address().to_string());
                }
                text
            };
            for (name, text) in files {
                folder.write(name, &replaced(text));
            }
            let file = folder.write("nginx.conf", &replaced(&with_frame(&folder, http)));
            (folder, file)
        };
        let (of_nginx, for_nginx) = written(nginx_at);
        let (folder, for_weir) = written(weir_at);
        let finished = convert(&folder, &for_weir);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let toml = std::fs::read_to_string(folder.path("weir.toml")).expect("it was written");
        let checked = run_tool(&weir_binary(), &["check", &folder.path("weir.toml")], b"", PATIENCE);
        assert_eq!(checked.code, 0, "{}\n{toml}", checked.stderr);
        let weir = Setup::of(&toml).start();
        let nginx = Program::start(Command::new(tool("nginx", "nginx")).args(["-c", &for_nginx]), nginx_at);
        Both { nginx_at, weir_at, said: finished.stderr, folder, _nginx: (nginx, of_nginx), weir }
    }

    /// The answers of both to a request, of which `head` is the first line and the fields.
    fn ask(&self, head: &str) -> [Seen; 2] {
        [("nginx", self.nginx_at), ("weir", self.weir_at)].map(|(name, at)| {
            let method = head.split(' ').next().unwrap_or_default();
            let mut wire = Wire::connect(at);
            wire.sends(head);
            Seen::of(name, wire.receives_response_to(method))
        })
    }

    /// Both do the same with a request; `fields` are those of which the backend is told the same. Gives what
    /// both did.
    fn agree(&self, head: &str, fields: &[&str]) -> Seen {
        let [nginx, weir] = self.ask(head);
        let shown = |seen: &Seen| {
            let told: Vec<String> =
                fields.iter().map(|field| format!("{field}: {:?}", seen.field(field))).collect();
            format!("{} {} {} [{}]", seen.status, seen.place(), seen.asked(), told.join(", "))
        };
        assert_eq!(
            shown(&nginx),
            shown(&weir),
            "{head}\nnginx on the left\n{:?}\n{:?}\n{}\n{}",
            nginx.response,
            weir.response,
            std::fs::read_to_string(self.folder.path("weir.toml")).unwrap_or_default(),
            self.weir.story()
        );
        weir
    }

    /// [`Both::agree`] for a GET of a path of this host.
    fn get(&self, host: &str, path: &str) -> Seen {
        self.agree(&format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"), &["host"])
    }

    /// The verdict of a directive has this.
    fn says(&self, line: &[&str]) {
        let has = |text: &str| line.iter().all(|part| text.contains(part));
        assert!(self.said.lines().any(has), "{line:?} is not said in\n{}", self.said);
    }
}

/// An answer.
struct Seen {
    by: &'static str,
    status: u16,
    response: Response,
}

impl Seen {
    fn of(by: &'static str, response: Response) -> Seen {
        Seen { by, status: response.status, response }
    }

    /// Where a redirect leads: on the same site, the path and query alone, which nginx makes a whole address.
    fn place(&self) -> String {
        let location = self.response.fields.one("location").unwrap_or_default();
        let Some((_, rest)) = location.split_once("://") else { return location.to_owned() };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        match authority.starts_with("127.0.0.1") || authority.starts_with("a.example") {
            true => path.to_owned(),
            false => location.to_owned(),
        }
    }

    /// Which backend was asked for what: `app GET /x`; empty if none was.
    fn asked(&self) -> String {
        let text = self.response.text();
        let first = text.lines().next().unwrap_or_default().to_owned();
        let is_told = self.response.fields.one("x-powered-by").is_some() || text.contains("\nhost: ");
        match first.rsplit_once(' ').filter(|_| is_told) {
            Some((front, target)) => format!("{front} {}", normal(target)),
            None => String::new(),
        }
    }

    /// The value of a field as the backend was told it.
    fn field(&self, name: &str) -> Option<String> {
        let text = self.response.text();
        let head = text.split("\n\n").next().unwrap_or_default().to_owned();
        let found = head.lines().skip(1).find_map(|line| line.strip_prefix(&format!("{name}: ")));
        // Capitals of a host mean nothing; nginx makes them small.
        found.map(|value| if name == "host" { value.to_ascii_lowercase() } else { value.to_owned() })
    }

    fn answers(&self, status: u16, asked: &str) -> &Seen {
        assert_eq!((self.status, self.asked().as_str()), (status, asked), "by {}", self.by);
        self
    }
}

/// A target with its path in the normal form, which backends get from Weir: nginx passes it as it was sent.
fn normal(target: &str) -> String {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut plain = String::new();
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 3).unwrap_or_default();
        match u8::from_str_radix(code, 16) {
            Ok(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                plain.push(char::from(byte))
            }
            _ => plain.push_str(&format!("%{code}")),
        }
        rest = rest.get(at + 3..).unwrap_or_default();
    }
    plain.push_str(rest);
    let mut segments: Vec<&str> = Vec::new();
    let all: Vec<&str> = plain.split('/').skip(1).collect();
    for (at, segment) in all.iter().enumerate() {
        let is_last = at + 1 == all.len();
        match *segment {
            ".." => drop(segments.pop()),
            "." => {}
            "" if !is_last => {}
            other => segments.push(other),
        }
    }
    format!("/{}{query}", segments.join("/"))
}

#[test]
fn the_file_of_the_seed_converts_with_nothing_unsupported_and_serves() {
    let seed = include_str!("../../../crates/weir-convert/src/nginx/seed.conf");
    let backend = telling("origin");
    let folder = Folder::new();
    let listen = free_address();
    let text = seed
        .replace("listen 79;", &format!("listen {listen};"))
        .replace("127.0.0.1:81", &backend.address().to_string())
        .replace("worker_processes 100", "worker_processes 2");
    let file = folder.write("nginx.conf", &text);
    let finished = convert(&folder, &file);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stderr.ends_with(", 0 unsupported\n"), "{}", finished.stderr);
    let toml = std::fs::read_to_string(folder.path("weir.toml")).expect("it was written");
    let weir = Setup::of(&toml).start();
    for _ in 0..3 {
        let mut client = Wire::connect(listen);
        client.sends("GET /any?x=1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let text = client.receives_status(200).text();
        assert!(text.starts_with("origin GET /any?x=1\n"), "{text}\n{}", weir.story());
    }
    assert_eq!(backend.served(), 1, "all but the first were answered from memory");
}

#[test]
fn what_is_no_nginx_conf_is_refused_with_the_line() {
    let folder = Folder::new();
    let file = folder.write("nginx.conf", "http {\n  include conf.d/*.conf;\n}\n");
    folder.write("conf.d/a.conf", "server {\n  listen 80\n}\n");
    let finished = convert(&folder, &file);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("conf.d/a.conf:3: unexpected `}`; `listen` (line 2) has no `;`"),
        "{}",
        finished.stderr
    );
}

#[test]
fn included_files_are_read_and_verdicts_name_them() {
    let app = telling("app");
    let both = Both::with_files(
        "include @dirconf.d/*.conf;",
        &[("app", &app)],
        &[
            (
                "conf.d/a.conf",
                "upstream app { server @app; }\nserver {\n  listen @web;\n  location / {\n    proxy_pass http://app;\n\
                 include @dirheaders;\n  }\n}\n",
            ),
            ("headers", "proxy_set_header Host $http_host;\nproxy_set_header X-From nginx;\n"),
        ],
    );
    let seen = both.agree("GET /x HTTP/1.1\r\nhost: a.example\r\n\r\n", &["host", "x-from"]);
    assert_eq!(seen.field("x-from").as_deref(), Some("nginx"));
    both.says(&["exact", "headers:2", "proxy_set_header"]);
    both.says(&["exact", "conf.d/a.conf:5", "proxy_pass"]);
}

#[test]
fn the_output_of_nginx_t_is_converted_like_its_files() {
    let dump = "# configuration file /etc/nginx/nginx.conf:\nhttp {\n  include /etc/nginx/conf.d/*.conf;\n}\n\n\
                # configuration file /etc/nginx/conf.d/a.conf:\nserver {\n  listen 8080;\n  location / {\n    proxy_pass http://127.0.0.1:9000;\n  }\n}\n";
    let folder = Folder::new();
    let file = folder.write("all.conf", dump);
    let finished = convert(&folder, &file);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stderr.contains("conf.d/a.conf:4  proxy_pass: "), "{}", finished.stderr);
    let toml = std::fs::read_to_string(folder.path("weir.toml")).expect("it was written");
    assert!(toml.contains("bind = \"0.0.0.0:8080\"") && toml.contains("127.0.0.1:9000"), "{toml}");
}
