//! What the codes of a broker mean, and what to do: return codes of MQTT 3.1.1 (§3.2.2.3), reason
//! codes of MQTT 5 (§3.2.2.2, §3.14.2.1, §3.9.3). Pure.

/// The advice for a broker that does not know MQTT 5.
pub(super) const ONLY_V4: &str = "the broker speaks 3.1.1 only: set protocol = 4";
/// The advice for a broker that does not know MQTT 3.1.1.
const ONLY_V5: &str = "the broker does not speak 3.1.1: set protocol = 5";

const CLIENT_ID: &str = "the broker does not accept this client_id: choose another mqtt.client_id \
    (the broker may limit its length and characters, or bind it to the user or certificate)";
const CREDENTIALS: &str = "wrong user name or password: check mqtt.username and mqtt.password_file";
const NOT_ALLOWED: &str = "this user may not connect: check mqtt.username, its password or \
    certificate, and the broker's access rules for it and for this client_id";
const UNAVAILABLE: &str =
    "the broker says that it is not available: look at its log; hourbucket tries again";
const UNKNOWN: &str = "the broker gives a code that MQTT does not define here: look at its log";

/// The packet that has a reason code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    ConnAck,
    Disconnect,
}

/// What a return code in a CONNACK of MQTT 3.1.1 means. Zero is no refusal.
pub(super) fn connack_v4(code: u8) -> &'static str {
    match code {
        1 => ONLY_V5,
        2 => CLIENT_ID,
        3 => UNAVAILABLE,
        4 => CREDENTIALS,
        5 => NOT_ALLOWED,
        // A broker that knows only MQTT 5 may answer in its own terms.
        0x84 => ONLY_V5,
        0x80.. => v5(Packet::ConnAck, code),
        _ => UNKNOWN,
    }
}

/// What a CONNACK in the form of MQTT 3.1.1, without properties, means as the answer to a CONNECT of
/// MQTT 5.
pub(super) fn connack_without_properties(code: u8) -> &'static str {
    match code {
        0 | 1 | 0x84 => ONLY_V4,
        code => connack_v4(code),
    }
}

/// What a reason code of MQTT 5 means. Zero in a CONNACK is no refusal.
pub(super) fn v5(packet: Packet, code: u8) -> &'static str {
    use Packet::{ConnAck, Disconnect};
    match (packet, code) {
        (Disconnect, 0) => "the broker ended the session without a reason: look at its log",
        (_, 0x80) => "the broker does not name its reason: look at its log",
        (_, 0x81) => {
            "the broker calls a packet malformed: look at its log, report the packet as a fault \
             of hourbucket, and try protocol = 4"
        }
        (_, 0x82) => {
            "the broker sees a protocol error: look at its log, report it as a fault of \
             hourbucket, and try protocol = 4"
        }
        (_, 0x83) => "the broker cannot process a packet: look at its log, and try protocol = 4",
        (ConnAck, 0x84) => ONLY_V4,
        (ConnAck, 0x85) => CLIENT_ID,
        (ConnAck, 0x86) => CREDENTIALS,
        (ConnAck, 0x87) => NOT_ALLOWED,
        (Disconnect, 0x87) => {
            "this user may not stay connected, or may not read or publish something: check the \
             broker's access rules for mqtt.subscriptions and mqtt.status_topic"
        }
        (ConnAck, 0x88) => UNAVAILABLE,
        (_, 0x89) => {
            "the broker is too busy: look at its load; hourbucket tries again, more and more \
             slowly"
        }
        (ConnAck, 0x8A) => "the broker has banned this client: lift the ban in the broker",
        (Disconnect, 0x8B) => "the broker is stopping: wait, hourbucket connects again",
        (ConnAck, 0x8C) => {
            "the broker wants an authentication method that hourbucket does not have: allow user \
             name and password, or a certificate, in the broker"
        }
        (Disconnect, 0x8D) => {
            "the broker received nothing for one and a half times mqtt.keep_alive: check the \
             network, or raise mqtt.keep_alive"
        }
        (Disconnect, 0x8E) => {
            "another client uses this client_id: give each client of the broker its own \
             mqtt.client_id"
        }
        (Disconnect, 0x8F) => {
            "the broker does not accept a topic filter: change the filters of mqtt.subscriptions"
        }
        (_, 0x90) => {
            "the broker does not accept a topic that hourbucket publishes to: change or remove \
             mqtt.status_topic"
        }
        (Disconnect, 0x93) => {
            "the broker received more messages at a time than it allows: report it as a fault of \
             hourbucket, and remove mqtt.status_topic"
        }
        (Disconnect, 0x94) => {
            "the broker received a topic alias, which hourbucket never sends: look at its log, \
             and try protocol = 4"
        }
        (_, 0x95) => {
            "a packet is larger than the broker allows: raise its limit, or shorten the filters, \
             mqtt.client_id and the password"
        }
        (Disconnect, 0x96) => {
            "the broker limits the rate of messages: raise its limit for this client"
        }
        (_, 0x97) => {
            "a limit of the broker is reached (connections, subscriptions, bytes): raise it for \
             this client"
        }
        (Disconnect, 0x98) => "an operator of the broker ended the session: ask why",
        (_, 0x99) => {
            "the broker does not accept the content of the status message: remove \
             mqtt.status_topic"
        }
        (_, 0x9A) => "the broker keeps no retained messages: remove mqtt.status_topic",
        (_, 0x9B) => "the broker does not accept QoS 1: remove mqtt.status_topic",
        (_, 0x9C) => "the broker asks to use another server for now: set mqtt.url to that server",
        (_, 0x9D) => "the broker has moved: set mqtt.url to the new server",
        (Disconnect, 0x9E) => {
            "the broker has no shared subscriptions: remove $share/… from the filters, and let \
             one instance subscribe"
        }
        (_, 0x9F) => {
            "the broker limits the rate of new connections: wait, hourbucket tries again more and \
             more slowly; raise the limit if other clients use it up"
        }
        (Disconnect, 0xA0) => {
            "the broker limits how long a connection lasts: hourbucket connects again; raise the \
             limit if that is too often"
        }
        (Disconnect, 0xA1) => {
            "the broker received a subscription identifier, which hourbucket never sends: look at \
             its log, and try protocol = 4"
        }
        (Disconnect, 0xA2) => "the broker does not accept wildcards: write filters without + and #",
        _ => UNKNOWN,
    }
}

/// What a failure code in a SUBACK means, with either protocol.
fn suback(code: u8) -> &'static str {
    match code {
        0x80 => {
            "the broker refuses it without a reason: check its access rules for this user, and \
             its log"
        }
        0x83 => "the broker cannot process it: look at its log",
        0x87 => "this user may not read it: allow it in the broker's access rules",
        0x8F => "the broker does not accept this form of filter: change the filter",
        0x91 => "the packet id is in use: wait, hourbucket asks again",
        0x97 => "a limit of the broker is reached: raise it, or use fewer subscriptions",
        0x9E => {
            "the broker has no shared subscriptions: remove $share/… from the filter, and let one \
             instance subscribe"
        }
        0xA1 => {
            "the broker sees a subscription identifier, which hourbucket never sends: look at its \
             log, and try protocol = 4"
        }
        0xA2 => "the broker does not accept wildcards: write a filter without + and #",
        _ => UNKNOWN,
    }
}

/// Why a subscription is not granted.
pub(super) fn refused(code: u8) -> String {
    format!("{} (SUBACK {code:#04x})", suback(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MQTT 5, table 3-1.
    const CONNACK: [u8; 21] = [
        0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97,
        0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    ];
    /// MQTT 5, table 3-13, without the code that only a client sends.
    const DISCONNECT: [u8; 28] = [
        0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95,
        0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    ];
    /// MQTT 5, table 3-8.
    const SUBACK: [u8; 9] = [0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2];

    #[test]
    fn each_code_of_the_standard_has_a_sentence_and_no_other() {
        for code in 0..=255 {
            let is_known = |codes: &[u8], text: &str| {
                assert_eq!(codes.contains(&code), text != UNKNOWN, "{code:#x} {text}");
            };
            is_known(&DISCONNECT, v5(Packet::Disconnect, code));
            is_known(&CONNACK, v5(Packet::ConnAck, code));
            is_known(&SUBACK, suback(code));
            is_known(&[&[1, 2, 3, 4, 5], &CONNACK[..]].concat(), connack_v4(code));
        }
    }

    #[test]
    fn the_protocol_of_the_broker_is_named() {
        for code in [0, 1, 0x84] {
            assert_eq!(connack_without_properties(code), ONLY_V4);
        }
        assert_eq!(connack_without_properties(5), NOT_ALLOWED);
        assert_eq!(v5(Packet::ConnAck, 0x84), ONLY_V4);
        assert_eq!((connack_v4(1), connack_v4(0x84)), (ONLY_V5, ONLY_V5));
    }
}
