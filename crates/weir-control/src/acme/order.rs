//! One order, from the account to the certificate (RFC 8555 section 7).

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};
use weir_config::{Acme, AcmeChallenge};
use weir_tls::Identity;
use weir_tls::acme::{Challenges, Offer};

use super::client::{Away, Client};
use super::dns01::{self, InZone};
use super::schedule::Blame;
use crate::store::{self, Lock};

/// For an authority to look at challenges, and then to sign.
const VALIDATION: Duration = Duration::from_secs(120);

/// What the problem document says of an account that the authority does not know (RFC 8555 section 6.7).
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// An order that came to nothing.
#[derive(Debug)]
pub struct Failure {
    /// Whom it is to be laid to.
    pub blame: Blame,
    /// What happened, for people.
    pub reason: String,
}

impl Failure {
    fn refused(reason: impl Into<String>) -> Failure {
        Failure { blame: Blame::Refused, reason: reason.into() }
    }

    pub(super) fn store(error: &io::Error) -> Failure {
        Failure { blame: Blame::Store, reason: error.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.reason)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Api(problem) => Failure::refused(say(&problem)),
            Error::Other(inner) if inner.is::<Away>() => {
                Failure { blame: Blame::Away, reason: inner.to_string() }
            }
            Error::Timeout(_) => Failure {
                blame: Blame::Away,
                reason: format!("the authority had not decided after {VALIDATION:?}"),
            },
            Error::Json(error) => Failure {
                blame: Blame::Away,
                reason: format!("the authority's answer is not what ACME says: {error}"),
            },
            error => Failure { blame: Blame::Away, reason: error.to_string() },
        }
    }
}

/// A problem document in a line: what, and its kind.
fn say(problem: &instant_acme::Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("no type");
    let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("no details");
    let below = problem.subproblems.iter().filter_map(|below| below.detail.as_deref());
    below.fold(format!("{detail} ({kind})"), |said, below| format!("{said}; {below}"))
}

/// The account's file.
#[derive(Serialize, Deserialize)]
struct Kept {
    contact: Vec<String>,
    credentials: AccountCredentials,
}

/// The account with one authority.
pub struct Accounts<'a> {
    /// What the config says.
    pub acme: &'a Acme,
    /// The way to the authority.
    pub client: Client,
}

impl Accounts<'_> {
    fn path(&self) -> PathBuf {
        weir_tls::acme::folder(self.acme).join("account.json")
    }

    /// The account that is kept; `None` when there is none yet.
    pub async fn kept(&self) -> Result<Option<Account>, Failure> {
        Ok(match self.read()? {
            Some(kept) => Some(self.open(kept.credentials).await?),
            None => None,
        })
    }

    fn read(&self) -> Result<Option<Kept>, Failure> {
        let path = self.path();
        let Some(text) = store::read(&path).map_err(|error| Failure::store(&error))? else { return Ok(None) };
        let kept = serde_json::from_str(&text).map_err(|error| Failure {
            blame: Blame::Store,
            reason: format!("{} is no account ({error}); remove it to have another made", path.display()),
        });
        kept.map(Some)
    }

    async fn open(&self, credentials: AccountCredentials) -> Result<Account, Failure> {
        let http = Box::new(self.client.clone());
        Ok(Account::builder_with_http(http).from_credentials(credentials).await?)
    }

    /// The account that is kept, or a new one. Held against others meanwhile, who would make another.
    async fn any(&self) -> Result<Account, Failure> {
        // Nothing is to be written: many orders need not wait for each other.
        if let Some(kept) = self.read()?.filter(|kept| kept.contact == self.acme.contact) {
            return self.open(kept.credentials).await;
        }
        let _lock = Lock::take(&self.path()).await.map_err(|error| Failure::store(&error))?;
        let contact: Vec<&str> = self.acme.contact.iter().map(String::as_str).collect();
        if let Some(kept) = self.read()? {
            let is_same = kept.contact == self.acme.contact;
            let text = (!is_same).then(|| self.text(&kept.credentials)).transpose()?;
            let account = self.open(kept.credentials).await?;
            if let Some(text) = text {
                account.update_contacts(&contact).await?;
                store::write(self.path(), text).await.map_err(|error| Failure::store(&error))?;
            }
            return Ok(account);
        }
        // To name a directory is to agree to its terms.
        let wanted =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let builder = Account::builder_with_http(Box::new(self.client.clone()));
        let external = self.acme.external_account.as_ref();
        let external =
            external.map(|account| ExternalAccountKey::new(account.key_id.clone(), &account.key_bytes()));
        let directory = self.acme.directory.clone();
        let (account, credentials) = builder.create(&wanted, directory, external.as_ref()).await?;
        store::write(self.path(), self.text(&credentials)?).await.map_err(|error| Failure::store(&error))?;
        tracing::info!(directory = self.acme.directory, "account made with the certificate authority");
        Ok(account)
    }

    fn text(&self, credentials: &AccountCredentials) -> Result<Vec<u8>, Failure> {
        let value = serde_json::json!({ "contact": self.acme.contact, "credentials": credentials });
        serde_json::to_vec_pretty(&value).map_err(|error| Failure::store(&error.into()))
    }

    /// Places an order; once more, with a new account, when the authority does not know ours any more.
    async fn order(&self, replaces: Option<&Identity>) -> Result<Order, Failure> {
        let names: Vec<Identifier> = self.acme.domains.iter().cloned().map(Identifier::Dns).collect();
        let account = self.any().await?;
        let order = match place(&account, &names, replaces).await {
            Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => {
                tracing::warn!(
                    directory = self.acme.directory,
                    "the certificate authority does not know our account: making another"
                );
                std::fs::remove_file(self.path()).map_err(|error| Failure::store(&error))?;
                place(&self.any().await?, &names, None).await
            }
            order => order,
        };
        Ok(order?)
    }
}

/// An order that says what it replaces, or a plain one where that is not taken: a hint is all that it is (RFC
/// 9773 section 5).
async fn place(account: &Account, names: &[Identifier], replaces: Option<&Identity>) -> Result<Order, Error> {
    if let Some(identity) = replaces {
        let order = NewOrder::new(names).replaces(identifier(identity));
        match account.new_order(&order).await {
            Err(Error::Other(inner)) if inner.is::<Away>() => return Err(Error::Other(inner)),
            Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => {
                return Err(problem.into());
            }
            Err(error) => tracing::debug!(%error, "ordering without saying what is replaced"),
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

/// Orders a certificate. `ways` are tried in turn, `turn` says with which to begin. Gives the key and the
/// chain, PEM.
pub async fn run(
    accounts: &Accounts<'_>,
    challenges: &Arc<Challenges>,
    ways: &[AcmeChallenge],
    turn: usize,
    replaces: Option<&Identity>,
) -> Result<String, Failure> {
    let mut order = accounts.order(replaces).await?;
    // Two proofs of one domain by handshakes would be in each other's way.
    let alone = match ways.contains(&AcmeChallenge::TlsAlpn01) {
        true => Some(challenges.turn(&accounts.acme.domains).await),
        false => None,
    };
    // Kept until the authority has decided.
    let proofs = offer(&mut order, accounts.acme, challenges, ways, turn).await?;
    let policy =
        RetryPolicy::new().initial_delay(Duration::from_millis(250)).backoff(1.5).timeout(VALIDATION);
    let status = match order.state().status {
        // All was proved before, and is still believed.
        OrderStatus::Ready => OrderStatus::Ready,
        _ => order.poll_ready(&policy).await.map_err(Failure::from)?,
    };
    if status != OrderStatus::Ready {
        return Err(Failure::refused(why_not(&mut order).await));
    }
    drop((proofs, alone));
    let (key, request) = request(&accounts.acme.domains).map_err(|error| Failure {
        blame: Blame::Store,
        reason: format!("no key and request could be made: {error}"),
    })?;
    order.finalize_csr(&request).await?;
    let chain = order.poll_certificate(&policy).await?;
    Ok(format!("{key}{chain}"))
}

/// What meets a challenge for as long as it is kept.
#[expect(dead_code, reason = "its being there is what counts")]
enum Proof {
    ByWorkers(Offer),
    InZone(InZone),
}

/// Has a challenge met for each domain that is not proved yet, by workers or by a record, and tells the
/// authority to look.
async fn offer(
    order: &mut Order,
    acme: &Acme,
    challenges: &Arc<Challenges>,
    ways: &[AcmeChallenge],
    turn: usize,
) -> Result<Vec<Proof>, Failure> {
    let mut proofs = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => {
                return Err(Failure::refused(format!(
                    "the authority has an authorization that is {status:?}"
                )));
            }
        }
        let domain = authorization.identifier().to_string();
        is_ordered(acme, &domain)?;
        let in_turn = (0..ways.len()).map(|step| ways[(turn + step) % ways.len()]);
        let offered =
            |way: &AcmeChallenge| authorization.challenges.iter().any(|each| each.r#type == kind(*way));
        let Some(way) = in_turn.clone().find(offered) else {
            let ours = in_turn.map(AcmeChallenge::word).collect::<Vec<_>>().join(" and ");
            return Err(Failure::refused(format!(
                "the authority offers no challenge for {domain} that can be met here ({ours})"
            )));
        };
        let Some(mut challenge) = authorization.challenge(kind(way)) else { continue };
        let proof = challenge.key_authorization();
        proofs.push(match way {
            AcmeChallenge::Http01 => {
                Proof::ByWorkers(challenges.offer_token(&challenge.token, proof.as_str()))
            }
            AcmeChallenge::TlsAlpn01 => {
                let mut digest = [0; 32];
                digest.copy_from_slice(proof.digest().as_ref());
                let offer = challenges.offer_handshake(&domain, &digest);
                Proof::ByWorkers(offer.map_err(|reason| Failure { blame: Blame::Store, reason })?)
            }
            AcmeChallenge::Dns01 => {
                let put = dns01::put(acme, &domain, proof.dns_value()).await;
                Proof::InZone(put.map_err(|reason| Failure { blame: Blame::Dns, reason })?)
            }
        });
        tracing::debug!(domain, challenge = way.word(), "certificate authority told to look");
        challenge.set_ready().await?;
    }
    Ok(proofs)
}

/// Refuses a domain that is not the config's: zones are updated and programs run with it.
fn is_ordered(acme: &Acme, domain: &str) -> Result<(), Failure> {
    match acme.domains.iter().any(|own| own == domain) {
        true => Ok(()),
        false => Err(Failure::refused(format!(
            "the authority wants a proof of {domain:?}, for which nothing was ordered"
        ))),
    }
}

fn kind(way: AcmeChallenge) -> ChallengeType {
    match way {
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        AcmeChallenge::Dns01 => ChallengeType::Dns01,
    }
}

/// What the authority found of the challenges.
async fn why_not(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let domain = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let failed = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(failed.map(|problem| format!("{domain}: {}", say(problem))));
    }
    if reasons.is_empty() {
        "the authority found the order invalid and does not say why".to_owned()
    } else {
        reasons.join("; ")
    }
}

/// A new key, PEM, and a request to sign it for `domains`, DER.
fn request(domains: &[String]) -> Result<(String, Vec<u8>), rcgen::Error> {
    let mut params = CertificateParams::new(domains)?;
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate()?;
    let request = params.serialize_request(&key)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_that_nobody_ordered_is_proved_to_nobody() {
        let domains = ["shop.example", "*.shop.example"].map(str::to_owned).to_vec();
        let acme = Acme { domains, ..Acme::default() };
        assert!(is_ordered(&acme, "shop.example").is_ok() && is_ordered(&acme, "*.shop.example").is_ok());
        for other in ["", "www.shop.example", "shop.example.", "-rf", "shop.example;id", "SHOP.EXAMPLE"] {
            let failure = is_ordered(&acme, other).unwrap_err();
            assert_eq!(failure.blame, Blame::Refused, "{other}");
        }
    }
}
