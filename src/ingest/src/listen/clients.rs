//! Connected clients: a second connection of the same client closes the first (MQTT-3.1.4-3).
//!
//! A client is identified by token and client id together, so that no device can disconnect another
//! one by using its name. Its place among the connections of its token belongs to its entry: a device
//! that comes back before its old connection is noticed to be dead takes that place over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use net::access::Held;

type Key = (String, String);

#[derive(Debug)]
struct Entry {
    taken_over: CancellationToken,
    /// Its place among the connections of its token; `None`: no credentials are configured.
    place: Option<Held>,
}

/// One entry per connection, so bounded by their number.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients(Arc<Mutex<HashMap<Key, Entry>>>);

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
    pub(super) fn enter(&self, token: &str, id: &str, place: Option<Held>) -> Registration {
        let key = (token.to_owned(), id.to_owned());
        let taken_over = CancellationToken::new();
        let entry = Entry {
            taken_over: taken_over.clone(),
            place,
        };
        let before = self.lock(|clients| clients.insert(key.clone(), entry));
        if let Some(before) = before {
            before.taken_over.cancel();
        }
        Registration {
            clients: self.clone(),
            key,
            taken_over,
        }
    }

    /// Cancels the connection of a client, if there is one, and returns its place.
    pub(super) fn take_place(&self, token: &str, id: &str) -> Option<Held> {
        let key = (token.to_owned(), id.to_owned());
        let before = self.lock(|clients| clients.remove(&key))?;
        before.taken_over.cancel();
        before.place
    }

    // Each entry is valid by itself, so the lock stays usable after a panic.
    fn lock<T>(&self, work: impl FnOnce(&mut HashMap<Key, Entry>) -> T) -> T {
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
    use net::access::{Quota, Usage};

    #[test]
    fn the_second_of_the_same_name_and_token_ends_the_first() {
        let clients = Clients::default();
        let first = clients.enter("t", "a", None);
        let other = clients.enter("u", "a", None);
        let second = clients.enter("t", "a", None);
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

    #[test]
    fn a_device_that_comes_back_takes_the_place_of_its_old_connection() {
        let quota = Quota {
            connections_max: Some(1),
            ..Quota::unlimited()
        };
        let usage = Usage::default();
        let clients = Clients::default();
        let place = usage.connection(&quota).unwrap();
        let first = clients.enter("t", "a", Some(place));
        assert!(usage.connection(&quota).is_err());
        assert!(clients.take_place("t", "b").is_none() && !first.taken_over.is_cancelled());
        let place = clients.take_place("t", "a");
        assert!(place.is_some() && first.taken_over.is_cancelled());
        let second = clients.enter("t", "a", place);
        drop(first);
        assert!(usage.connection(&quota).is_err(), "the second has it");
        drop(second);
        assert!(usage.connection(&quota).is_ok());
    }
}
