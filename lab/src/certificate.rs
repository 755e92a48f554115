//! Makes a self-signed certificate for one measurement.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a P-256 key and a certificate for `localhost` and 127.0.0.1 in `directory`. Returns the values for
/// templates: `{certificate}`, `{certificate_key}`, and `{certificate_and_key}`, which is both in one file.
///
/// Err if `openssl` is missing or fails.
pub fn make(directory: &Path) -> io::Result<Vec<(String, String)>> {
    let at = |name: &str| -> PathBuf { directory.join(name) };
    let (certificate, key, both) = (at("certificate.pem"), at("key.pem"), at("both.pem"));
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args([
            "-days",
            "30",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("openssl: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("openssl ended with {}: {said}", output.status)));
    }
    fs::write(&both, [fs::read(&certificate)?, fs::read(&key)?].concat())?;
    let value = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
    Ok(vec![
        value("certificate", &certificate),
        value("certificate_key", &key),
        value("certificate_and_key", &both),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_with_its_key_and_both_in_one() {
        let directory = std::env::temp_dir().join(format!("weir-lab-certificate-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let values = make(&directory).unwrap();
        let text: Vec<String> = values.iter().map(|(_, path)| fs::read_to_string(path).unwrap()).collect();
        fs::remove_dir_all(&directory).unwrap();
        assert!(text[0].contains("BEGIN CERTIFICATE") && !text[0].contains("PRIVATE"));
        assert!(text[1].contains("BEGIN PRIVATE KEY"));
        assert_eq!(text[2], format!("{}{}", text[0], text[1]));
    }
}
