//! Extracts facts from a certificate (RFC 5280): its validity period, its identifiers and its subject.
//!
//! Client certificates get here only after rustls has verified their chain and signature.

use x509_parser::asn1_rs::ToDer as _;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::oid::Oid;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry as oids;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

fn parsed(certificate: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(certificate).ok().map(|(_, parsed)| parsed)
}

/// The validity period of a certificate, in seconds since 1970; `None` when it can't be determined.
pub(crate) fn validity(certificate: &[u8]) -> Option<(i64, i64)> {
    let parsed = parsed(certificate)?;
    let validity = parsed.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// The identifiers by which an authority knows a certificate: the key identifier of the signing key, and the
/// serial number, both without tag and length (RFC 9773 section 4.1). `None` when the certificate does not
/// have both.
pub(crate) fn identity(certificate: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let parsed = parsed(certificate)?;
    let key = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(authority) => authority.key_identifier.as_ref(),
        _ => None,
    });
    Some((key?.0.to_vec(), parsed.raw_serial().to_vec()))
}

/// The issuer name of a certificate, in DER, and its serial number without tag and length.
pub(crate) fn issuer_and_serial(certificate: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let parsed = parsed(certificate)?;
    Some((parsed.issuer().as_raw().to_vec(), parsed.raw_serial().to_vec()))
}

/// The subject of a certificate as text (RFC 4514), such as `CN=alice,O=Example,C=DE`; the last part of the
/// name comes first. Everything except printable ASCII is escaped, so that it can be used in a header field.
/// `None` if the bytes are not a certificate.
pub fn subject(certificate: &[u8]) -> Option<String> {
    Some(name_text(parsed(certificate)?.subject()))
}

/// A name as text, in the same form as [`subject`].
pub(crate) fn name_text(name: &X509Name<'_>) -> String {
    let parts: Vec<_> = name.iter_rdn().collect();
    let mut text = String::new();
    for part in parts.into_iter().rev() {
        if !text.is_empty() {
            text.push(',');
        }
        for (index, attribute) in part.iter().enumerate() {
            if index > 0 {
                text.push('+');
            }
            put(attribute, &mut text);
        }
    }
    text
}

/// Whether a certificate has this subject name, in DER.
pub(crate) fn has_subject(certificate: &[u8], name: &[u8]) -> bool {
    parsed(certificate).is_some_and(|parsed| parsed.subject().as_raw() == name)
}

/// `TYPE=value`; if the type has no short name, or the value is not text, the DER of the value in hexadecimal
/// digits (RFC 4514 section 2.4).
fn put(attribute: &AttributeTypeAndValue<'_>, text: &mut String) {
    let name = short_name(attribute.attr_type());
    match name {
        Some(name) => text.push_str(name),
        None => text.push_str(&attribute.attr_type().to_id_string()),
    }
    text.push('=');
    match (name, attribute.as_str()) {
        (Some(_), Ok(value)) => escape(value, text),
        _ => {
            text.push('#');
            let value = attribute.attr_value();
            let header = value.header.to_der_vec().unwrap_or_default();
            for byte in header.iter().chain(value.data) {
                text.push_str(&format!("{byte:02X}"));
            }
        }
    }
}

/// The names in RFC 4514 section 3, and common ones for other types.
fn short_name(of: &Oid<'_>) -> Option<&'static str> {
    let names = [
        (oids::OID_X509_COMMON_NAME, "CN"),
        (oids::OID_X509_LOCALITY_NAME, "L"),
        (oids::OID_X509_STATE_OR_PROVINCE_NAME, "ST"),
        (oids::OID_X509_ORGANIZATION_NAME, "O"),
        (oids::OID_X509_ORGANIZATIONAL_UNIT, "OU"),
        (oids::OID_X509_COUNTRY_NAME, "C"),
        (oids::OID_X509_STREET_ADDRESS, "STREET"),
        (oids::OID_DOMAIN_COMPONENT, "DC"),
        (oids::OID_USERID, "UID"),
        (oids::OID_X509_SERIALNUMBER, "serialNumber"),
        (oids::OID_X509_SURNAME, "SN"),
        (oids::OID_X509_GIVEN_NAME, "GN"),
        (oids::OID_PKCS9_EMAIL_ADDRESS, "emailAddress"),
    ];
    names.into_iter().find_map(|(oid, name)| (oid == *of).then_some(name))
}

/// Escapes a value (RFC 4514 section 2.4).
fn escape(value: &str, text: &mut String) {
    let last = value.len().saturating_sub(1);
    for (index, byte) in value.bytes().enumerate() {
        let is_outer_space = byte == b' ' && (index == 0 || index == last);
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' | b'=' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b'#' if index == 0 => text.push_str("\\#"),
            b' '..=b'~' if !is_outer_space => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(parts: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_subject_is_written_from_its_last_part_on() {
        let named = certificate(&[
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Example"),
            (DnType::CommonName, "alice"),
        ]);
        assert_eq!(subject(&named).as_deref(), Some("CN=alice,O=Example,C=DE"));
        assert_eq!(subject(&certificate(&[])).as_deref(), Some(""));
    }

    #[test]
    fn nothing_in_a_subject_can_be_taken_for_another_part_or_another_field() {
        let of = |value: &str| subject(&certificate(&[(DnType::CommonName, value)])).unwrap();
        assert_eq!(of("bob,CN=root"), "CN=bob\\,CN\\=root");
        assert_eq!(of("a\r\nx-admin: 1\0"), "CN=a\\0D\\0Ax-admin: 1\\00");
        assert_eq!(of(" a\"+;<>\\ "), "CN=\\20a\\\"\\+\\;\\<\\>\\\\\\20");
        assert_eq!(of("#1"), "CN=\\#1");
        assert_eq!(of("J\u{f6}rg"), "CN=J\\C3\\B6rg");
    }

    #[test]
    fn a_type_without_a_name_is_told_by_its_number_and_its_bytes() {
        let named = certificate(&[(DnType::CustomDnType(vec![1, 2, 3, 4]), "ab")]);
        assert_eq!(subject(&named).as_deref(), Some("1.2.3.4=#0C026162"));
    }

    #[test]
    fn what_is_cut_off_or_lies_about_its_length_gives_nothing() {
        let whole = certificate(&[(DnType::CommonName, "a")]);
        assert!(validity(&whole).is_some_and(|(from, to)| from < to));
        for length in [0, 1, 4, 20, 100, whole.len() - 1] {
            assert_eq!((validity(&whole[..length]), subject(&whole[..length])), (None, None), "{length}");
        }
        for bytes in
            [&b"\x30"[..], b"\x30\x82\x01", b"\x30\x84\xff\xff\xff\xff", b"\x30\x05\x30\x80\x00\x00\x00"]
        {
            assert_eq!((validity(bytes), identity(bytes)), (None, None), "{bytes:?}");
        }
    }
}
