//! What the server's reply to `hello` says.

use mongodb::bson::Document;

/// Whether it is from a mongos of a sharded cluster.
pub(super) fn is_mongos(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

/// The time of the server, in ms since 1970.
pub(super) fn server_ms(hello: &Document) -> Option<i64> {
    let now = hello.get_datetime("localTime").ok()?;
    Some(now.timestamp_millis())
}
