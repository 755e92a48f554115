//! Talks to the admin API of a running Weir.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use weir_admin::reach::{self, Tls, Trust};
use weir_config::{AdminBind, Checked};
use weir_control::reload::{ReadError, Source};

use crate::arguments::{AdminTrust, ConfigArgument, Running};
use crate::exit::Exit;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A reload waits for workers to move over; nothing else takes long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// After this time without an answer, a second request checks whether the process answers at all.
const SILENCE: Duration = Duration::from_secs(3);
/// Time to answer that second request; a busy process may need it.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// Largest answer: the status of thousands of backends.
const ANSWER_BYTES: usize = 64 << 20;
/// Address of the admin API unless the config names another.
const DEFAULT_ADMIN: AdminBind =
    AdminBind::Inet(SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9900));

/// A client of one running Weir's admin API.
pub struct Client {
    admin: AdminBind,
    token: Option<String>,
    tls: Option<Tls>,
    /// Whether silence is tolerated, for callers that poll for something that takes long.
    is_patient: bool,
}

/// Calls the running Weir and prints the answer: as JSON, or as the text that `words` makes of it.
pub fn ask_and_print(
    running: &Running,
    method: Method,
    path: &str,
    body: Option<&Value>,
    json: bool,
    words: impl FnOnce(Value) -> serde_json::Result<String>,
) -> Result<Exit, Exit> {
    let client = Client::new(running)?;
    if json {
        let answer = block_on(client.call_for_program(method, path, body))?;
        say!("{:#}", answer.map_err(|error| error.report())?.done()?.body);
        return Ok(Exit::Done);
    }
    let answer = block_on(client.succeed(method, path, body))??;
    let words = words(answer.body).map_err(|error| {
        let address = client.address();
        Exit::Failed
            .saying(format_args!("the running Weir at {address} has another version: {error}; try --json"))
    })?;
    say!("{}", words.trim_end());
    Ok(Exit::Done)
}

/// Why a call got no answer.
#[derive(Debug)]
pub enum CallError {
    /// Nothing listens at the address.
    NotRunning(String),
    /// Something listens, but did not give a valid answer.
    Broken(String),
}

impl CallError {
    /// Prints the error and gives the exit code.
    pub fn report(&self) -> Exit {
        match self {
            CallError::NotRunning(message) => Exit::NotRunning.saying(message),
            CallError::Broken(message) => Exit::Failed.saying(message),
        }
    }
}

/// An answer of the admin API.
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Body; `Null` if it is not JSON.
    pub body: Value,
    /// Whether the request carried a token.
    had_token: bool,
}

impl Answer {
    /// Returns the answer if the call succeeded; otherwise prints why not.
    fn done(self) -> Result<Answer, Exit> {
        if self.status.is_success() { Ok(self) } else { Err(Exit::Failed.saying(self.error())) }
    }

    /// What went wrong, in the API's words. For a refused token, advice on the command line's options
    /// instead.
    pub fn error(&self) -> String {
        if self.status == StatusCode::UNAUTHORIZED {
            let advice = "name the file with it by `--token-file`, by WEIR_TOKEN_FILE, or name by `-c` the config, which says `admin.token_file`";
            return match self.had_token {
                true => format!("the admin API does not take this token: {advice}"),
                false => format!("the admin API wants a token: {advice}"),
            };
        }
        let message = self.body["error"]["message"].as_str();
        message.map_or_else(|| format!("the admin API answered {}", self.status), str::to_owned)
    }
}

/// The config files that the command line names, or else the first of `$WEIR_CONFIG`, `./weir.toml` and
/// `/etc/weir/weir.toml` that is set or exists. Empty if there is none.
pub fn config_paths(argument: &ConfigArgument) -> Vec<PathBuf> {
    if !argument.config.is_empty() {
        return argument.config.clone();
    }
    let named = std::env::var_os("WEIR_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = named.or_else(|| {
        ["weir.toml", "/etc/weir/weir.toml"].into_iter().map(PathBuf::from).find(|path| path.exists())
    });
    found.into_iter().collect()
}

impl Client {
    /// A client of the Weir that `running` describes.
    pub fn new(running: &Running) -> Result<Client, Exit> {
        let paths = config_paths(&running.config);
        let said = match (&running.admin, paths.is_empty()) {
            (_, true) => Said::default(),
            // The config was not named, so errors in it are ignored: it may not belong to the Weir that
            // `--admin` names.
            (Some(_), false) if running.config.config.is_empty() => {
                Source::Files(paths).look().ok().and_then(|checked| said_by(&checked)).unwrap_or_default()
            }
            (Some(_), false) => admin_of(paths)?.unwrap_or_default(),
            (None, false) => admin_of(paths.clone())?.ok_or_else(|| is_off(&paths))?,
        };
        let bind = running.admin.clone().unwrap_or(said.bind);
        let token_file = running.token_file.clone().or(said.token_file);
        let token = token_file
            .as_deref()
            .map(weir_admin::auth::read_token_or_pipe)
            .transpose()
            .map_err(|error| Exit::Failed.saying(error))?;
        let AdminTrust { admin_ca, admin_name, admin_cert, admin_key } = &running.tls;
        let is_asked = admin_ca.is_some() || admin_name.is_some() || admin_cert.is_some();
        let trust = Trust {
            ca: admin_ca.clone(),
            name: admin_name.clone(),
            own: said.certificate,
            client: admin_cert.clone().zip(admin_key.clone()),
        };
        let tls = (is_asked || trust.own.is_some()).then(|| trust.load()).transpose();
        let tls = tls.map_err(|error| Exit::Failed.saying(error))?;
        Ok(Client { admin: reachable(bind), token, tls, is_patient: false })
    }

    /// The same client, but one that does not give up because of silence. For callers that poll for something
    /// that takes long.
    pub fn patient(self) -> Client {
        Client { is_patient: true, ..self }
    }

    /// The address that it connects to.
    pub fn address(&self) -> &AdminBind {
        &self.admin
    }

    /// Whether it uses TLS.
    pub fn is_over_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Makes one call. Texts in the answer are safe to print on a terminal.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, CallError> {
        let mut answer = self.call_for_program(method, path, body).await?;
        make_plain(&mut answer.body);
        Ok(answer)
    }

    /// Makes one call and leaves the texts as they were received, for output that is not for a terminal.
    async fn call_for_program(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, CallError> {
        let broken = |error: &dyn std::fmt::Display| {
            CallError::Broken(format!("the admin API at {} broke off: {error}", self.admin))
        };
        let connected =
            tokio::time::timeout(CONNECT_TIMEOUT, reach::connect(&self.admin, self.tls.as_ref())).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                return Err(CallError::NotRunning(format!("no Weir answers at {}: {error}", self.admin)));
            }
            Err(_) => {
                return Err(CallError::NotRunning(format!(
                    "no Weir answers at {} within {CONNECT_TIMEOUT:?}",
                    self.admin
                )));
            }
        };
        let exchange = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| broken(&error))?;
            tokio::spawn(connection);
            let response = sender
                .send_request(self.request(method, path, body))
                .await
                .map_err(|error| broken(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| broken(&error))?;
            let body: Option<Value> = serde_json::from_slice(&body.to_bytes()).ok();
            if status.is_success() && body.is_none() {
                return Err(self.no_weir());
            }
            Ok(Answer { status, body: body.unwrap_or_default(), had_token: self.token.is_some() })
        };
        tokio::select! {
            answer = exchange => answer,
            () = self.falls_silent() => Err(CallError::Broken(format!(
                "{} takes connections and has answered nothing for {:?}, not even /livez: the process that listens there hangs, is stopped, \
                 gets no processor or is no Weir (`ss -ltnp` or `ss -lxp` names it). What was asked may still be done",
                self.admin,
                SILENCE + SIGN_OF_LIFE
            ))),
            () = tokio::time::sleep(ANSWER_TIMEOUT) => {
                Err(CallError::Broken(format!("no answer from {} within {ANSWER_TIMEOUT:?}", self.admin)))
            }
        }
    }

    /// Returns when the process no longer answers. A slow answer is told from none by a second request, which
    /// is always answered fast.
    async fn falls_silent(&self) {
        loop {
            tokio::time::sleep(SILENCE).await;
            let asked = tokio::time::timeout(SIGN_OF_LIFE, self.ask_whether_it_lives()).await;
            if asked.is_err() && !self.is_patient {
                return;
            }
        }
    }

    /// Returns when `GET /livez` was answered or its connection was ended.
    async fn ask_whether_it_lives(&self) {
        let Ok(stream) = reach::connect(&self.admin, self.tls.as_ref()).await else { return };
        let Ok((mut sender, connection)) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await
        else {
            return;
        };
        let asking = sender.send_request(self.request(Method::GET, "/livez", None));
        tokio::select! {
            _ = asking => {}
            _ = connection => {}
        }
    }

    /// Makes one call and returns its answer if it succeeded; otherwise prints why not.
    pub async fn succeed(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, Exit> {
        self.call(method, path, body).await.map_err(|error| error.report())?.done()
    }

    /// The error for an answer that is not Weir's: another program listens at the address, or another version
    /// of Weir.
    pub fn no_weir(&self) -> CallError {
        CallError::Broken(format!(
            "what answers at {} is not the admin API of a Weir, or of another version",
            self.admin
        ))
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Request<Full<Bytes>> {
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let mut request = Request::new(Full::new(bytes));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        let mut set = |name, value: String| {
            if let Ok(value) = header::HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        };
        let host = self.admin.inet().map_or_else(|| "localhost".to_owned(), |address| address.to_string());
        set(header::HOST, host);
        set(header::USER_AGENT, format!("weir/{}", env!("CARGO_PKG_VERSION")));
        set(header::CONNECTION, "close".to_owned());
        if body.is_some() {
            set(header::CONTENT_TYPE, "application/json".to_owned());
        }
        if let Some(token) = &self.token {
            set(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request
    }
}

/// Escapes the control characters and invisible characters in an answer's texts, so that they can't control
/// the terminal: some texts come from others, such as a certificate authority. Line breaks and tabs stay.
fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) if text.chars().any(steers) => {
            let plain = text.chars().map(|c| match steers(c) {
                true => c.escape_unicode().to_string(),
                false => c.to_string(),
            });
            *text = plain.collect();
        }
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(fields) => fields.values_mut().for_each(make_plain),
        _ => {}
    }
}

/// Whether a character controls a terminal, or is invisible and makes a line read differently from what it
/// says.
fn steers(c: char) -> bool {
    let is_invisible = matches!(c,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    is_invisible || (c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Runs `work` on a single-threaded runtime of its own.
pub fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Exit::Failed.saying(format_args!("the runtime can't be started: {error}")))?;
    Ok(runtime.block_on(work))
}

/// Percent-encodes one segment of a path (RFC 3986 section 3.3).
pub fn segment(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

/// The address to connect to for a listening address: loopback if that is unspecified.
fn reachable(bind: AdminBind) -> AdminBind {
    match bind {
        AdminBind::Inet(mut address) if address.ip().is_unspecified() => {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
            AdminBind::Inet(address)
        }
        bind => bind,
    }
}

/// What a config says about the admin API.
#[derive(Debug, PartialEq)]
struct Said {
    bind: AdminBind,
    token_file: Option<PathBuf>,
    /// Its certificate, if it is served over TLS.
    certificate: Option<PathBuf>,
}

impl Default for Said {
    fn default() -> Said {
        Said { bind: DEFAULT_ADMIN, token_file: None, certificate: None }
    }
}

/// The admin API's address in the config and the files that go with it. From files with mistakes it takes
/// what it can find: `weir reload` of such files must still reach the Weir that is to refuse them, and the
/// caller may not be allowed to read the secrets that they name.
///
/// `None` means that the admin API is switched off.
fn admin_of(paths: Vec<PathBuf>) -> Result<Option<Said>, Exit> {
    let source = Source::Files(paths);
    match source.look() {
        Ok(checked) => Ok(said_by(&checked)),
        Err(error @ ReadError::Unreadable { .. }) => Err(Exit::Failed.saying(error)),
        Err(ReadError::Refused(_)) => {
            let texts = source.texts().map_err(|error| Exit::Failed.saying(error))?;
            Ok(Some(seen_in(&texts.join("\n"))))
        }
    }
}

/// What a valid config says about the admin API; `None` if it is switched off.
fn said_by(checked: &Checked) -> Option<Said> {
    checked.config.admin.as_ref().map(|admin| Said {
        bind: admin.bind.clone(),
        token_file: admin.token_file.clone(),
        certificate: admin.tls.as_ref().map(|tls| tls.cert.clone()),
    })
}

fn is_off(paths: &[PathBuf]) -> Exit {
    let names = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    Exit::NotRunning.saying(format_args!("{names} switches the admin API off (admin.bind = \"off\")"))
}

/// Finds the keys of `[admin]` in a text, line by line, if they are written in the plain form.
fn seen_in(text: &str) -> Said {
    let mut said = Said::default();
    let mut table = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            table = line;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let value = value.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
        match (table, key.trim()) {
            ("[admin]", "bind") => said.bind = value.parse().unwrap_or(said.bind),
            ("[admin]", "token_file") => said.token_file = Some(PathBuf::from(value)),
            ("[admin.tls]", "cert") => said.certificate = Some(PathBuf::from(value)),
            _ => {}
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_becomes_one_segment_of_a_path() {
        assert_eq!(segment("127.0.0.1:9001"), "127.0.0.1:9001");
        assert_eq!(segment("[::1]:80/../x y"), "%5B::1%5D:80%2F..%2Fx%20y");
    }

    #[test]
    fn the_admin_address_of_a_file_with_mistakes_is_still_found() {
        let text = "[listener.web]\nbnd = 'oops'\n[admin]\nbind = \"127.0.0.1:9911\" # here\ntoken_file = '/t'\n[pool.x]\nbind = '1.2.3.4:5'\n";
        let said = Said {
            bind: "127.0.0.1:9911".parse().unwrap(),
            token_file: Some("/t".into()),
            certificate: None,
        };
        assert_eq!(seen_in(text), said);
        assert_eq!(seen_in("nothing here"), Said::default());
        let text = "[admin]\nbind = 'unix:/run/a'\n[admin.tls]\ncert = 'a.pem'\n[pool.x\n";
        let said = seen_in(text);
        assert_eq!(
            (said.bind.to_string(), said.certificate),
            ("unix:/run/a".to_owned(), Some("a.pem".into()))
        );
    }

    #[test]
    fn an_address_bound_everywhere_is_reached_by_loopback() {
        assert_eq!(reachable("0.0.0.0:9900".parse().unwrap()), DEFAULT_ADMIN);
        assert_eq!(reachable("[::]:9900".parse().unwrap()).to_string(), "[::1]:9900");
        assert_eq!(reachable("10.0.0.1:9900".parse().unwrap()).to_string(), "10.0.0.1:9900");
    }

    #[test]
    fn words_of_others_do_not_steer_a_terminal() {
        let mut value = serde_json::json!({
            "pools": [{ "error": "\u{1b}]0;title\u{7}a\r\u{9b}31m \u{202e}b\nc\td é" }],
            "count": 1,
        });
        make_plain(&mut value);
        let text = "\\u{1b}]0;title\\u{7}a\\u{d}\\u{9b}31m \\u{202e}b\nc\td é";
        assert_eq!(value, serde_json::json!({ "pools": [{ "error": text }], "count": 1 }));
    }
}
