//! The futures of the traits of a store.

use std::future::Future;
use std::pin::Pin;

/// A boxed future, so that the store can be chosen at run time; costs one allocation per command.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
