//! Files that are read when a config comes into force, and whose content is not part of it. They are examined
//! with the config, so that nothing is accepted that a start would refuse, and each mistake is shown with its
//! line.

use std::path::Path;

use crate::admin::AdminTls;
use crate::auth::is_url;
use crate::fields::{Fields, Value};
use crate::log::AccessTarget;
use crate::mysql::Passwords;
use crate::named_files::{FileHolder, FileProblem, FileUse, NamedFiles};
use crate::peers::PeersTls;
use crate::report::{Findings, Severity, Span, quote};
use crate::setting::{One as _, Part};
use crate::tls::{Certificate, ListenerTls, PoolTls};

/// Longest path that is shown in full, in characters.
const SHOWN_PATH: usize = 250;

/// Reports problems with the files that tables name.
pub(super) fn look_at_all(root: &Fields, world: &dyn NamedFiles, findings: &mut Findings<'_>) {
    let mut look = Look { world, findings };
    if let Some(admin) = root.table("admin") {
        look.of_admin(admin);
        look.of_socket(admin, admin.text("bind").into_iter());
    }
    let logs = root.named("access_log").map(|log| (log, "target"));
    for (log, name) in root.table("log").map(|log| (log, "access")).into_iter().chain(logs) {
        let target = log.value(name).and_then(AccessTarget::of);
        if matches!(target, Some(AccessTarget::File(_))) {
            look.of_key(log, name, FileUse::Log);
        }
    }
    if let Some(peers) = root.table("peers") {
        look.of_key(peers, "secret_file", FileUse::PeersSecret);
        if let Some(tls) = peers.table("tls") {
            look.of_files(tls, &FileUse::PeersTls(&<PeersTls as Part>::of(tls)));
        }
    }
    for listener in root.named("listener") {
        look.of_socket(listener, listener.list("bind").iter().filter_map(|(_, bind)| text_of(bind)));
        if let Some(tls) = listener.table("tls") {
            look.of_listener(tls);
        }
        let routes = listener.tables("route").map(|(_, route)| route);
        for jwt in std::iter::once(listener).chain(routes).filter_map(|it| it.table("auth")?.table("jwt")) {
            // Keys in a file need no connection to a provider.
            if jwt.text("keys").is_some_and(is_url) {
                look.of_key(jwt, "ca", FileUse::Authorities);
            }
        }
    }
    for pool in root.named("pool") {
        look.of_pool(pool);
    }
}

/// Examines files, and collects the findings.
struct Look<'l, 's> {
    world: &'l dyn NamedFiles,
    findings: &'l mut Findings<'s>,
}

impl Look<'_, '_> {
    fn of_admin(&mut self, admin: &Fields) {
        self.of_key(admin, "token_file", FileUse::AdminToken);
        let Some(tls) = admin.table("tls") else { return };
        let AdminTls { cert, key, client_ca } = <AdminTls as Part>::of(tls);
        self.of_certificate(tls, &Certificate { cert, key, ocsp: None });
        self.of_files(tls, &FileUse::Clients(&ListenerTls { client_ca, ..ListenerTls::default() }));
    }

    /// Checks the owner of a Unix socket, if one of `binds` is a file.
    fn of_socket<'f>(&mut self, fields: &Fields, mut binds: impl Iterator<Item = &'f str>) {
        let Some(said) = fields.table("unix_socket") else { return };
        if !binds.any(|bind| bind.starts_with("unix:/")) {
            return;
        }
        for (key, holder) in [("owner", FileHolder::User), ("group", FileHolder::Group)] {
            let Some(name) = said.text(key) else { continue };
            if let Err(hint) = self.world.knows(holder, name) {
                let message = format!("{} is no {} of this machine", quote(name), holder.word());
                self.findings.error(said.at(key), message, hint);
            }
        }
    }

    fn of_listener(&mut self, fields: &Fields) {
        let tls = <ListenerTls as Part>::of(fields);
        if !tls.is_spoken() {
            return;
        }
        for (_, certificate) in fields.tables("certificates") {
            self.of_certificate(certificate, &<Certificate as Part>::of(certificate));
        }
        self.of_key(fields, "certificate_folder", FileUse::CertificateFolder);
        self.of_files(fields, &FileUse::Clients(&tls));
        self.of_files(fields, &FileUse::TicketKeys(&tls.ticket_keys));
        for (_, acme) in fields.tables("acme") {
            let on_demand = acme.table("on_demand");
            on_demand.into_iter().for_each(|it| self.of_key(it, "ca", FileUse::Authorities));
            // An order that fails is no reason not to serve existing certificates.
            for problem in self.found_at(acme, "ca", FileUse::Authorities) {
                let hint = format!("{}: no certificate can be ordered", problem.hint);
                self.note(acme.at("ca"), FileProblem { severity: Severity::Warning, hint, ..problem });
            }
        }
    }

    fn of_pool(&mut self, pool: &Fields) {
        if let Some(tls) = pool.table("tls") {
            let addresses: Vec<&str> =
                pool.tables("backends").filter_map(|(_, backend)| backend.text("address")).collect();
            self.of_files(tls, &FileUse::Backends(&<PoolTls as Part>::of(tls), &addresses));
        }
        if let Some(sticky) = pool.table("sticky") {
            self.of_key(sticky, "secret_file", FileUse::StickySecret);
        }
        let Some(mysql) = pool.table("mysql") else { return };
        self.of_key(mysql, "password_file", FileUse::Password);
        if matches!(mysql.value("passwords"), Some(Value::Word(word)) if *word == Passwords::File.word()) {
            self.of_key(mysql, "passwords_file", FileUse::Accounts);
        }
        self.of_key(mysql, "key_file", FileUse::OwnKey);
        self.of_key(mysql, "server_public_key", FileUse::ServerKey);
    }

    /// A certificate entry that lacks a part has been reported.
    fn of_certificate(&mut self, fields: &Fields, certificate: &Certificate) {
        if fields.text("cert").is_some() && fields.text("key").is_some() {
            self.of_files(fields, &FileUse::Certificate(certificate));
        }
    }

    fn of_key<'f>(&mut self, fields: &'f Fields, name: &str, as_what: impl FnOnce(&'f Path) -> FileUse<'f>) {
        for problem in self.found_at(fields, name, as_what) {
            self.note(fields.at(name), problem);
        }
    }

    fn found_at<'f>(
        &self,
        fields: &'f Fields,
        name: &str,
        as_what: impl FnOnce(&'f Path) -> FileUse<'f>,
    ) -> Vec<FileProblem> {
        fields.text(name).map_or_else(Vec::new, |path| self.world.look_at(&as_what(Path::new(path))))
    }

    /// Reports each problem at the place that names its file. Several problems of one file get different
    /// places, as far as the file is named that often: a certificate and its key in one missing file are two
    /// problems.
    fn of_files(&mut self, fields: &Fields, files: &FileUse<'_>) {
        let found = self.world.look_at(files);
        for (number, problem) in found.iter().enumerate() {
            let before = found[..number].iter().filter(|other| other.file == problem.file).count();
            self.note(place_of(fields, &problem.file, before), problem.clone());
        }
    }

    fn note(&mut self, at: Span, problem: FileProblem) {
        let path = problem.file.display().to_string();
        let shown = if path.chars().count() > SHOWN_PATH { quote(&path) } else { format!("`{path}`") };
        let message = format!("{shown} {}", problem.what);
        match problem.severity {
            Severity::Error => self.findings.error(at, message, problem.hint),
            Severity::Warning => self.findings.warning(at, message, problem.hint),
        }
    }
}

fn text_of(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// The place where a table names a file, after skipping `behind` such places; the table's own place if there
/// is none.
fn place_of(fields: &Fields, file: &Path, behind: usize) -> Span {
    let is_it = |value: &Value| matches!(value, Value::Text(text) if Path::new(text) == file);
    let mut places: Vec<Span> = Vec::new();
    for entry in &fields.entries {
        match &entry.value {
            Value::List(list) => {
                places.extend(list.iter().filter(|(_, value)| is_it(value)).map(|(at, _)| *at));
            }
            value if is_it(value) => places.push(entry.at),
            _ => {}
        }
    }
    places.get(behind).or(places.last()).copied().unwrap_or(fields.at)
}
