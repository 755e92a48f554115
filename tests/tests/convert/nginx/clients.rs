//! Who a client is: by a proxy's fields, and by certificates.

use super::{Both, Folder, convert, telling, with_frame};
use weir_tests::dialogue::{Authority, PATIENCE, Program, Setup, free_address, run_tool, tool};

#[test]
fn a_client_is_whom_the_trusted_proxy_names() {
    let app = telling("app");
    for (real_ip, heads) in [
        (
            "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on; set_real_ip_from 10.0.0.0/8;",
            [
                "x-forwarded-for: 192.0.2.1, 10.0.0.7",
                "x-forwarded-for: 192.0.2.1, 198.51.100.7",
                "x-real-ip: 192.0.2.9",
            ],
        ),
        (
            "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;",
            ["x-forwarded-for: 192.0.2.1, 10.0.0.7", "x-forwarded-for: 192.0.2.1", "x-real-ip: 192.0.2.9"],
        ),
        (
            "set_real_ip_from 127.0.0.1;",
            ["x-forwarded-for: 192.0.2.1", "x-real-ip: 192.0.2.1", "x-real-ip: 198.51.100.7"],
        ),
    ] {
        let config = format!(
            "{real_ip}\nserver {{ listen @web; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Client $remote_addr;\n\
             location / {{ proxy_pass http://@app; }}\n\
             location /some/ {{ deny 192.0.2.0/24; proxy_pass http://@app; }} }}"
        );
        let both = Both::of(&config, &[("app", &app)]);
        for head in heads {
            for path in ["/", "/some/x"] {
                let head = format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n{head}\r\n\r\n");
                both.agree(&head, &["x-real-ip", "x-client"]);
            }
        }
    }
}

#[test]
fn certificates_of_clients_are_asked_for_where_nginx_asks() {
    let authority = Authority::new()
        .signs("site", &["open.example", "closed.example", "maybe.example"])
        .signs("ann", &["ann"]);
    let files = [("@cert", "site.pem"), ("@key", "site.key"), ("@ca", "ca.pem")];
    let text = |at: std::net::SocketAddr, folder: &Folder| {
        let server = |name: &str, more: &str| {
            format!(
                "server {{ listen {at} ssl; server_name {name}.example; ssl_certificate @cert; ssl_certificate_key @key; {more}\n\
                 location / {{ return 200 \"{name}\"; }} }}\n"
            )
        };
        let http = [
            server("open", ""),
            server("closed", "ssl_client_certificate @ca; ssl_verify_client on;"),
            server("maybe", "ssl_client_certificate @ca; ssl_verify_client optional; if ($ssl_client_verify != SUCCESS) { return 403; }"),
        ]
        .concat();
        files
            .iter()
            .fold(with_frame(folder, &http), |text, (name, file)| text.replace(name, &authority.path(file)))
    };
    let (nginx_at, weir_at) = (free_address(), free_address());
    let (nginx_folder, folder) = (Folder::new(), Folder::new());
    let file = nginx_folder.write("nginx.conf", &text(nginx_at, &nginx_folder));
    let mut command = std::process::Command::new(tool("nginx", "nginx"));
    let _nginx = Program::start(command.args(["-c", &file]), nginx_at);
    let finished = convert(&folder, &folder.write("nginx.conf", &text(weir_at, &folder)));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let toml = std::fs::read_to_string(folder.path("weir.toml")).expect("it was written");
    let _weir = Setup::of(&toml).start();
    let asks = |at: std::net::SocketAddr, name: &str, certificate: &[&str]| {
        let to = format!("{name}.example:443:{}:{}", at.ip(), at.port());
        let (ca, url) = (authority.path("ca.pem"), format!("https://{name}.example/"));
        let mut words = vec![
            "--silent",
            "--noproxy",
            "*",
            "--write-out",
            " %{http_code}",
            "--cacert",
            &ca,
            "--connect-to",
            &to,
            &url,
        ];
        words.extend(certificate);
        let answer = run_tool(&tool("curl", "curl"), &words, b"", PATIENCE).stdout;
        let (body, status) = answer
            .rsplit_once(' ')
            .map(|(body, status)| (body.to_owned(), status.to_owned()))
            .unwrap_or_default();
        if status == "200" { format!("{status} {body}") } else { status }
    };
    let (cert, key) = (authority.path("ann.pem"), authority.path("ann.key"));
    for name in ["open", "closed", "maybe"] {
        for certificate in [&[][..], &["--cert", &cert, "--key", &key]] {
            let (nginx, weir) = (asks(nginx_at, name, certificate), asks(weir_at, name, certificate));
            assert_eq!(nginx, weir, "{name} {certificate:?}\n{toml}");
        }
    }
    assert_eq!(asks(weir_at, "closed", &[]), "400");
    assert_eq!(asks(weir_at, "closed", &["--cert", &cert, "--key", &key]), "200 closed");
}
