//! Certificates in a listener's folder: listed, added and removed by calls.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_control::control::{Control, UploadError};

use crate::api::{Error, ok};
use crate::auth::Auth;
use crate::status::{self, CertificateStatus};

/// Body of a PUT.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upload {
    certificate: String,
    key: String,
}

impl From<UploadError> for Error {
    fn from(error: UploadError) -> Error {
        let (status, code) = match &error {
            UploadError::NoListener(_) | UploadError::NoCertificate(_) => {
                (StatusCode::NOT_FOUND, "not_found")
            }
            UploadError::NoFolder(_) | UploadError::Full => (StatusCode::CONFLICT, "conflict"),
            UploadError::Refused(_) => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
            UploadError::Store(_) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Error(status, code, error.to_string())
    }
}

/// Refuses a key sent in the clear over a network: anybody on the way could have read it.
pub(crate) fn may_carry_keys(auth: &Auth) -> Result<(), Error> {
    if auth.is_private() {
        return Ok(());
    }
    let message = "keys are taken over TLS (`admin.tls`), a Unix socket or loopback only; replace this one";
    Err(Error(StatusCode::FORBIDDEN, "forbidden", message.to_owned()))
}

/// Adds or replaces a certificate.
pub(crate) async fn put(
    control: &Control,
    listener: &str,
    name: &str,
    upload: Upload,
) -> Result<Response, Error> {
    let facts = control.put_certificate(listener, name, &upload.certificate, &upload.key).await?;
    Ok(ok(&json!({ "certificate": shown(status::certificate(&facts), name) })))
}

/// Lists the certificates in the folder.
pub(crate) fn list(control: &Control, listener: &str) -> Result<Response, Error> {
    let folder = control.certificate_folder(listener)?;
    let snapshot = control.snapshot();
    let served = snapshot.listeners.iter().find(|it| it.config.name == listener);
    let served = served.and_then(|it| it.tls.as_ref()).map(|tls| tls.certificates()).unwrap_or_default();
    let of_folder = served.iter().filter(|facts| facts.file.parent() == Some(&folder));
    let all = of_folder.map(|facts| {
        let name = facts.file.file_stem().map(|name| name.to_string_lossy().into_owned());
        shown(status::certificate(facts), &name.unwrap_or_default())
    });
    Ok(ok(&json!({ "certificates": all.collect::<Vec<_>>() })))
}

/// Removes a certificate.
pub(crate) async fn remove(control: &Control, listener: &str, name: &str) -> Result<Response, Error> {
    control.remove_certificate(listener, name).await?;
    Ok(ok(&json!({ "removed": name })))
}

fn shown(certificate: CertificateStatus, name: &str) -> Value {
    let mut shown = json!(certificate);
    shown["name"] = json!(name);
    shown
}
