//! Accounts with authorities (RFC 8555 section 7.3), each in a file that all its orders share.

use std::path::PathBuf;

use instant_acme::{
    Account, AccountCredentials, CertificateIdentifier, Error, ExternalAccountKey, Identifier, NewAccount,
    NewOrder, Order,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_config::Acme;
use weir_tls::Identity;

use super::client::{Away, Client};
use super::failure::{self, Failure};
use super::holds::{Holds, Pass};
use super::schedule::Blame;
use crate::store::{self, Lock};

/// The content of an account's file.
#[derive(Serialize, Deserialize)]
struct Kept {
    contact: Vec<String>,
    /// [`AccountCredentials`] as in the file; they distinguish one account from another.
    credentials: Value,
}

/// An account that is ready for use.
struct Open {
    account: Account,
    credentials: Value,
}

/// The account with one authority.
pub struct Accounts<'a> {
    /// The config.
    pub acme: &'a Acme,
    /// The client for the authority.
    pub client: Client,
    /// The accounts that may place no orders now.
    pub holds: &'a Holds,
}

/// An order, and the account that placed it.
pub struct Placed {
    /// The order.
    pub order: Order,
    /// The account's URL.
    pub account: String,
}

impl Accounts<'_> {
    fn folder(&self) -> PathBuf {
        weir_tls::acme::folder(self.acme)
    }

    fn path(&self) -> PathBuf {
        self.folder().join("account.json")
    }

    /// The stored account; `None` when there is none yet.
    pub async fn kept(&self) -> Result<Option<Account>, Failure> {
        Ok(match self.read()? {
            Some(kept) => Some(self.open(kept.credentials).await?.account),
            None => None,
        })
    }

    fn read(&self) -> Result<Option<Kept>, Failure> {
        let path = self.path();
        let Some(text) = store::read(&path).map_err(|error| Failure::store(&error))? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &serde_json::Error) -> Failure {
        let path = self.path();
        let reason = format!("{} is no account ({error}); remove it to have another made", path.display());
        Failure::new(Blame::Store, reason)
    }

    async fn open(&self, credentials: Value) -> Result<Open, Failure> {
        let http = Box::new(self.client.clone());
        let own = AccountCredentials::deserialize(&credentials).map_err(|error| self.unreadable(&error))?;
        let account = Account::builder_with_http(http).from_credentials(own).await?;
        Ok(Open { account, credentials })
    }

    /// The stored account, or a new one. Holds the lock meanwhile, so that other processes do not make
    /// another.
    async fn any(&self, pass: &Pass) -> Result<Open, Failure> {
        // Reads without the lock, since nothing has to be written, so that orders need not wait for each
        // other.
        if let Some(kept) = self.read()?.filter(|kept| kept.contact == self.acme.contact) {
            return self.open(kept.credentials).await;
        }
        let _lock = self.lock().await?;
        let contact: Vec<&str> = self.acme.contact.iter().map(String::as_str).collect();
        if let Some(kept) = self.read()? {
            let is_same = kept.contact == self.acme.contact;
            let open = self.open(kept.credentials).await?;
            if !is_same {
                let updated = open.account.update_contacts(&contact).await;
                updated.map_err(|error| self.refused(error))?;
                self.write(&open.credentials).await?;
            }
            return Ok(open);
        }
        self.holds.still(&self.folder(), pass)?;
        // Configuring a directory implies agreement to its terms of service.
        let wanted =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let builder = Account::builder_with_http(Box::new(self.client.clone()));
        let external = self.acme.external_account.as_ref();
        let external =
            external.map(|account| ExternalAccountKey::new(account.key_id.clone(), &account.key_bytes()));
        let directory = self.acme.directory.clone();
        let made = builder.create(&wanted, directory, external.as_ref()).await;
        let (account, credentials) = made.map_err(|error| self.refused(error))?;
        let credentials =
            serde_json::to_value(&credentials).map_err(|error| Failure::store(&error.into()))?;
        self.write(&credentials).await?;
        tracing::info!(directory = self.acme.directory, "account made with the certificate authority");
        Ok(Open { account, credentials })
    }

    async fn lock(&self) -> Result<Lock, Failure> {
        Lock::take(&self.path()).await.map_err(|error| Failure::store(&error))
    }

    async fn write(&self, credentials: &Value) -> Result<(), Failure> {
        let kept = Kept { contact: self.acme.contact.clone(), credentials: credentials.clone() };
        let text = serde_json::to_vec_pretty(&kept).map_err(|error| Failure::store(&error.into()))?;
        store::write(self.path(), text).await.map_err(|error| Failure::store(&error))
    }

    /// Removes the stored account, which the authority does not know, unless it was replaced meanwhile.
    async fn forget(&self, unknown: &Value) -> Result<(), Failure> {
        let _lock = self.lock().await?;
        if self.read()?.is_none_or(|kept| kept.credentials != *unknown) {
            return Ok(());
        }
        tracing::warn!(
            directory = self.acme.directory,
            "the certificate authority does not know our account: making another"
        );
        store::remove(&self.path()).map_err(|error| Failure::store(&error))
    }

    /// Places an order; tries once more with a new account if the authority no longer knows ours.
    pub async fn order(&self, replaces: Option<&Identity>) -> Result<Placed, Failure> {
        let names: Vec<Identifier> = self.acme.domains.iter().cloned().map(Identifier::Dns).collect();
        let pass = self.holds.pass(&self.folder())?;
        let mut open = self.any(&pass).await?;
        let mut order = place(&open.account, &names, replaces).await;
        if let Err(Error::Api(problem)) = &order
            && failure::is_no_account(problem)
        {
            self.forget(&open.credentials).await?;
            open = self.any(&pass).await?;
            order = place(&open.account, &names, None).await;
        }
        let order = order.map_err(|error| self.refused(error))?;
        self.holds.lift(&self.folder());
        Ok(Placed { order, account: open.account.id().to_owned() })
    }

    /// Converts an authority's error about an order or account; puts the account on hold if the error is a
    /// rate limit.
    fn refused(&self, error: Error) -> Failure {
        let Error::Api(problem) = &error else { return error.into() };
        let said = failure::say(problem);
        if failure::is_limit(problem) && !failure::is_limit_on(problem, &self.acme.domains) {
            let held = self.holds.hold(&self.folder(), self.client.asked_for(), said.as_str().into());
            let directory = &self.acme.directory;
            tracing::warn!(
                directory,
                reason = said,
                ?held,
                "the certificate authority takes no more orders for now"
            );
        }
        let path = self.path();
        match failure::is_unauthorized(problem) && path.exists() {
            true => Failure::refused(format!(
                "{said}; if this account was deactivated, remove {} to have another made",
                path.display()
            )),
            false => Failure::refused(said),
        }
    }
}

/// Places an order that names the certificate it replaces, or a plain one if that is not accepted, since it
/// is only a hint (RFC 9773 section 5).
async fn place(account: &Account, names: &[Identifier], replaces: Option<&Identity>) -> Result<Order, Error> {
    if let Some(identity) = replaces {
        let order = NewOrder::new(names).replaces(identifier(identity));
        match account.new_order(&order).await {
            Err(Error::Other(inner)) if inner.is::<Away>() => return Err(Error::Other(inner)),
            // The authority would refuse again, and count it.
            Err(Error::Api(problem)) if failure::is_no_account(&problem) || failure::is_limit(&problem) => {
                return Err(problem.into());
            }
            Err(error) => {
                let failure = Failure::from(error);
                tracing::debug!(reason = &*failure.reason, "ordering without saying what is replaced");
            }
            order => return order,
        }
    }
    account.new_order(&NewOrder::new(names)).await
}

/// The identifier by which an authority is asked about a certificate.
pub fn identifier(identity: &Identity) -> CertificateIdentifier<'static> {
    CertificateIdentifier::new(identity.authority_key.as_slice().into(), identity.serial.as_slice().into())
        .into_owned()
}
