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

/// The account's file.
#[derive(Serialize, Deserialize)]
struct Kept {
    contact: Vec<String>,
    /// [`AccountCredentials`], as they stand in the file: by them one account is told from the next.
    credentials: Value,
}

/// An account that can be used.
struct Open {
    account: Account,
    credentials: Value,
}

/// The account with one authority.
pub struct Accounts<'a> {
    /// What the config says.
    pub acme: &'a Acme,
    /// The way to the authority.
    pub client: Client,
    /// Who may place no orders now.
    pub holds: &'a Holds,
}

/// An order, and who has placed it.
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

    /// The account that is kept; `None` when there is none yet.
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

    /// The account that is kept, or a new one. Held against others meanwhile, who would make another.
    async fn any(&self, pass: &Pass) -> Result<Open, Failure> {
        // Nothing is to be written: many orders need not wait for each other.
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
        // To name a directory is to agree to its terms.
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

    /// Removes the account that the authority does not know, unless another one is there by now.
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

    /// Places an order; once more, with a new account, when the authority does not know ours any more.
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

    /// What the authority has against an order or an account; holds the account where it says that it has
    /// had too much of it.
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

/// An order that says what it replaces, or a plain one where that is not taken: a hint is all that it is (RFC
/// 9773 section 5).
async fn place(account: &Account, names: &[Identifier], replaces: Option<&Identity>) -> Result<Order, Error> {
    if let Some(identity) = replaces {
        let order = NewOrder::new(names).replaces(identifier(identity));
        match account.new_order(&order).await {
            Err(Error::Other(inner)) if inner.is::<Away>() => return Err(Error::Other(inner)),
            // It would say so again, and count it.
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

/// By what an authority is asked about a certificate.
pub fn identifier(identity: &Identity) -> CertificateIdentifier<'static> {
    CertificateIdentifier::new(identity.authority_key.as_slice().into(), identity.serial.as_slice().into())
        .into_owned()
}
