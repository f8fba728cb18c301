//! What MQTT ingest says when a broker refuses or ends a connection: scripted brokers over TCP, and
//! two clients with one client id at a real mosquitto.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use crate::support::mosquitto::Mosquitto;
use crate::support::mqtt_rig::*;
use crate::support::raw_mqtt::{Raw, packet};
use config::MqttProtocol::{self, V4, V5};
use tokio::net::TcpListener;

/// How a scripted broker behaves on each connection.
#[derive(Clone, Copy)]
enum Script {
    /// Answers CONNECT with these bytes, and leaves the connection open.
    Connect(&'static [u8]),
    /// Accepts, and closes at the first SUBSCRIBE.
    CloseAtSubscribe,
    /// Grants all filters, and then sends these bytes. Leaves the connection open until a PUBACK.
    Then(&'static [u8]),
    /// As AWS IoT Core: closes at a SUBSCRIBE with more than eight filters.
    EightFilters,
}

async fn serve(mut client: Raw, protocol: MqttProtocol, script: Script) {
    let (accepted, properties): (&[u8], usize) = match protocol {
        V4 => (&[0x20, 2, 0, 0], 0),
        V5 => (&[0x20, 3, 0, 0, 0], 1),
    };
    let connect = client.answer().await;
    assert_eq!(connect.unwrap().0, 0x10);
    if let Script::Connect(answer) = script {
        client.send(answer).await;
        while client.answer().await.is_some() {}
        return;
    }
    client.send(accepted).await;
    while let Some((first, body)) = client.answer().await {
        match first {
            0x40 => return,
            0x82 => {}
            _ => continue,
        }
        let mut filters = 0;
        let mut rest = &body[2 + properties..];
        while let [high, low, after @ ..] = rest {
            rest = &after[usize::from(u16::from_be_bytes([*high, *low])) + 1..];
            filters += 1;
        }
        let too_many = matches!(script, Script::EightFilters) && filters > 8;
        if too_many || matches!(script, Script::CloseAtSubscribe) {
            return;
        }
        let suback = [&body[..2], &[0; 1][..properties], &vec![1; filters]].concat();
        client.send(&packet(0x90, &suback)).await;
        if let Script::Then(bytes) = script {
            client.send(bytes).await;
        }
    }
}

/// The port of a broker with this script. It serves until the test ends.
async fn broker(protocol: MqttProtocol, script: Script) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(Raw(socket), protocol, script));
        }
    });
    port
}

/// The broker leaves the connection open after its last packet, so that only the packet itself can
/// end it.
#[tokio::test]
async fn the_reason_of_the_broker_is_reported() {
    for (protocol, script, problem) in [
        // The forms of MQTT 5 §3.14.2.2.1: without a property length, and with one.
        (
            V5,
            Script::Then(b"\xe0\x01\x8e"),
            "another client uses this client_id",
        ),
        (
            V5,
            Script::Then(b"\xe0\x02\x8e\x00"),
            "another client uses this client_id",
        ),
        (
            V5,
            Script::Then(b"\xe0\x09\x98\x07\x1f\x00\x04moin"),
            "\"moin\"",
        ),
        (
            V5,
            Script::Then(b"\xe0\x00"),
            "ended the session without a reason",
        ),
        (
            V5,
            Script::Connect(b"\x20\x02\x00\x01"),
            "speaks 3.1.1 only: set protocol = 4",
        ),
        (
            V5,
            Script::Connect(b"\x20\x02\x00\x00"),
            "speaks 3.1.1 only: set protocol = 4",
        ),
        (
            V5,
            Script::Connect(b"\x20\x03\x00\x84\x00"),
            "speaks 3.1.1 only: set protocol = 4",
        ),
        (
            V5,
            Script::Connect(b"\x20\x03\x00\x8a\x00"),
            "has banned this client",
        ),
        (V4, Script::Connect(b"\x20\x02\x00\x01"), "set protocol = 5"),
        (
            V4,
            Script::Connect(b"\x20\x03\x00\x84\x00"),
            "set protocol = 5",
        ),
        (
            V4,
            Script::Connect(b"\x20\x02\x00\x05"),
            "this user may not connect",
        ),
        (
            V4,
            Script::CloseAtSubscribe,
            "instead of answering SUBSCRIBE",
        ),
        (
            V5,
            Script::CloseAtSubscribe,
            "instead of answering SUBSCRIBE",
        ),
    ] {
        let port = broker(protocol, script).await;
        let mut ingest = Ingest::spawn(config(&format!("mqtt://127.0.0.1:{port}"), protocol));
        ingest
            .until(|status| status.problem.as_ref().is_some_and(|p| p.contains(problem)))
            .await;
        ingest.finish().await;
    }
}

#[tokio::test]
async fn a_broker_that_closes_at_connect_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let mut client = Raw(listener.accept().await.unwrap().0);
            client.answer().await;
        }
    });
    for protocol in [V4, V5] {
        let mut ingest = Ingest::spawn(config(&format!("mqtt://127.0.0.1:{port}"), protocol));
        let is_reported = |problem: &String| problem.contains("instead of answering CONNECT");
        ingest
            .until(|status| status.problem.as_ref().is_some_and(is_reported))
            .await;
        ingest.finish().await;
    }
}

#[tokio::test]
async fn more_than_eight_filters_are_subscribed_in_several_packets() {
    for protocol in [V4, V5] {
        for n in [8, 9, 17] {
            let port = broker(protocol, Script::EightFilters).await;
            let mut many = config(&format!("mqtt://127.0.0.1:{port}"), protocol);
            many.subscriptions = (0..n)
                .map(|i| subscription(&format!("f{i}/+"), &format!("f{i}/{{sensor_id}}"), "json"))
                .collect();
            let ingest = Ingest::start(many).await;
            assert_eq!(ingest.status.borrow().problem, None);
            ingest.finish().await;
        }
    }
}

/// Each reports it, also while it is connected again.
#[tokio::test]
async fn two_services_with_one_client_id_say_so() {
    for protocol in [V4, V5] {
        let broker = Mosquitto::start("");
        let mut services = [(); 2].map(|()| Ingest::spawn(config(&broker.url(), protocol)));
        for service in &mut services {
            service
                .until(|status| status.connected && names_another_client(status))
                .await;
        }
        for service in services {
            service.finish().await;
        }
    }
}

/// Each session acknowledges a message and is then ended by the broker. The least waits between
/// five of them are 100, 200, 400 and 800 ms.
#[tokio::test]
async fn the_waits_between_short_sessions_grow() {
    let message = Script::Then(b"\x32\x11\x00\x0bsensors/S/t\x00\x01\x001");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let broker = tokio::spawn(async move {
        let begun = Instant::now();
        for _ in 0..5 {
            let (socket, _) = listener.accept().await.unwrap();
            serve(Raw(socket), V5, message).await;
        }
        begun.elapsed()
    });
    let mut ingest = Ingest::spawn(config(&format!("mqtt://127.0.0.1:{port}"), V5));
    for _ in 0..5 {
        deliver(ingest.ingest_batches(1).await);
    }
    let took = broker.await.unwrap();
    assert!(took >= Duration::from_millis(1500), "{took:?}");
    ingest.finish().await;
}
