//! Connections that are served while something makes them wait: room, a quota, an acknowledgement.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::listen::inflight::AckResult;
use model::ack::AckOutcome;
use net::access::{Grant, hash_secret};

/// No test takes this long. A test that hangs fails with its name instead.
const LONG: Duration = Duration::from_secs(20);

/// Waits for the next message; returns the size of its payload.
async fn next_payload_bytes(rx: &mut mpsc::Receiver<Incoming>) -> usize {
    let incoming = tokio::time::timeout(LONG, rx.recv()).await;
    incoming.expect("no message").unwrap().message.payload.len()
}

/// A connection that is served and waits for room continues as soon as there is some.
#[tokio::test]
async fn a_packet_that_waits_for_room_arrives_when_there_is_some() {
    let shared = shared(&settings(100));
    let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
    let (near, mut device) = tokio::io::duplex(100_000);
    let connection = connection_of(0, near, &shared, Version::V4, &tx);
    let owner = net::shares::Owner::identify(None, Ipv4Addr::from_bits(0).into());
    let rooms = [
        shared.large.ask(&owner, LARGE_BYTES_MAX / 4),
        shared.large.ask(&owner, LARGE_BYTES_MAX / 4),
    ];
    let place = shared.clients.enter("t", "d", None);
    let serving = tokio::spawn(connection.serve(place, None));
    let small = publish(Version::V4, "s/a", 0, 0, 0, 3);
    let large = publish(Version::V4, "s/a", 0, 0, 0, 60_000);
    device.write_all(&[small, large].concat()).await.unwrap();
    assert_eq!(next_payload_bytes(&mut rx).await, 3);
    tokio::task::yield_now().await;
    assert!(rx.try_recv().is_err(), "there is no room");
    drop(rooms);
    assert_eq!(next_payload_bytes(&mut rx).await, 60_000);
    drop(device);
    let end = tokio::time::timeout(LONG, serving).await.unwrap().unwrap();
    assert_eq!(end, CloseReason::Lost);
    assert_eq!(shared.large.free(), LARGE_BYTES_MAX);
}

/// The authorization of a sender with a rate of one reading per second, and its grant.
fn slow_sender() -> (Authorization, Arc<Grant>) {
    sender_with("rate = 1")
}

/// The authorization of a sender with these rules, and its grant.
fn sender_with(rules: &str) -> (Authorization, Arc<Grant>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let sha256 = hash_secret("s");
    let entry = format!("[[tokens]]\nid = \"d1\"\nsha256 = \"{sha256}\"\n{rules}\n");
    std::fs::write(file.path(), entry).unwrap();
    let grants = GrantDefaults::unlimited();
    let tokens = Credentials::load("x", Some(file.path()), false, &grants).unwrap();
    let of_d1 = |tokens: &Credentials| tokens.of_secret("d1", "s").ok_or(());
    let mut authorization = Authorization::new(Live::fixed(tokens), of_d1).unwrap();
    let grant = authorization.current(0).unwrap().unwrap().clone();
    (authorization, grant)
}

/// More than these tests take to earn.
const DEBT_READINGS: usize = 1_000_000_000;

/// The room of a large packet is what the packets of others wait for.
#[tokio::test]
async fn a_large_packet_that_has_begun_is_read_although_its_sender_is_over_its_quota() {
    let shared = shared(&settings(100));
    let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
    let (near, mut device) = tokio::io::duplex(100_000);
    let (authorization, grant) = slow_sender();
    let connection = authorized(authorization, 0, near, &shared, Version::V4, &tx);
    let place = shared.clients.enter("t", "d", None);
    let serving = tokio::spawn(connection.serve(place, None));
    let large = publish(Version::V4, "s/a", 0, 0, 0, 60_000);
    device.write_all(&large[..100]).await.unwrap();
    let begun = async {
        while shared.large.free() == LARGE_BYTES_MAX {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, begun).await.expect("no room");
    grant.usage.charge(&grant.quota, DEBT_READINGS, 0);
    device.write_all(&large[100..]).await.unwrap();
    assert_eq!(next_payload_bytes(&mut rx).await, 60_000);
    assert_eq!(shared.large.free(), LARGE_BYTES_MAX);
    serving.abort();
}

#[tokio::test]
async fn a_sender_over_its_quota_gets_answers_to_its_pings_and_may_leave() {
    const PINGREQ: [u8; 2] = [0xc0, 0];
    let shared = shared(&settings(100));
    let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
    for sends_more in [true, false] {
        let (near, mut device) = tokio::io::duplex(100_000);
        let (authorization, grant) = slow_sender();
        grant.usage.charge(&grant.quota, DEBT_READINGS, 0);
        let connection = authorized(authorization, 0, near, &shared, Version::V4, &tx);
        let place = shared.clients.enter("t", "d", None);
        let serving = tokio::spawn(connection.serve(place, None));
        // A part of the first is read for itself.
        device.write_all(&PINGREQ[..1]).await.unwrap();
        tokio::task::yield_now().await;
        device.write_all(&PINGREQ[1..]).await.unwrap();
        let message = publish(Version::V4, "s/a", 0, 0, 0, 3);
        device.write_all(&PINGREQ).await.unwrap();
        if sends_more {
            device.write_all(&message).await.unwrap();
        }
        let mut answers = [0; 4];
        let answered = tokio::time::timeout(LONG, device.read_exact(&mut answers)).await;
        answered.expect("no PINGRESP").unwrap();
        assert_eq!(answers, [0xd0, 0, 0xd0, 0]);
        assert!(rx.try_recv().is_err(), "it is over its quota");
        if sends_more {
            serving.abort();
        } else {
            drop(device);
            let end = tokio::time::timeout(LONG, serving).await;
            assert_eq!(
                end.expect("its end is not noticed").unwrap(),
                CloseReason::Lost
            );
        }
    }
}

#[test]
fn every_byte_counts_against_the_rate_of_bytes_whatever_packet_it_is_of() {
    let shared = shared(&settings(100));
    let (tx, _rx) = mpsc::channel(QUEUE_MAX);
    // 1000 topics, and a part of a message that never comes.
    let mut subscribe = vec![0x82, 0x92, 0x4e, 0, 1];
    (0..1000).for_each(|_| subscribe.extend_from_slice(b"\0\x07a/b/c/d\0"));
    assert_eq!(subscribe.len() - 3, 0x4e * 128 + 0x12);
    let part = publish(Version::V4, "s/a", 1, 7, 0, 50_000)[..10_000].to_vec();
    for bytes in [subscribe, part] {
        let (near, _device) = tokio::io::duplex(1000);
        let (authorization, grant) =
            sender_with("rate = { bytes_per_second = \"1KiB\", burst = \"1s\" }");
        let mut connection = authorized(authorization, 0, near, &shared, Version::V4, &tx);
        let quota = || grant.check_quota(shared.deps.clock.now());
        connection.receive(&bytes[..bytes.len() / 2]).unwrap();
        assert!(quota().is_err(), "{:?}", &bytes[..4]);
    }
}

/// Otherwise a sender could send any number of bytes as repeats of one message.
#[test]
fn a_repeated_packet_counts_against_the_rate_of_bytes() {
    let shared = shared(&settings(100));
    let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
    let (near, _device) = tokio::io::duplex(1000);
    let (authorization, grant) =
        sender_with("rate = { bytes_per_second = \"1KiB\", burst = \"1s\" }");
    let mut connection = authorized(authorization, 0, near, &shared, Version::V4, &tx);
    // The clock begins at zero. After this the sender has saved the bytes of a small message.
    std::thread::sleep(Duration::from_millis(50));
    let quota = || grant.check_quota(shared.deps.clock.now());
    let message = |payload| publish(Version::V4, "s/a", 2, 7, 0, payload);
    connection.receive(&message(1)).unwrap();
    assert!(quota().is_ok());
    connection.receive(&message(20_000)).unwrap();
    assert!(quota().is_err());
    assert_eq!(rx.try_recv().unwrap().message.payload.len(), 1);
    assert!(rx.try_recv().is_err(), "it is the same message");
}

/// A device that sends PUBREL without waiting for PUBREC, and then another message with the same
/// id.
#[tokio::test]
async fn a_pubrel_before_its_pubrec_waits_for_it_and_the_next_message_is_another_one() {
    for version in [Version::V4, Version::V5] {
        let shared = shared(&settings(100));
        let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
        let (near, mut device) = tokio::io::duplex(1000);
        let connection = connection_of(0, near, &shared, version, &tx);
        let place = shared.clients.enter("t", "d", None);
        let serving = tokio::spawn(connection.serve(place, None));
        let message = |payload| publish(version, "s/a", 2, 7, 0, payload);
        let pubrel = vec![0x62, 2, 0, 7];
        let all = [message(1), pubrel.clone(), message(2), pubrel].concat();
        device.write_all(&all).await.unwrap();
        for payload_bytes in [1, 2] {
            let incoming = tokio::time::timeout(LONG, rx.recv()).await;
            let incoming = incoming.expect("the message is lost").unwrap();
            assert_eq!(incoming.message.payload.len(), payload_bytes);
            let (acks, first) = incoming.from.unwrap();
            let mut early = [0; 1];
            tokio::select! {
                biased;
                _ = device.read(&mut early) => panic!("an answer before the message is safe"),
                () = tokio::task::yield_now() => {}
            }
            assert!(rx.try_recv().is_err(), "after PUBCOMP");
            let result = AckResult {
                first,
                count: 1,
                outcome: AckOutcome::Delivered,
                is_refused: false,
            };
            acks.send(result).unwrap();
            let mut answers = [0; 8];
            let answered = tokio::time::timeout(LONG, device.read_exact(&mut answers)).await;
            answered.expect("no answer").unwrap();
            assert_eq!(answers, [0x50, 2, 0, 7, 0x70, 2, 0, 7], "{version:?}");
        }
        serving.abort();
    }
}
