//! The claims of JWTs that were verified before, so that a sender that presents the same JWT with
//! each request costs one signature, not one for each. Verifying one takes 30 to 100 µs, its
//! SHA-256 about 1 µs.
//!
//! - Only verified JWTs are kept, so that no sender without a key can fill it. The result of the
//!   time checks is not kept: they run at each use, with the clock
//!   ([`super::super::Grant::check`]).
//! - It belongs to the keys and settings that verified: a reload makes new ones, without the JWTs
//!   of the old ones.
//! - Its size is bounded in bytes. There are two generations: when the newer is full, the older is
//!   forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

/// Bytes of the JWTs of one generation: about 8,000 of the usual 500 bytes, or 512 of the largest.
const GENERATION_BYTES: usize = 4 << 20;

/// The SHA-256 of a JWT, which cannot be presented as a token.
type Key = [u8; 32];

/// `C`: the claims.
#[derive(Debug)]
pub(super) struct Verified<C>(Mutex<Generations<C>>);

#[derive(Debug)]
struct Generations<C> {
    newer: HashMap<Key, Arc<C>>,
    older: HashMap<Key, Arc<C>>,
    /// Bytes of the JWTs in `newer`.
    bytes: usize,
}

impl<C> Default for Verified<C> {
    fn default() -> Verified<C> {
        Verified(Mutex::new(Generations {
            newer: HashMap::new(),
            older: HashMap::new(),
            bytes: 0,
        }))
    }
}

impl<C> Verified<C> {
    /// The claims of this JWT, which `verify` returns if they are not known.
    ///
    /// # Errors
    /// That of `verify`; nothing is kept then.
    pub(super) fn claims<E>(
        &self,
        text: &str,
        verify: impl FnOnce() -> Result<C, E>,
    ) -> Result<Arc<C>, E> {
        let key: Key = Sha256::digest(text.as_bytes()).into();
        if let Some(known) = self.lock().find(&key, text.len()) {
            return Ok(known);
        }
        // Without the lock: it takes long.
        let claims = Arc::new(verify()?);
        self.lock().keep(key, claims.clone(), text.len());
        Ok(claims)
    }

    // Each entry of the map is valid by itself, so the lock stays usable after a panic.
    fn lock(&self) -> MutexGuard<'_, Generations<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Generations<C> {
    fn find(&mut self, key: &Key, bytes: usize) -> Option<Arc<C>> {
        if let Some(known) = self.newer.get(key) {
            return Some(known.clone());
        }
        let known = self.older.remove(key)?;
        self.keep(*key, known.clone(), bytes);
        Some(known)
    }

    fn keep(&mut self, key: Key, claims: Arc<C>, bytes: usize) {
        if self.bytes + bytes > GENERATION_BYTES {
            self.older = std::mem::take(&mut self.newer);
            self.bytes = 0;
        }
        // Two requests may have verified the same one.
        if self.newer.insert(key, claims).is_none() {
            self.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_known_jwt_is_not_verified_again_and_a_refused_one_is_not_known() {
        let verified = Verified::default();
        let times = Cell::new(0);
        let ask = |text: &str, result: Result<usize, &'static str>| {
            verified.claims(text, || {
                times.set(times.get() + 1);
                result
            })
        };
        for _ in 0..3 {
            assert_eq!(ask("a", Ok(7)), Ok(Arc::new(7)));
            assert_eq!(ask("b", Err("refused")), Err("refused"));
        }
        assert_eq!(times.get(), 1 + 3);
    }

    #[test]
    fn it_keeps_what_is_used_and_its_size_is_bounded() {
        let verified = Verified::default();
        let times = Cell::new(0);
        let padding = "x".repeat(GENERATION_BYTES / 100);
        let ask = |n: usize| {
            let text = format!("{n}{padding}");
            let verify = || {
                times.set(times.get() + 1);
                Ok::<_, ()>(n)
            };
            assert_eq!(verified.claims(&text, verify), Ok(Arc::new(n)));
        };
        for n in 0..1000 {
            ask(n);
            ask(0);
            let kept = verified.lock();
            assert!(
                kept.newer.len() + kept.older.len() <= 200,
                "{}",
                kept.newer.len()
            );
        }
        assert_eq!(
            times.get(),
            1000,
            "each once, and the one in use never again"
        );
        ask(1);
        assert_eq!(times.get(), 1001, "it was forgotten");
    }
}
