//! Profiles of LoRaWAN network servers.

use super::{check, listed, listed_with};

#[test]
fn chirpstack_v4() {
    let info = r#""time":"2024-03-01T10:59:00.123456+00:00","deviceInfo":{"devEui":"0102030405060708","deviceName":"Yard","applicationName":"App","tags":{"site":"north"}}"#;
    let with = |rest: &str| format!("{{{info},{rest}}}");
    let up = with(r#""object":{"temp":21.5,"door":true},"rxInfo":[{"rssi":-90}]"#);
    let raw = with(r#""data":"AQI=","dr":3,"rxInfo":[{"rssi":-90,"snr":7.5}]"#);
    let status = with(r#""margin":9,"batteryLevel":88.5"#);
    let external = with(
        r#""margin":9,"externalPowerSource":true,"batteryLevelUnavailable":false,"batteryLevel":0"#,
    );
    let unmeasured = with(
        r#""margin":9,"externalPowerSource":false,"batteryLevelUnavailable":true,"batteryLevel":0"#,
    );
    let v3_event = |rest: &str| {
        format!(r#"{{"devEUI":"AQIDBAUGBwg=",{rest},"publishedAt":"2024-03-01T10:59:00.123456Z"}}"#)
    };
    let v3_unmeasured = v3_event(r#""margin":9,"batteryLevelUnavailable":true,"batteryLevel":0"#);
    let v3_location = v3_event(r#""location":{"latitude":52.5,"longitude":13.25}"#);
    let join = with(r#""devAddr":"01""#);
    let location = with(r#""location":{"latitude":52.5,"longitude":13.25}"#);
    let id = "0102030405060708@1709290740123";
    let tags = "[applicationName=App deviceName=Yard site=north]";
    let v3 = r#"{"applicationName":"App","deviceName":"Yard","devEUI":"AQIDBAUGBwg=","rxInfo":[{"time":"2024-03-01T10:59:00Z"}],"objectJSON":"{\"temp\":21.5}"}"#;
    let topic = "application/1/device/0102030405060708/event/up";
    check(
        "chirpstack-v4",
        &[
            (topic, &up, &[&format!("{id}{{door=true temp=21.5}}{tags}")]),
            ("", &up, &[&format!("{id}{{door=true temp=21.5}}{tags}")]),
            (
                topic,
                &raw,
                &[&format!(
                    r#"{id}{{data="AQI=" dr=3 rxInfo[0]_rssi=-90 rxInfo[0]_snr=7.5}}{tags}"#
                )],
            ),
            (
                "",
                &status,
                &[&format!("{id}{{batteryLevel=88.5 margin=9}}{tags}")],
            ),
            // No battery, or one that the device cannot measure.
            (
                "",
                &external,
                &[&format!("{id}{{externalPowerSource=true margin=9}}{tags}")],
            ),
            (
                "",
                &unmeasured,
                &[&format!("{id}{{externalPowerSource=false margin=9}}{tags}")],
            ),
            ("", &v3_unmeasured, &[&format!("{id}{{margin=9}}")]),
            (
                "",
                &v3_location,
                &[&format!(
                    "{id}{{location_latitude=52.5 location_longitude=13.25}}"
                )],
            ),
            (
                "",
                &location,
                &[&format!(
                    "{id}{{location_latitude=52.5 location_longitude=13.25}}{tags}"
                )],
            ),
            ("", &join, &[]),
            (
                "",
                &with(r#""integrationName":"loracloud","eventType":"x","object":{"temp":9}"#),
                &[],
            ),
            (
                "",
                v3,
                &["0102030405060708@1709290740000{temp=21.5}[applicationName=App deviceName=Yard]"],
            ),
            // A codec that has decoded nothing.
            (
                "",
                &with(r#""object":{},"data":"AQI=","rxInfo":[{"rssi":-90}]"#),
                &[&format!(r#"{id}{{data="AQI=" rxInfo[0]_rssi=-90}}{tags}"#)],
            ),
            (
                "",
                r#"{"devEUI":"AQIDBAUGBwg=","rxInfo":[{"time":"2024-03-01T10:59:00Z"}],"objectJSON":"{}","data":"AQI="}"#,
                &[r#"0102030405060708@1709290740000{data="AQI="}"#],
            ),
            (
                "",
                r#"{"devEUI":"AQIDBAUGBwg=","rxInfo":[{"time":"2024-03-01T10:59:00Z"}],"object":{},"data":"AQI="}"#,
                &[r#"0102030405060708@1709290740000{data="AQI="}"#],
            ),
            ("", r#"{"hello":1}"#, &["no_rule"]),
        ],
    );
}

#[test]
fn ttn_v3() {
    let ids = r#""end_device_ids":{"device_id":"yard-1","application_ids":{"application_id":"app"}},"received_at":"2024-03-01T10:59:02Z""#;
    let settings = r#""settings":{"time":"2024-03-01T10:59:00Z"}"#;
    let up = format!(
        r#"{{{ids},"uplink_message":{{"decoded_payload":{{"temp":21.5}},{settings},"version_ids":{{"brand_id":"acme"}}}}}}"#
    );
    let raw = format!(
        r#"{{"result":{{{ids},"uplink_message":{{"frm_payload":"AQI=","rx_metadata":[{{"rssi":-90,"snr":7}}]}}}}}}"#
    );
    let normalized = format!(
        r#"{{{ids},"uplink_normalized":{{"normalized_payload":{{"air":{{"temperature":21.5}}}},{settings}}}}}"#
    );
    let location = format!(r#"{{{ids},"location_solved":{{"location":{{"latitude":52.5}}}}}}"#);
    let join = format!(r#"{{{ids},"join_accept":{{"session_key_id":"x"}}}}"#);
    check(
        "ttn-v3",
        &[
            (
                "v3/app@ttn/devices/yard-1/up",
                &up,
                &["yard-1@1709290740000{temp=21.5}[application_id=app brand_id=acme]"],
            ),
            (
                "",
                &format!("{raw}\n\n{raw}"),
                &[r#"yard-1@1709290742000{frm_payload="AQI=" rssi=-90 snr=7}[application_id=app]"#;
                    2],
            ),
            (
                "",
                &normalized,
                &["yard-1@1709290740000{air_temperature=21.5}[application_id=app]"],
            ),
            (
                "",
                &location,
                &["yard-1@1709290742000{latitude=52.5}[application_id=app]"],
            ),
            ("v3/app@ttn/devices/yard-1/join", &join, &[]),
            (
                "",
                r#"{"end_device_ids":{"device_id":"y"},"uplink_message":{"decoded_payload":{"t":1},"rx_metadata":[{"time":"2024-03-01T10:58:00Z"}],"received_at":"2024-03-01T10:59:02Z"}}"#,
                &["y@1709290680000{t=1}"],
            ),
            (
                "",
                r#"{"end_device_ids":{"device_id":"y"},"uplink_message":{"decoded_payload":{"t":1}},"received_at":"yesterday"}"#,
                &["y@now{t=1}"],
            ),
            // A formatter that has decoded nothing, and one whose first value is null.
            (
                "",
                &format!(
                    r#"{{{ids},"uplink_message":{{"decoded_payload":{{}},"frm_payload":"AQI=","rx_metadata":[{{"rssi":-90}}]}}}}"#
                ),
                &[r#"yard-1@1709290742000{frm_payload="AQI=" rssi=-90}[application_id=app]"#],
            ),
            (
                "",
                &format!(r#"{{{ids},"uplink_message":{{"decoded_payload":{{"a":null,"t":1}}}}}}"#),
                &["yard-1@1709290742000{t=1}[application_id=app]"],
            ),
        ],
    );
}

#[test]
fn loriot() {
    let head = r#""EUI":"0102030405060708","ts":1709290740000,"fcnt":7,"port":2"#;
    let message = |cmd: &str, rest: &str| format!(r#"{{"cmd":"{cmd}",{head},{rest}}}"#);
    check(
        "loriot",
        &[
            (
                "",
                &message(
                    "rx",
                    r#""rssi":-90,"snr":7.5,"bat":255,"freq":868500000,"data":"0102""#,
                ),
                &[r#"0102030405060708@1709290740000{data="0102" fcnt=7 port=2 rssi=-90 snr=7.5}"#],
            ),
            (
                "",
                &message(
                    "gw",
                    r#""decoded":{"status":"ok","data":{"temp":21.5}},"gws":[{"rssi":-90}]"#,
                ),
                &["0102030405060708@1709290740000{temp=21.5}"],
            ),
            (
                "",
                &message(
                    "gw",
                    r#""decoded":{"status":"ok","data":{}},"gws":[{"rssi":-90}],"data":"0102""#,
                ),
                &[r#"0102030405060708@1709290740000{data="0102" fcnt=7 gws[0]_rssi=-90 port=2}"#],
            ),
            (
                "",
                r#"{"cmd":"txd","EUI":"0102030405060708","seqdn":1}"#,
                &[],
            ),
            ("", r#"{"hello":1}"#, &["no_rule"]),
        ],
    );
}

#[test]
fn actility() {
    let head = r#""Time":"2024-03-01T11:59:00.000+01:00","DevEUI":"0102030405060708","FPort":"2","FCntUp":"7""#;
    let uplink = |rest: &str| format!(r#"{{"DevEUI_uplink":{{{head},{rest}}}}}"#);
    let location = r#"{"DevEUI_location":{"DevEUI":"0102030405060708","DevLAT":"52.5","DevLON":"13.25","DevLocTime":"2024-03-01T10:59:00Z"}}"#;
    check(
        "actility",
        &[
            (
                "",
                &uplink(
                    r#""payload_hex":"0102","LrrRSSI":"-90.000000","LrrSNR":"7.5","SpFact":"7""#,
                ),
                &[
                    r#"0102030405060708@1709290740000{fCntUp=7 fPort=2 payload_hex="0102" rssi=-90.0 snr=7.5}"#,
                ],
            ),
            // Newer servers send numbers as numbers, as in the message that Actility's guide for
            // Semtech's modem captured.
            (
                "",
                &uplink(
                    r#""payload_hex":"01","LrrRSSI":-59.000000,"Lrrs":{"Lrr":[{"LrrRSSI":-59.0}]},"Late":0"#,
                ),
                &[
                    r#"0102030405060708@1709290740000{fCntUp=7 fPort=2 payload_hex="01" rssi=-59.0}"#,
                ],
            ),
            (
                "",
                &uplink(r#""payload":{"temp":21.5},"LrrRSSI":"-90""#),
                &["0102030405060708@1709290740000{temp=21.5}"],
            ),
            (
                "",
                &uplink(r#""payload":{},"payload_hex":"0102""#),
                &[r#"0102030405060708@1709290740000{fCntUp=7 fPort=2 payload_hex="0102"}"#],
            ),
            (
                "",
                location,
                &["0102030405060708@1709290740000{latitude=52.5 longitude=13.25}"],
            ),
            (
                "",
                r#"{"DevEUI_downlink_Sent":{"DevEUI":"0102030405060708","Time":"x"}}"#,
                &[],
            ),
            ("", r#"{"hello":1}"#, &["no_rule"]),
        ],
    );
}

/// The commented line in a LoRaWAN profile, as a user would enable it.
#[test]
fn the_radio_beside_decoded_values_is_a_line_to_uncomment() {
    for (name, payload, expected) in [
        (
            "chirpstack-v4",
            r#"{"time":"2024-03-01T10:59:00Z","deviceInfo":{"devEui":"01"},"object":{"temp":21.5},"rxInfo":[{"rssi":-90,"snr":7.5}]}"#,
            "01@1709290740000{rssi=-90 snr=7.5 temp=21.5}",
        ),
        (
            "ttn-v3",
            r#"{"end_device_ids":{"device_id":"y"},"uplink_message":{"decoded_payload":{"t":1},"settings":{"time":"2024-03-01T10:59:00Z"},"rx_metadata":[{"rssi":-90}],"last_battery_percentage":{"value":88.5}}}"#,
            "y@1709290740000{battery=88.5 rssi=-90 t=1}",
        ),
    ] {
        let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join(format!("config/profiles/{name}.toml"));
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.matches("\n# also = ").count(), 1, "{name}");
        let place = tempfile::tempdir().unwrap();
        let copy = place.path().join("hourbucket.toml");
        std::fs::write(&copy, text.replace("\n# also = ", "\nalso = ")).unwrap();
        let config = config::load(Some(&copy), std::iter::empty())
            .unwrap_or_else(|e| panic!("{e}"))
            .config;
        assert_eq!(listed_with(&config, name, "", payload), [expected]);
        assert!(listed(name, "", payload)[0].matches('=').count() < expected.matches('=').count());
    }
}
