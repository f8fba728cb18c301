//! The fake
