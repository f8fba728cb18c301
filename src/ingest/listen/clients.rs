//! Connected clients: a second connection of the same client closes the first (MQTT-3.1.4-3).
//!
//! A client is identified by token and client id together, so that no device can disconnect another
//! one by using its name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

type Key = (String, String);

/// One entry per connection, so bounded by their number.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients(Arc<Mutex<HashMap<Key, CancellationToken>>>);

/// The entry of a connection; removed when dropped.
#[derive(Debug)]
pub(super) struct Registration {
    clients: Clients,
    key: Key,
    /// Cancelled when another connection of the same client replaces this one.
    pub(super) taken_over: CancellationToken,
}

impl Clients {
    /// Registers a connection of a client, and cancels its previous connection if there is one.
    pub(super) fn enter(&self, token: &str, id: &str) -> Registration {
        let key = (token.to_owned(), id.to_owned());
        let taken_over = CancellationToken::new();
        let before = self.lock(|clients| clients.insert(key.clone(), taken_over.clone()));
        if let Some(before) = before {
            before.cancel();
        }
        Registration {
            clients: self.clone(),
            key,
            taken_over,
        }
    }

    // Each entry is valid by itself, so the lock stays usable after a panic.
    fn lock<T>(&self, work: impl FnOnce(&mut HashMap<Key, CancellationToken>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // After a takeover the entry belongs to the other connection.
        if !self.taken_over.is_cancelled() {
            self.clients.lock(|clients| clients.remove(&self.key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_of_the_same_name_and_token_ends_the_first() {
        let clients = Clients::default();
        let first = clients.enter("t", "a");
        let other = clients.enter("u", "a");
        let second = clients.enter("t", "a");
        assert!(first.taken_over.is_cancelled() && !second.taken_over.is_cancelled());
        assert!(
            !other.taken_over.is_cancelled(),
            "another token's device with the same name"
        );
        drop(first);
        assert_eq!(clients.lock(|c| c.len()), 2, "the entry is the second's");
        drop((second, other));
        assert_eq!(clients.lock(|c| c.len()), 0);
    }
}
