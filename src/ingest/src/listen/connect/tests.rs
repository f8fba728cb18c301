//! Tests of CONNECT: which bytes are one, which credentials a device may use, and the answers.

use super::*;
use config::Config;
use net::access::{GrantDefaults, hash_secret};

fn tokens() -> Credentials {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        format!(
            "[[tokens]]\nid = \"d1\"\nsha256 = \"{}\"\n",
            hash_secret("s.1")
        ),
    )
    .unwrap();
    let grants = GrantDefaults::unlimited();
    Credentials::load("listen.mqtt.tokens_file", Some(file.path()), false, &grants)
        .unwrap()
        .unwrap()
}

fn request(user: Option<&str>, password: Option<&str>) -> ConnectRequest {
    ConnectRequest {
        version: Version::V5,
        client_id: "c".into(),
        keep_alive: 60,
        clean: true,
        user: user.map(str::to_owned),
        password: password.map(|p| p.as_bytes().to_vec()),
        has_method: false,
        wants_session: false,
        wants_reason_string: true,
        packet_bytes_max: usize::MAX,
    }
}

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

#[test]
fn a_secret_is_not_shown_even_in_a_client_id() {
    let shown = |id: &str, user, password| {
        let request = ConnectRequest {
            client_id: id.into(),
            ..request(user, password)
        };
        request.shown_id().to_owned()
    };
    assert_eq!(shown("pump-1", Some("d1"), Some("geheim.1")), "pump-1");
    assert_eq!(
        shown("d1", Some("d1"), Some("geheim")),
        "d1",
        "the id of a token is not a secret"
    );
    assert_eq!(shown("pump-geheim", Some("d1"), Some("geheim")), HIDDEN_ID);
    assert_eq!(shown("geheim", Some("any"), Some("d1.geheim")), HIDDEN_ID);
    assert_eq!(shown("d1.geheim", Some("d1.geheim"), None), HIDDEN_ID);
    assert_eq!(shown("x-geheim", Some("d1.geheim"), None), HIDDEN_ID);
    assert_eq!(shown("pump-1", None, Some("")), "pump-1");
}

#[test]
fn a_token_is_user_name_and_password_or_the_password_alone() {
    let tokens = tokens();
    let id =
        |user, password| grant(&request(user, password), &tokens).map(|grant| grant.id.to_string());
    for (user, password) in [
        (Some("d1"), Some("s.1")),
        (Some("anyone"), Some("d1.s.1")),
        (None, Some("d1.s.1")),
        (Some(""), Some("d1.s.1")),
        (Some("d1.s.1"), None),
    ] {
        assert_eq!(
            id(user, password),
            Ok("d1".to_owned()),
            "{user:?} {password:?}"
        );
    }
    for (user, password) in [
        (Some("d1"), Some("s")),
        (Some("d2"), Some("s.1")),
        (Some("d1"), None),
        (None, Some("x")),
        (Some("d1"), Some("")),
    ] {
        assert_eq!(
            id(user, password),
            Err(ConnectError::WrongCredentials),
            "{user:?} {password:?}"
        );
    }
    assert_eq!(id(None, None), Err(ConnectError::NoCredentials));
}

#[test]
fn a_client_id_belongs_to_the_identity_that_it_begins_with() {
    let all = [
        ("", true),
        ("pump", true),
        ("pump-1", true),
        ("pump/1", true),
        ("pump1", false),
        ("Pump", false),
    ];
    for (id, is_own) in all {
        assert_eq!(belongs(id, "pump"), is_own, "{id}");
    }
}

#[test]
fn the_terms_are_ours() {
    let mut settings = Config::default().listen.mqtt;
    settings.keep_alive_max = Duration::from_secs(100);
    let silence = |keep_alive| {
        let request = ConnectRequest {
            keep_alive,
            ..request(None, None)
        };
        admit(&request, "", &settings, PEER, || "x".into())
            .unwrap()
            .0
            .silence_max
            .as_secs()
    };
    assert_eq!((silence(60), silence(0), silence(1000)), (90, 150, 150));
    let nameless = |version, clean| {
        let request = ConnectRequest {
            client_id: String::new(),
            version,
            clean,
            ..request(None, None)
        };
        let admit = || admit(&request, "", &settings, PEER, || "named".into());
        check(&request)
            .and_then(|()| admit())
            .map(|(client, _)| client.id)
    };
    assert_eq!(nameless(Version::V5, false), Ok("named".into()));
    assert_eq!(nameless(Version::V4, true), Ok("named".into()));
    assert_eq!(nameless(Version::V4, false), Err(ConnectError::ClientId));
    let long = ConnectRequest {
        client_id: "x".repeat(257),
        ..request(None, None)
    };
    assert_eq!(check(&long), Err(ConnectError::ClientId));
}

#[test]
fn no_answer_is_larger_than_the_device_accepts() {
    let settings = Config::default().listen.mqtt;
    let up_to = |packet_bytes_max| ConnectRequest {
        packet_bytes_max,
        ..request(None, None)
    };
    let admit = |bytes| admit(&up_to(bytes), "", &settings, PEER, || "x".into());
    let (_, answer) = admit(usize::MAX).unwrap();
    let (client, same) = admit(answer.len()).unwrap();
    assert_eq!(
        (client.packet_bytes_max, same),
        (answer.len(), answer.clone())
    );
    let error = admit(answer.len() - 1).unwrap_err();
    assert_eq!(error, ConnectError::PacketSize);
    assert_eq!(&refuse(Some(&up_to(5)), error)[..], b"\x20\x03\x00\x83\x00");
    assert!(refuse(Some(&up_to(4)), error).is_empty());
}

#[test]
fn what_is_no_connect_is_told_by_its_first_bytes() {
    let v4 = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c";
    for cut in 0..v4.len() {
        assert_eq!(
            read_connect(&mut BytesMut::from(&v4[..cut])),
            Ok(None),
            "{cut}"
        );
    }
    let request = read_connect(&mut BytesMut::from(&v4[..])).unwrap().unwrap();
    assert_eq!(
        (
            request.version,
            request.client_id.as_str(),
            request.keep_alive
        ),
        (Version::V4, "c", 60)
    );
    let mut level_3 = *v4;
    level_3[8] = 3;
    for (bytes, error) in [
        (&b"GET / HTTP/1.1"[..], ConnectError::NotMqtt),
        (b"\x16\x03\x01\x02\x00", ConnectError::NotMqtt),
        (b"\x10\x0e\x00\x06MQIsdp\x03", ConnectError::Version),
        (&level_3, ConnectError::Version),
        (b"\x10\xff\xff\xff\xff", ConnectError::NotMqtt),
        (b"\x10\x0d\x00\x04MQTX", ConnectError::NotMqtt),
        (b"\x10\xff\xff\x7f\x00\x04MQTT\x05", ConnectError::NotMqtt),
    ] {
        assert_eq!(
            read_connect(&mut BytesMut::from(bytes)),
            Err(error),
            "{bytes:x?}"
        );
    }
    let v5 = self::request(None, None);
    assert_eq!(
        &refuse(None, ConnectError::Version)[..],
        b"\x20\x02\x00\x01"
    );
    assert_eq!(
        &refuse(Some(&v5), ConnectError::WrongCredentials)[..],
        b"\x20\x03\x00\x86\x00"
    );
}

/// A CONNECT of MQTT 5 with these properties, and with a will that has these.
fn connect_v5(properties: &[u8], will: Option<&[u8]>) -> Vec<u8> {
    let flags = if will.is_some() { 0x06 } else { 0x02 };
    let mut rest = vec![
        0,
        4,
        b'M',
        b'Q',
        b'T',
        b'T',
        5,
        flags,
        0,
        60,
        properties.len() as u8,
    ];
    rest.extend_from_slice(properties);
    rest.extend_from_slice(b"\x00\x01c");
    if let Some(will) = will {
        rest.push(will.len() as u8);
        rest.extend_from_slice(will);
        rest.extend_from_slice(b"\x00\x01w\x00\x01x");
    }
    [&[0x10, rest.len() as u8][..], &rest].concat()
}

#[test]
fn a_property_of_connect_or_will_that_may_occur_once_occurs_once() {
    let read =
        |bytes: &[u8]| read_connect(&mut BytesMut::from(bytes)).map(|request| request.is_some());
    // MQTT 5 §3.1.2.11, all but those of authentication; a user property may be repeated.
    let once: [&[u8]; 6] = [
        &[0x11, 0, 0, 0, 9],
        &[0x21, 0, 9],
        &[0x27, 0, 0, 1, 0],
        &[0x22, 0, 9],
        &[0x19, 1],
        &[0x17, 1],
    ];
    let user = b"\x26\x00\x01k\x00\x01v";
    let all = [&once.concat()[..], user, user].concat();
    assert_eq!(read(&connect_v5(&all, None)), Ok(true));
    // §3.1.3.2.
    let of_will: [&[u8]; 3] = [
        &[0x18, 0, 0, 0, 1],
        &[0x02, 0, 0, 0, 1],
        &[0x08, 0, 1, b'r'],
    ];
    assert_eq!(
        read(&connect_v5(
            &[],
            Some(&[&of_will.concat()[..], user, user].concat())
        )),
        Ok(true)
    );
    for property in once {
        let bytes = connect_v5(&property.repeat(2), None);
        assert_eq!(read(&bytes), Err(ConnectError::Properties), "{property:x?}");
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), Ok(false), "{property:x?} {cut}");
        }
    }
    for property in of_will {
        assert_eq!(
            read(&connect_v5(&[], Some(&property.repeat(2)))),
            Err(ConnectError::Properties)
        );
    }
    assert_eq!(
        read(&connect_v5(&[], Some(&[0x08, 0, 1, b'#']))),
        Err(ConnectError::Properties)
    );
    // A property that extends beyond the properties.
    let mut overrun = connect_v5(&[0x26, 0, 1, b'k', 0, 1, b'v'], None);
    overrun[12] -= 1;
    assert_eq!(read(&overrun), Err(ConnectError::NotMqtt));
    assert_eq!(
        &refuse(None, ConnectError::Properties)[..],
        b"\x20\x03\x00\x82\x00"
    );
}

/// rumqttc's codec asks for more bytes, and has consumed the packet.
#[test]
fn a_complete_packet_whose_parts_are_missing_is_no_connect() {
    for bytes in [
        // A will is announced, but there is none.
        &b"\x10\x0e\x00\x04MQTT\x05\x06\x00\x3c\x00\x00\x01x"[..],
        b"\x10\x0d\x00\x04MQTT\x04\x06\x00\x3c\x00\x01x",
        // A client id longer than the packet.
        b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x05x",
    ] {
        assert_eq!(
            read_connect(&mut BytesMut::from(bytes)),
            Err(ConnectError::NotMqtt),
            "{bytes:?}"
        );
    }
}
