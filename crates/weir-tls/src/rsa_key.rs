//! RSA keys that encrypt MySQL passwords when there is no TLS (`caching_sha2_password_public_key_path` of
//! mysqld): RSAES-OAEP with SHA-1 (RFC 8017 section 7.1), which is what MySQL's clients use.

use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::{
    KeySize, OAEP_SHA1_MGF1SHA1, OaepPrivateDecryptingKey, OaepPublicEncryptingKey, PrivateDecryptingKey,
    PublicEncryptingKey,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;
use weir_mysql::greeting::Nonce;
use zeroize::Zeroizing;

use crate::files::{self, LoadError};
use crate::password::Password;

/// Weir's own key: clients encrypt passwords to its public half.
pub struct PasswordKey {
    key: OaepPrivateDecryptingKey,
    public_pem: String,
}

impl PasswordKey {
    /// The key in a file (PKCS#8 PEM), which is created if it does not exist. Without a file, a new key that
    /// lasts as long as the process; clients that have pinned another key refuse it.
    ///
    /// # Errors
    /// The file can't be read or created, is not an RSA key in PKCS#8, or can be read by others than its
    /// owner.
    pub fn load(file: Option<&Path>) -> Result<PasswordKey, LoadError> {
        let nowhere = Path::new("a new RSA key");
        let Some(file) = file else {
            let key = generate().ok_or_else(|| LoadError::new(nowhere, "can't be made"))?;
            return PasswordKey::of(key).ok_or_else(|| LoadError::new(nowhere, "can't be used"));
        };
        if !file.exists() {
            let key = generate().ok_or_else(|| LoadError::new(file, "no RSA key can be made"))?;
            write_new(file, &key).map_err(|error| LoadError::new(file, format!("can't be made: {error}")))?;
        }
        files::refuse_if_others_may_read(file)?;
        let PrivateKeyDer::Pkcs8(der) = files::private_key(file)? else {
            return Err(LoadError::new(file, "is not a key of PKCS#8 (`-----BEGIN PRIVATE KEY-----`)"));
        };
        let key = PrivateDecryptingKey::from_pkcs8(der.secret_pkcs8_der());
        let key = key.ok().and_then(PasswordKey::of);
        key.ok_or_else(|| LoadError::new(file, "is not an RSA key of 2048 to 8192 bits"))
    }

    fn of(key: PrivateDecryptingKey) -> Option<PasswordKey> {
        let public: PublicKeyX509Der<'_> = key.public_key().as_der().ok()?;
        let public_pem = pem::encode(&pem::Pem::new("PUBLIC KEY", public.as_ref()));
        Some(PasswordKey { key: OaepPrivateDecryptingKey::new(key).ok()?, public_pem })
    }

    /// The public half as PEM, as clients request it.
    pub fn public_pem(&self) -> &str {
        &self.public_pem
    }

    /// Decrypts a password that a client encrypted for `nonce`; `None` for anything else. Takes about a
    /// millisecond of CPU time.
    pub fn open(&self, encrypted: &[u8], nonce: &Nonce) -> Option<Password> {
        let mut room = Zeroizing::new(vec![0; self.key.min_output_size()]);
        let masked = self.key.decrypt(&OAEP_SHA1_MGF1SHA1, encrypted, &mut room, None).ok()?;
        Password::unmasked(masked, nonce)
    }
}

/// The public key of a server, with which passwords are encrypted.
pub struct ServerKey(OaepPublicEncryptingKey);

impl ServerKey {
    /// Parses PEM, as a server sends it or a file contains it; `None` for anything else.
    pub fn from_pem(pem: &[u8]) -> Option<ServerKey> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).ok()?;
        let key = PublicEncryptingKey::from_der(&der).ok()?;
        Some(ServerKey(OaepPublicEncryptingKey::new(key).ok()?))
    }

    /// The key in a file.
    ///
    /// # Errors
    /// The file can't be read, or is not a public RSA key.
    pub fn load(file: &Path) -> Result<ServerKey, LoadError> {
        ServerKey::from_pem(&files::read(file)?)
            .ok_or_else(|| LoadError::new(file, "holds no RSA key; expected `-----BEGIN PUBLIC KEY-----`"))
    }

    /// Encrypts the password with this key, for the login with `nonce`; `None` when it is too long for the
    /// key.
    pub fn seal(&self, password: &Password, nonce: &Nonce) -> Option<Vec<u8>> {
        let mut room = vec![0; self.0.ciphertext_size()];
        let sealed =
            self.0.encrypt(&OAEP_SHA1_MGF1SHA1, &password.masked(nonce), &mut room, None).ok()?.len();
        room.truncate(sealed);
        Some(room)
    }
}

fn generate() -> Option<PrivateDecryptingKey> {
    PrivateDecryptingKey::generate(KeySize::Rsa2048).ok()
}

/// Creates a key file that only its owner may read; fails if the file exists.
fn write_new(file: &Path, key: &PrivateDecryptingKey) -> std::io::Result<()> {
    let der: Pkcs8V1Der<'_> = key.as_der().map_err(|_| std::io::Error::other("the key can't be written"))?;
    let pem = Zeroizing::new(pem::encode(&pem::Pem::new("PRIVATE KEY", der.as_ref())));
    let mut made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    made.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    made.write_all(pem.as_bytes())?;
    made.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = [7; 20];

    #[test]
    fn a_password_sealed_to_the_public_half_is_opened_with_its_nonce_only() {
        let own = PasswordKey::load(None).unwrap();
        let server = ServerKey::from_pem(own.public_pem().as_bytes()).unwrap();
        for password in [&b""[..], b"sesame", &[b'x'; 200]] {
            let password = Password::new(password).unwrap();
            let sealed = server.seal(&password, &NONCE).unwrap();
            assert!(own.open(&sealed, &NONCE).unwrap().is_same(&password));
            let misread = own.open(&sealed, &[8; 20]);
            assert!(misread.is_none_or(|misread| !misread.is_same(&password)));
            assert!(own.open(&sealed[1..], &NONCE).is_none());
        }
        assert!(server.seal(&Password::new(&[b'x'; 256]).unwrap(), &NONCE).is_none(), "longer than the key");
    }

    #[test]
    fn a_key_is_made_once_and_refused_when_others_may_read_it() {
        let folder = std::env::temp_dir().join(format!("weir-rsa-key-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("key.pem");
        let first = PasswordKey::load(Some(&file)).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(first.public_pem(), PasswordKey::load(Some(&file)).unwrap().public_pem());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = PasswordKey::load(Some(&file)).err().unwrap().to_string();
        assert!(refused.contains("mode is 644"), "{refused}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_no_key_is_none() {
        assert!(ServerKey::from_pem(b"").is_none());
        assert!(
            ServerKey::from_pem(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").is_none()
        );
    }
}
