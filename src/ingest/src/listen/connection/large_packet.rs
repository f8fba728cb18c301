//! The large packet of a connection: its room in the budget of all connections, and its time limit.

use std::time::Duration;

use tokio::time::Instant;

use crate::listen::large::Room;
use config::ListenMqtt;

/// A large packet that is being buffered or skipped.
pub(super) struct LargePacket {
    /// Its part of the budget; none if it is skipped and nothing of it is kept.
    pub(super) room: Option<Room>,
    /// When it must be complete. A slower device would hold room that others wait for.
    pub(super) until: Instant,
}

impl LargePacket {
    /// A packet of this size, which begins now.
    pub(super) fn new(bytes: usize, room: Option<Room>, settings: &ListenMqtt) -> LargePacket {
        let time = Duration::from_secs(bytes as u64 / settings.packet_rate_min);
        LargePacket {
            room,
            until: Instant::now() + settings.packet_grace + time,
        }
    }
}

/// Waits until the packet that waits for room has it.
pub(super) async fn given(wanted: &mut Option<(usize, Room)>) {
    if let Some((_, room)) = wanted {
        room.given().await;
    }
}
