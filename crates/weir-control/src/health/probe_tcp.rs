//! A probe with a conversation: it sends the configured texts, and expects the configured answers.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use weir_config::Step;

use super::probe::{Answer, End, Failure, Progress};

/// Most received bytes that are searched for one step; the guide says so.
const CAME_BYTES: usize = 16 * 1024;

/// Executes the steps. Received bytes are consumed up to the end of the expected text; the next step searches
/// the rest, and what arrives later.
pub(super) async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    steps: &[Step],
    progress: &mut Progress,
) -> Result<Answer, Failure> {
    for (index, step) in steps.iter().enumerate() {
        if let Some(send) = &step.send {
            stream.write_all(send.bytes()).await.map_err(Failure::Broken)?;
            stream.flush().await.map_err(Failure::Broken)?;
        }
        let Some(expected) = &step.expect else { continue };
        let words = format!("{} (step {} of {})", expected.words(), index + 1, steps.len());
        progress.expected = Some(words.clone());
        let end = loop {
            if let Some(end) = expected.end_in(&progress.came) {
                progress.came.drain(..end);
                progress.expected = None;
                break None;
            }
            if progress.came.len() >= CAME_BYTES {
                break Some(End::Enough(CAME_BYTES));
            }
            let mut room = (&mut stream).take((CAME_BYTES - progress.came.len()) as u64);
            if room.read_buf(&mut progress.came).await.map_err(Failure::Broken)? == 0 {
                break Some(End::Closed);
            }
        };
        if let Some(end) = end {
            let came = std::mem::take(&mut progress.came);
            return Err(Failure::Unexpected { came, expected: words, end });
        }
    }
    Ok(Answer::Told(steps.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;
    use weir_config::Check;

    /// The steps of a probe as a file has them.
    fn steps(text: &str) -> Vec<Step> {
        let file = format!(
            "[listener.a]\nbind = '127.0.0.1:1'\nprotocol = 'tcp'\npool = 'p'\n[pool.p]\nbackends = ['127.0.0.1:2']\nhealth = {{ steps = {text} }}\n"
        );
        let config = weir_config::parse("test.toml", &file).unwrap_or_else(|report| panic!("{report}"));
        match &config.pools[0].health.check {
            Check::Tcp(probe) => probe.steps.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Probes a peer that says `answers`, byte by byte, and then closes; gives what it was sent, too.
    async fn told(text: &str, answers: &'static [u8]) -> (Result<Answer, Failure>, Vec<u8>) {
        let (ours, mut theirs) = duplex(1);
        let (steps, mut progress) = (steps(text), Progress::default());
        let peer = async {
            let (mut read, mut write) = tokio::io::split(&mut theirs);
            let mut heard = Vec::new();
            let say = async {
                let _ = write.write_all(answers).await;
                let _ = write.shutdown().await;
            };
            let hear = async { read.read_to_end(&mut heard).await };
            let _ = tokio::join!(say, hear);
            heard
        };
        tokio::join!(talk(ours, &steps, &mut progress), peer)
    }

    #[tokio::test]
    async fn a_conversation_goes_on_where_the_last_answer_ended() {
        let text = r#"[{ expect = "~^220[ -]" }, { send = "EHLO w\r\n", expect = "~(?m)^250 " }, { send = "QUIT\r\n" }]"#;
        let (answer, heard) = told(text, b"220 mail\r\n250-SIZE\r\n250 HELP\r\n").await;
        assert_eq!(answer.unwrap(), Answer::Told(3));
        assert_eq!(heard, b"EHLO w\r\nQUIT\r\n");
    }

    #[tokio::test]
    async fn another_answer_is_shown_and_the_step_named() {
        let (answer, _) =
            told(r#"[{ send = "PING\r\n" }, { expect = "+PONG" }]"#, b"-NOAUTH \x1b no\r\n").await;
        let words = answer.unwrap_err().to_string();
        assert_eq!(
            words,
            "answered \"-NOAUTH \\x1b no\\r\\n\" and closed, expected \"+PONG\" in it (step 2 of 2)"
        );
    }

    #[tokio::test]
    async fn one_who_talks_without_end_is_not_listened_to_for_ever() {
        static LONG: [u8; 100_000] = [b'x'; 100_000];
        let (answer, _) = told(r#"[{ expect = "+PONG" }]"#, &LONG).await;
        let words = answer.unwrap_err().to_string();
        assert!(words.contains("and more than 16384 bytes, expected"), "{words}");
    }
}
