//! Whether the files that a config names have changed.

use std::path::Path;

use aws_lc_rs::digest;
use weir_config::{Config, Passwords, Verify};

use crate::client;
use crate::files;
use crate::folder;

/// A digest of all files with keys that `config` names: certificates, keys, stapled responses, authorities,
/// secrets of sticky cookies and of peers, passwords, and those of the admin API. Equal digests mean the same
/// files with the same contents.
///
/// `None` when a file can't be read; [`crate::Loaded::load`] says which and why. Reads every file.
pub fn fingerprint(config: &Config) -> Option<[u8; 32]> {
    let mut digest = digest::Context::new(&digest::SHA256);
    let mut take = |file: &Path| {
        let bytes = files::read(file).ok()?;
        let name = file.as_os_str().as_encoded_bytes();
        for part in [name, &bytes] {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        Some(())
    };
    for tls in config.listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
        for certificate in &tls.certificates {
            take(&certificate.cert)?;
            take(&certificate.key)?;
            certificate.ocsp.as_deref().map_or(Some(()), &mut take)?;
        }
        tls.client_ca.as_deref().map_or(Some(()), &mut take)?;
        tls.crl.iter().chain(&tls.ticket_keys).try_for_each(|file| take(file))?;
        let mut services = tls.acme.iter().filter_map(|acme| acme.on_demand.as_ref()?.ca.as_deref());
        services.try_for_each(&mut take)?;
        if let Some(folder) = &tls.certificate_folder {
            let names = folder::names(folder).ok()?;
            names.iter().try_for_each(|name| take(&folder::file(folder, name)))?;
        }
    }
    config.fetched_keys().iter().filter_map(|keys| keys.ca.as_deref()).try_for_each(&mut take)?;
    for tls in config.pools.iter().filter_map(|pool| pool.tls.as_ref()) {
        if tls.verify != Verify::Nobody {
            take(&client::authorities_file(tls.ca.as_deref())?)?;
            tls.crl.iter().try_for_each(|file| take(file))?;
        }
        if let Some((cert, key)) = tls.client() {
            take(cert)?;
            take(key)?;
        }
    }
    for sticky in config.pools.iter().filter_map(|pool| pool.sticky.as_ref()) {
        sticky.secret_file.as_deref().map_or(Some(()), &mut take)?;
    }
    for mysql in config.pools.iter().filter_map(|pool| pool.mysql.as_ref()) {
        let account = mysql.user.as_ref().and(mysql.password_file.as_deref());
        account.map_or(Some(()), &mut take)?;
        mysql.server_public_key.as_deref().map_or(Some(()), &mut take)?;
        mysql.key_file.as_deref().map_or(Some(()), &mut take)?;
        let accounts = mysql.passwords_file.as_deref().filter(|_| mysql.passwords == Passwords::File);
        accounts.map_or(Some(()), &mut take)?;
    }
    if let Some(peers) = &config.peers {
        take(&peers.secret_file)?;
        if let Some(tls) = &peers.tls {
            [&tls.cert, &tls.key, &tls.ca].into_iter().chain(&tls.crl).try_for_each(|file| take(file))?;
        }
    }
    if let Some(admin) = &config.admin {
        admin.token_file.as_deref().map_or(Some(()), &mut take)?;
        if let Some(tls) = &admin.tls {
            take(&tls.cert)?;
            take(&tls.key)?;
            tls.client_ca.as_deref().map_or(Some(()), &mut take)?;
        }
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.finish().as_ref());
    Some(bytes)
}
