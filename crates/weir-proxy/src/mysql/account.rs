//! The account of a client. Only sessions with the same account may share server connections.

use std::fmt;
use std::hash::{Hash, Hasher};

use weir_tls::password::Password;

/// A user name and password.
///
/// Two accounts are equal only if both are: knowing a name, or an old password, does not give access to
/// connections that were opened with the new one (threat F5).
pub struct Account {
    /// The user name as sent by the client.
    pub user: Box<[u8]>,
    /// The password, for logins to servers.
    pub password: Password,
    digest: [u8; 32],
}

impl Account {
    /// For a name and a password that no server has confirmed yet.
    pub fn new(user: &[u8], password: Password) -> Account {
        Account { user: user.into(), digest: password.digest(), password }
    }
}

impl PartialEq for Account {
    fn eq(&self, other: &Account) -> bool {
        self.user == other.user && self.digest == other.digest
    }
}

impl Eq for Account {}

impl Hash for Account {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.user.hash(state);
        self.digest.hash(state);
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Account")
            .field("user", &self.user.escape_ascii().to_string())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(user: &[u8], password: &[u8]) -> Account {
        Account::new(user, Password::new(password).unwrap())
    }

    #[test]
    fn accounts_are_the_same_by_name_and_password_together() {
        assert_eq!(account(b"app", b"sesame"), account(b"app", b"sesame"));
        assert_ne!(account(b"app", b"sesame"), account(b"app", b"other"));
        assert_ne!(account(b"app", b"sesame"), account(b"app", b""));
        assert_ne!(account(b"app", b"sesame"), account(b"root", b"sesame"));
    }

    #[test]
    fn what_is_printed_of_an_account_does_not_have_its_password() {
        assert_eq!(format!("{:?}", account(b"a\"pp", b"sesame")), r#"Account { user: "a\\\"pp", .. }"#);
    }
}
