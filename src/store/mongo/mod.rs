//! Mongo
