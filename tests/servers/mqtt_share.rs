//! Several brokers; and one broker shared by two instances, one of which is killed. Real mosquitto,
//! real MongoDB, the binary.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::fleet::Devices;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::{Mosquitto, publish_by_tool};
use crate::support::service::Service;
use crate::support::{stored, wait_until};

/// A limit for each wait; two cores are shared by all processes.
const PATIENCE: Duration = Duration::from_secs(120);

fn broker() -> Mosquitto {
    Mosquitto::start("max_inflight_messages 1000\nmax_queued_messages 0\n")
}

fn section(broker: &Mosquitto, client_id: &str, filter: &str) -> String {
    format!(
        "[[mqtt]]\nurl = \"{}\"\nclient_id = \"{client_id}\"\n[[mqtt.subscriptions]]\n\
         filter = \"{filter}\"\n\
         topic = \"fleet/{{sensor_id}}\"\nformat = \"json\"\n",
        broker.url()
    )
}

/// One of two instances is killed while it receives messages of a shared subscription. The messages
/// that the broker has sent to it, and still assigns to it, wait. After it is back with the same
/// client id, everything published is stored once.
#[test]
fn one_of_two_instances_is_killed() {
    let uri = Mongod::shared().uri();
    let database = unique_database("share");
    let broker = broker();
    let settings = [("STORE__URI", uri.as_str()), ("STORE__DATABASE", &database)];
    let instance = |id: &str| {
        // Two instances that write the same sensor are exact in bucket mode only.
        let text = format!(
            "store.mode = \"bucket\"\nflush.max_age = \"300ms\"\n{}",
            section(&broker, id, "$share/group/fleet/+")
        );
        Service::start(&text, &settings)
    };
    let one = instance("one");
    let mut two = instance("two");
    one.wait_subscribed();
    two.wait_subscribed();
    let devices = Devices::start(broker.port(), 50, 30_000, 6_000);
    let published = |n| {
        wait_until("messages flow", PATIENCE, || {
            (devices.acked.load(Ordering::Relaxed) >= n).then_some(())
        });
    };
    published(10_000);
    assert!(
        two.metrics().get("readings_accepted_total") > 0.0,
        "the second instance received nothing"
    );
    two.kill9();
    published(30_000);
    let sent = devices.finish(false);
    assert_eq!(sent.len(), 30_000);
    // The other instance has received all that it will get.
    one.wait_settled(10_000, PATIENCE);
    let without = stored::readings(&uri, &database).len();
    println!(
        "{} of {} wait for the killed instance",
        sent.len() - without,
        sent.len()
    );
    assert!(
        without < sent.len(),
        "mosquitto gave the dead one's messages to the other: its documentation here is wrong"
    );
    two.restart();
    wait_until("everything is stored", PATIENCE, || {
        (stored::readings(&uri, &database).len() >= sent.len()).then_some(())
    });
    stored::exactly_once(&stored::readings(&uri, &database), sent);
}

/// mosquitto 2.0 keeps the session at a restart, but not its shared subscriptions. Messages that are
/// published afterwards arrive all the same.
#[test]
fn a_shared_subscription_is_there_after_the_broker_was_restarted() {
    let uri = Mongod::shared().uri();
    let database = unique_database("share_restart");
    let mut broker = broker();
    let settings = [("STORE__URI", uri.as_str()), ("STORE__DATABASE", &database)];
    for protocol in [4, 5] {
        let id = format!("protocol{protocol}");
        let text = section(&broker, &id, "$share/group/fleet/+")
            .replace("[[mqtt]]", &format!("[[mqtt]]\nprotocol = {protocol}"));
        let service = Service::start(&format!("flush.max_age = \"300ms\"\n{text}"), &settings);
        service.wait_subscribed();
        broker.stop();
        broker.restart();
        wait_until("a second connection", PATIENCE, || {
            (service.metrics().get("mqtt_reconnects_total") >= 1.0).then_some(())
        });
        service.wait_subscribed();
        // The broker has read SUBSCRIBE before a message that is published now.
        std::thread::sleep(Duration::from_millis(500));
        publish_by_tool(broker.port(), "fleet/a", r#"{"values":{"x":1}}"#, &[]);
        service.wait_settled(1, PATIENCE);
    }
}

#[test]
fn several_brokers() {
    let uri = Mongod::shared().uri();
    let database = unique_database("brokers");
    let brokers = [broker(), broker()];
    // The client id may be the same, because it belongs to each broker separately.
    let text: String = brokers
        .iter()
        .map(|broker| section(broker, "hourbucket", "fleet/+"))
        .collect();
    let settings = [("STORE__URI", uri.as_str()), ("STORE__DATABASE", &database)];
    let service = Service::start(&format!("flush.max_age = \"300ms\"\n{text}"), &settings);
    service.wait_subscribed();
    let devices = brokers
        .each_ref()
        .map(|broker| Devices::start(broker.port(), 20, 2_000, 4_000));
    let sent: Vec<_> = devices
        .into_iter()
        .flat_map(|devices| devices.finish(false))
        .collect();
    let metrics = service.wait_settled(sent.len() as u64, PATIENCE);
    assert_eq!(metrics.get("mqtt_connected"), 2.0);
    // Both brokers published for the same sensors; an equal reading from both is one reading.
    let mut sent: Vec<_> = sent;
    sent.sort();
    sent.dedup();
    stored::exactly_once(&stored::readings(&uri, &database), sent);
}
