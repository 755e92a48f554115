//! `weir convert`: what comes out is taken by `weir check` and serves.

mod haproxy;
mod mysqlrouter;
mod nginx;

use weir_tests::dialogue::{Backend, PATIENCE, Setup, Weir, Wire, free_address, run_tool, weir_binary};

/// The file that seed 001 was measured with, at ports of ours.
fn seed(listen: u16, backend: u16) -> String {
    include_str!("../../../crates/weir-convert/src/arc2/seed.toml")
        .replace("listening_port_http = 80", &format!("listening_port_http = {listen}"))
        .replace("forward_port_http = 81", &format!("forward_port_http = {backend}"))
        .replace("0.0.0.0", "127.0.0.1")
}

/// Converts with the built program; the file, and what it said.
fn converts(source: &str, more: &[&str]) -> (i32, String, String) {
    let dir =
        std::env::temp_dir().join(format!("weir-convert-{}-{}", std::process::id(), free_address().port()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("arc2.toml");
    std::fs::write(&file, source).expect("write");
    let path = file.display().to_string();
    let mut arguments = vec!["convert", &path];
    arguments.extend(more);
    let finished = run_tool(&weir_binary(), &arguments, b"", PATIENCE);
    std::fs::remove_dir_all(&dir).expect("remove");
    (finished.code, finished.stdout, finished.stderr)
}

#[test]
fn the_file_of_the_seed_converts_is_good_and_serves() {
    let backend = Backend::saying("Hello World!");
    let listen = free_address();
    let (code, config, said) = converts(&seed(listen.port(), backend.address().port()), &["--strict"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.ends_with("16 exact, 3 approximate, 0 unsupported\n"), "{said}");
    let weir: Weir = Setup::of(&config).start();
    for _ in 0..3 {
        let mut client = Wire::connect(listen);
        client.sends("GET /any?x=1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert_eq!(client.receives_status(200).text(), "Hello World!", "{}", weir.story());
    }
    let mut stranger = Wire::connect(listen);
    stranger.sends("GET / HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n");
    stranger.receives_status(404);
}

#[test]
fn what_can_not_be_said_ends_a_strict_conversion_with_1() {
    let source = format!("ip_ttl = 64\n{}", seed(8080, 8081));
    let (code, config, said) = converts(&source, &[]);
    assert_eq!(code, 0, "{said}");
    assert!(config.contains("#   unsupported   line 1  ip_ttl: "), "{config}");
    let (code, _, said) = converts(&source, &["--strict"]);
    assert_eq!(code, 1, "{said}");
    let (code, config, said) = converts("global\n  daemon\ndefaults\n  mode http\n", &[]);
    assert_eq!((code, config.as_str()), (1, ""));
    assert!(said.contains("HAProxy"), "{said}");
}
