//! One order, from the account to the certificate (RFC 8555 section 7).

use std::sync::Arc;
use std::time::Duration;

use instant_acme::{AuthorizationStatus, ChallengeType, Error, Order, OrderStatus, RetryPolicy};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use weir_config::{Acme, AcmeChallenge};
use weir_tls::Identity;
use weir_tls::acme::{Challenges, Offer, SharedProof};

use super::accounts::{Accounts, Placed};
use super::dns01::{self, InZone};
use super::failure::{self, Failure};
use super::schedule::Blame;
use super::shared::{self, Published};
use super::unfinished::{OrderFile, Unfinished};

/// Longest time for an authority to validate challenges, and then to issue.
pub const VALIDATION: Duration = Duration::from_secs(120);

/// For how long it is asked for a certificate that it has issued but claims not to know.
const SIGNED_FOR: Duration = Duration::from_secs(3600);

/// What one attempt needs.
pub struct Attempt<'a> {
    /// The account that orders.
    pub accounts: Accounts<'a>,
    /// Where workers find the proofs for the authority.
    pub challenges: &'a Arc<Challenges>,
    /// The challenge types that can be used, tried in turn.
    pub ways: &'a [AcmeChallenge],
    /// Index of the one to begin with.
    pub turn: usize,
    /// The certificate to be renewed.
    pub replaces: Option<&'a Identity>,
    /// Where an unfinished order is stored.
    pub kept: &'a OrderFile,
}

impl Attempt<'_> {
    /// Obtains a certificate: from an order that an earlier attempt has left, otherwise from a new one.
    /// Returns key and chain, as PEM. The stored order remains until the certificate is stored.
    pub async fn run(&self) -> Result<String, Failure> {
        if let Some(unfinished) = self.kept.read()
            && let Some(resumed) = self.resume(unfinished).await
        {
            return resumed;
        }
        let Placed { mut order, account } = self.accounts.order(self.replaces).await?;
        // Two handshake proofs of one domain would conflict.
        let alone = match self.ways.contains(&AcmeChallenge::TlsAlpn01) {
            true => Some(self.challenges.turn(&self.accounts.acme.domains).await),
            false => None,
        };
        // Kept until the authority has decided.
        let proofs = self.offer(&mut order).await?;
        let status = match order.state().status {
            // All domains were proved earlier, and the authorizations are still valid.
            OrderStatus::Ready => OrderStatus::Ready,
            _ => order.poll_ready(&policy()).await.map_err(Failure::from)?,
        };
        if status != OrderStatus::Ready {
            return Err(Failure::refused(why_not(&mut order).await));
        }
        drop((proofs, alone));
        let key = KeyPair::generate().map_err(no_request)?;
        let unfinished = Unfinished { account, order: order.url().to_owned(), key: key.serialize_pem() };
        self.kept.write(&unfinished).await?;
        self.finish(order, &key).await
    }

    /// Continues an order; `None` when it can't be continued, and a new one should be placed.
    async fn resume(&self, unfinished: Unfinished) -> Option<Result<String, Failure>> {
        let Ok(key) = KeyPair::from_pem(&unfinished.key) else {
            self.kept.give_up("its key can't be read");
            return None;
        };
        let account = match self.accounts.kept().await {
            Ok(account) => account.filter(|account| account.id() == unfinished.account),
            Err(failure) => return Some(Err(late(failure))),
        };
        let Some(account) = account else {
            self.kept.give_up("it belongs to another account");
            return None;
        };
        tracing::debug!(order = unfinished.order, "an order is gone on with");
        let mut order = match account.order(unfinished.order).await {
            Ok(order) => order,
            Err(Error::Api(problem)) if failure::is_no_account(&problem) => {
                self.kept.give_up(&failure::say(&problem));
                return None;
            }
            Err(error) => return Some(Err(self.behind(error, OrderStatus::Processing))),
        };
        let status = order.state().status;
        if matches!(status, OrderStatus::Ready | OrderStatus::Processing | OrderStatus::Valid) {
            return Some(self.finish(order, &key).await);
        }
        let said = order.state().error.as_ref().map(failure::say);
        let reason =
            said.unwrap_or_else(|| format!("the authority has the order that was placed as {status:?}"));
        Some(Err(self.given_up(Failure::refused(reason))))
    }

    /// Finalizes an order whose domains are proved, unless that was done, and downloads the certificate.
    async fn finish(&self, mut order: Order, key: &KeyPair) -> Result<String, Failure> {
        if order.state().status == OrderStatus::Ready {
            let request = request(&self.accounts.acme.domains, key).map_err(no_request)?;
            let told = order.finalize_csr(&request).await;
            told.map_err(|error| self.behind(error, OrderStatus::Ready))?;
        }
        match order.poll_certificate(&policy()).await {
            Ok(chain) => Ok(key.serialize_pem() + &chain),
            Err(error) => {
                let status = order.state().status;
                Err(self.behind(error, status))
            }
        }
    }

    /// What went wrong with an order that the authority was asked to finalize. It is given up only if it
    /// can't produce a certificate any more.
    fn behind(&self, error: Error, status: OrderStatus) -> Failure {
        let is_lost = match &error {
            _ if status == OrderStatus::Invalid => true,
            Error::Api(problem) if failure::is_limit(problem) => return late(error.into()),
            // A certificate that was just issued may not be available everywhere at once.
            Error::Api(problem) if status == OrderStatus::Valid && failure::is_gone(problem) => {
                match self.kept.is_older_than(SIGNED_FOR) {
                    true => true,
                    false => return late(error.into()),
                }
            }
            Error::Api(problem) => failure::is_gone(problem) || status == OrderStatus::Ready,
            _ => return late(error.into()),
        };
        let failure = Failure { blame: Blame::Refused, ..Failure::from(error) };
        if is_lost { self.given_up(failure) } else { failure }
    }

    fn given_up(&self, failure: Failure) -> Failure {
        self.kept.give_up(&failure.reason);
        failure
    }

    /// Sets up a challenge for each domain that is not proved yet, on the workers or as a record, and tells
    /// the authority to validate it.
    async fn offer(&self, order: &mut Order) -> Result<Vec<Proof>, Failure> {
        let Attempt { ways, turn, challenges, .. } = self;
        let acme = self.accounts.acme;
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
                    let offer = challenges.offer_token(&challenge.token, proof.as_str());
                    let token = SharedProof::Token {
                        token: challenge.token.clone(),
                        authorization: proof.as_str().to_owned(),
                    };
                    Proof::ByWorkers(offer, shared::publish(acme, &token).await)
                }
                AcmeChallenge::TlsAlpn01 => {
                    let mut digest = [0; 32];
                    digest.copy_from_slice(proof.digest().as_ref());
                    let offer = challenges.offer_handshake(&domain, &digest);
                    let offer = offer.map_err(|reason| Failure::new(Blame::Store, reason))?;
                    let shaken = SharedProof::Handshake { domain: domain.clone(), digest };
                    Proof::ByWorkers(offer, shared::publish(acme, &shaken).await)
                }
                AcmeChallenge::Dns01 => {
                    let put = dns01::put(acme, &domain, proof.dns_value()).await;
                    Proof::InZone(Box::new(put.map_err(|reason| Failure::new(Blame::Dns, reason))?))
                }
            });
            tracing::debug!(domain, challenge = way.word(), "certificate authority told to look");
            challenge.set_ready().await?;
        }
        Ok(proofs)
    }
}

fn policy() -> RetryPolicy {
    RetryPolicy::new().initial_delay(Duration::from_millis(250)).backoff(1.5).timeout(VALIDATION)
}

/// It is too early for a new order: the existing one will be asked for again.
fn late(failure: Failure) -> Failure {
    let blame = if failure.blame == Blame::Store { Blame::Store } else { Blame::Late };
    Failure::new(blame, format!("the certificate is ordered and not here yet: {failure}"))
}

fn no_request(error: rcgen::Error) -> Failure {
    Failure::new(Blame::Store, format!("no key and request could be made: {error}"))
}

/// What answers a challenge as long as it is kept.
#[expect(dead_code, reason = "its being there is what counts")]
enum Proof {
    /// On this Weir's workers, and in the store for others that share it.
    ByWorkers(Offer, Option<Published>),
    InZone(Box<InZone>),
}

/// Refuses a domain that is not in the config: zones are updated and programs are run with it.
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

/// The errors that the authority found with the challenges.
async fn why_not(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let domain = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let failed = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(failed.map(|problem| format!("{domain}: {}", failure::say(problem))));
    }
    if reasons.is_empty() {
        "the authority found the order invalid and does not say why".to_owned()
    } else {
        reasons.join("; ")
    }
}

/// A certificate signing request for `domains` with this key, in DER.
fn request(domains: &[String], key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut params = CertificateParams::new(domains)?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
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
