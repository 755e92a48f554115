//! TLS handshakes, one after another, by openssl's `s_time`: its command line and what it prints.

use std::io;
use std::net::SocketAddr;

use super::LoadResult;

/// The command. Each handshake is followed by a request, so that clients of TLS 1.3 see the tickets that
/// follow it.
pub fn command(target: SocketAddr, seconds: u32, resumed: bool, path: &str) -> Vec<String> {
    let kind = if resumed { "-reuse" } else { "-new" };
    let (target, seconds) = (target.to_string(), seconds.to_string());
    ["openssl", "s_time", "-connect", &target, kind, "-www", path, "-time", &seconds]
        .map(str::to_owned)
        .to_vec()
}

/// Reads the final output of `s_time`. Its time is in whole seconds, so no rate is computed from it. Its one
/// row of letters tells what each handshake was: `*` or `t` full, `r` resumed.
pub fn parse(printed: &str, resumed: bool) -> io::Result<LoadResult> {
    let problem =
        || io::Error::other(format!("openssl s_time printed something else than its report:\n{printed}"));
    let line = printed.lines().rfind(|line| line.contains(" real seconds")).ok_or_else(problem)?;
    let numbers: Vec<u64> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[connections, seconds, bytes_each] = &numbers[..] else { return Err(problem()) };
    let mut result = LoadResult {
        requests: connections,
        bytes: connections * bytes_each,
        seconds: seconds as f64,
        ..LoadResult::default()
    };
    if resumed {
        let letters = printed
            .lines()
            .filter(|line| !line.is_empty() && line.bytes().all(|byte| b"*tr".contains(&byte)));
        let full: usize = letters.map(|line| line.bytes().filter(|&byte| byte != b'r').count()).sum();
        // The first handshake is full; it gets the session that the others resume.
        result.fail("not-resumed", full.saturating_sub(1) as u64);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_handshakes_are_counted() {
        let report = "Collecting connection statistics for 1 seconds\n****\n\n\n\
            872 connections in 0.75s; 1162.67 connections/user sec, bytes read 4514344\n\
            872 connections in 2 real seconds, 5177 bytes read per connection\n";
        let result = parse(report, false).unwrap();
        assert_eq!((result.requests, result.bytes, result.seconds), (872, 872 * 5177, 2.0));
        assert_eq!(result.error_count(), 0);
    }

    #[test]
    fn a_handshake_that_should_have_been_resumed_is_an_error() {
        let report = "starting\nrr*rtr\n\n5 connections in 0.75s; 9 connections/user sec, bytes read 50\n\
            6 connections in 2 real seconds, 10 bytes read per connection\n";
        assert_eq!(parse(report, true).unwrap().errors["not-resumed"], 1);
        assert!(parse("ERROR", false).is_err());
    }

    #[test]
    fn it_is_told_where_and_how_long() {
        let command = command("127.0.0.1:443".parse().unwrap(), 3, true, "/");
        assert_eq!(command.join(" "), "openssl s_time -connect 127.0.0.1:443 -reuse -www / -time 3");
    }
}
