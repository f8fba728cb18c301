//! The sender of each connection, so that its idle connections end when its token does.
//!
//! A request whose body is still arriving is checked again before it is used, and an answer that is
//! being sent is completed. So only waiting connections are cut here: idle ones, and on the admin
//! port those whose request's body is still arriving.

use std::sync::{Arc, PoisonError};

use super::phase::Doing;
use super::{OpenConnections, Place};
use crate::access::Grant;

impl Place {
    /// This sender has authenticated on the connection. Not noted for a trusted proxy, whose
    /// connections carry the requests of many senders.
    pub fn sent_by(&self, grant: &Arc<Grant>) {
        if !self.entry.is_counted {
            return;
        }
        let sender = self.entry.sender.lock();
        let mut sender = sender.unwrap_or_else(PoisonError::into_inner);
        if sender
            .as_ref()
            .is_none_or(|known| !Arc::ptr_eq(known, grant))
        {
            *sender = Some(grant.clone());
        }
    }
}

impl OpenConnections {
    /// Cuts the idle connections of senders that are not valid any more.
    pub(crate) fn cut_unless(&self, is_valid: impl Fn(&Grant) -> bool) {
        // The check of a JWT takes long, so no lock is held during it.
        let of_senders: Vec<_> = self.lock(|state| {
            let entries = state.list.iter().map(|(_, entry)| entry.clone());
            entries
                .filter_map(|entry| {
                    let sender = entry.sender.lock();
                    let sender = sender.unwrap_or_else(PoisonError::into_inner).clone()?;
                    Some((entry, sender))
                })
                .collect()
        });
        let now_ms = self.now_ms();
        for (entry, _) in of_senders.iter().filter(|(_, grant)| !is_valid(grant)) {
            self.lock(|state| {
                if let Doing::Waiting { since_ms, .. } = entry.phase.now()
                    && entry.phase.cut(since_ms)
                {
                    state.left(entry, now_ms);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;
    use model::SystemClock;

    fn grant(id: &str) -> Arc<Grant> {
        Arc::new(Grant::unlimited(id))
    }

    #[test]
    fn idle_connections_of_a_revoked_sender_are_cut_and_no_others() {
        let http = Config::default().http;
        let open =
            OpenConnections::new(http.connections, http.proxies, Arc::new(SystemClock::new()));
        let enter = |sender: Option<&str>| {
            let place = open.enter("203.0.113.5:1000".parse().unwrap()).unwrap();
            sender.inspect(|id| place.sent_by(&grant(id)));
            place
        };
        let places = [
            enter(Some("kept")),
            enter(Some("revoked")),
            enter(None),
            enter(Some("revoked")),
        ];
        places[3].begin();
        open.cut_unless(|grant| &*grant.id == "kept");
        let is_cut = places.map(|place| place.phase().now() == Doing::Cut);
        assert_eq!(is_cut, [false, true, false, false]);
    }
}
