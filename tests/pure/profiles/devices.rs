//! Profiles of devices and their bridges: Zigbee2MQTT, Tasmota, Shelly, Ruuvi, Victron.

use config::Config;

use super::{check, listed_with};

#[test]
fn zigbee2mqtt() {
    let state = r#"{"battery":87,"contact":true,"last_seen":"2024-03-01T11:59:00+01:00","power":null,"action":"single",
        "color":{"x":0.4,"y":0.5},"device":{"ieeeAddr":"0x1"}}"#;
    let whole = r#"attic/door@1709290740000{action="single" battery=87 color_x=0.4 color_y=0.5 contact=true}"#;
    let members = [
        "applicationVersion",
        "dateCode",
        "friendlyName",
        "hardwareVersion",
        "ieeeAddr",
        "manufacturerID",
        "manufacturerName",
        "model",
        "networkAddress",
        "powerSource",
        "softwareBuildID",
        "stackVersion",
        "type",
        "zclVersion",
    ];
    let device_information = format!(
        r#"{{"device":{{{}}},"device_temperature":31,"device_mode":2,"linkquality":90}}"#,
        members.map(|name| format!(r#""{name}":"x""#)).join(",")
    );
    check(
        "zigbee2mqtt",
        &[
            ("zigbee2mqtt/attic/door", state, &[whole]),
            // `device` is information about the device; names that begin like it are values.
            (
                "zigbee2mqtt/attic/door",
                &device_information,
                &["attic/door@now{device_mode=2 device_temperature=31 linkquality=90}"],
            ),
            (
                "zigbee2mqtt/lamp",
                r#"{"brightness":254,"last_seen":1709290700123}"#,
                &["lamp@1709290700123{brightness=254}"],
            ),
            (
                "zigbee2mqtt/lamp",
                r#"{"brightness":254,"last_seen":"N/A"}"#,
                &["lamp@now{brightness=254}"],
            ),
            (
                "zigbee2mqtt/lamp/brightness",
                "254",
                &["lamp@now{brightness=254}"],
            ),
            ("zigbee2mqtt/lamp/state", "ON", &[r#"lamp@now{state="ON"}"#]),
            ("zigbee2mqtt/lamp/power", "null", &[]),
            (
                "zigbee2mqtt/lamp/availability",
                r#"{"state":"online"}"#,
                &[],
            ),
            (
                "zigbee2mqtt/bridge/devices",
                r#"[{"ieee_address":"0x1","interview_completed":true}]"#,
                &[],
            ),
            ("zigbee2mqtt/attic/lamp/set", r#"{"state":"ON"}"#, &[]),
            (
                "homeassistant/sensor/0x1/config",
                r#"{"enabled_by_default":false}"#,
                &[],
            ),
            ("home/zigbee2mqtt/lamp", r#"{"brightness":1}"#, &["no_rule"]),
        ],
    );
}

#[test]
fn tasmota() {
    let sensor = r#"{"Time":"2024-03-01T10:00:00","AM2301":{"Temperature":21.5,"Humidity":null},"TempUnit":"C"}"#;
    let epoch = r#"{"Time":"2024-03-01T12:00:00","Epoch":1709290700,"ENERGY":{"TotalStartTime":"2023-01-01T00:00:00","Power":[5,7]}}"#;
    let bridge = r#"{"ZbReceived":{"0x4C20":{"Device":"0x4C20","Name":"Porch","Illuminance":25,"LinkQuality":70}}}"#;
    let status = r#"{"StatusSNS":{"Time":"1970-01-01T00:00:08","ANALOG":{"A0":12}}}"#;
    check(
        "tasmota",
        &[
            (
                "tele/attic/SENSOR",
                sensor,
                &["attic@now{AM2301_Temperature=21.5}[TempUnit=C]"],
            ),
            (
                "tele/house/attic/SENSOR",
                epoch,
                &["house/attic@1709290700000{ENERGY_Power[0]=5 ENERGY_Power[1]=7}"],
            ),
            (
                "attic/tele/SENSOR",
                r#"{"Time":"2024-03-01T11:00:00+01:00","SI":{"x":1}}"#,
                &["attic@1709287200000{SI_x=1}"],
            ),
            (
                "tele/bridge/SENSOR",
                bridge,
                &["0x4C20@now{Illuminance=25 LinkQuality=70}[gateway=bridge name=Porch]"],
            ),
            ("stat/attic/STATUS8", status, &["attic@now{ANALOG_A0=12}"]),
            ("stat/attic/POWER1", "ON", &[r#"attic@now{POWER1="ON"}"#]),
            ("stat/attic/RESULT", r#"{"POWER1":"ON"}"#, &[]),
            ("stat/attic/STATUS", r#"{"Status":{"Module":1}}"#, &[]),
            ("tele/attic/LWT", "Online", &[]),
            ("tele/attic/INFO1", r#"{"Info1":{"Version":"13.4"}}"#, &[]),
            (
                "tasmota/discovery/AABB/sensors",
                r#"{"sn":{"x":1},"ver":1}"#,
                &[],
            ),
            (
                "tele/attic/SENSOR",
                r#"{"Time":"2024-03-01T10:00:00","DHT":{"T":nan}}"#,
                &["not_finite"],
            ),
            (
                "tele/attic/SENSOR",
                r#"{"Time":"2024-03-01T10:00:00","DHT":{"T":2"#,
                &["invalid_json"],
            ),
        ],
    );
}

#[test]
fn two_local_times_of_a_repeated_hour_are_one_time() {
    let mut config = Config::default();
    config.limits.zone = Some("Europe/Berlin".parse().unwrap());
    let at = |time: &str, temperature: f64| {
        let payload = format!(
            r#"{{"Time":"2023-10-29T{time}:00","DS18B20":{{"Temperature":{temperature:?}}}}}"#
        );
        let found = listed_with(&config, "tasmota", "tele/attic/SENSOR", &payload);
        found.concat()
    };
    // The hour from 02:00 on, twice, and half an hour later.
    let all = [
        at("02:10", 21.5),
        at("02:40", 21.5),
        at("02:10", 21.5),
        at("02:40", 22.5),
        at("03:10", 21.5),
    ];
    assert_eq!(
        all,
        [
            "attic@1698538200000{DS18B20_Temperature=21.5}",
            "attic@1698540000000{DS18B20_Temperature=21.5}",
            "attic@1698538200000{DS18B20_Temperature=21.5}",
            "attic@1698540000000{DS18B20_Temperature=22.5}",
            "attic@1698545400000{DS18B20_Temperature=21.5}",
        ]
    );
}

#[test]
fn shelly_gen1() {
    let info = r#"{"unixtime":1709290700,"time":"10:58","mac":"A","has_update":false,"ram_free":5,"wifi_sta":{"rssi":-61,"ssid":"x"},
        "tmp":{"value":21.5,"units":"C","is_valid":true},"emeters":[{"power":5.5,"is_valid":true}],"relays":[{"ison":true}],"uptime":9}"#;
    check(
        "shelly-gen1",
        &[
            (
                "shellies/shellyem-1/emeter/1/power",
                "-12.25",
                &["shellyem-1@now{emeter_1_power=-12.25}"],
            ),
            (
                "shellies/shellyht-1/sensor/temperature",
                "21.5",
                &["shellyht-1@now{temperature=21.5}"],
            ),
            (
                "shellies/shelly1-1/relay/0",
                "on",
                &[r#"shelly1-1@now{relay_0="on"}"#],
            ),
            (
                "shellies/shelly1-1/input_event/0",
                r#"{"event":"S","event_cnt":3}"#,
                &[r#"shelly1-1@now{input_event_0_event="S" input_event_0_event_cnt=3}"#],
            ),
            (
                "shellies/shellyem-1/info",
                info,
                &[
                    r#"shellyem-1@1709290700000{emeters[0]_power=5.5 tmp_units="C" tmp_value=21.5 uptime=9 wifi_sta_rssi=-61}"#,
                ],
            ),
            ("shellies/shelly1-1/online", "true", &[]),
            ("shellies/announce", r#"{"id":"shelly1-1"}"#, &[]),
            ("shellies/shelly1-1/relay/0/command", "off", &[]),
        ],
    );
}

#[test]
fn shelly_gen2() {
    let notify = |method: &str, params: &str| {
        format!(r#"{{"src":"shellypro-1","dst":"x","method":"{method}","params":{params}}}"#)
    };
    let status = notify(
        "NotifyStatus",
        r#"{"ts":1709290700.25,"switch:0":{"id":0,"apower":5.5,"output":true,"aenergy":{"total":1.5,"by_minute":[1,2],"minute_ts":5}}}"#,
    );
    let early = notify(
        "NotifyStatus",
        r#"{"ts":2.5,"temperature:100":{"id":100,"tC":21.5}}"#,
    );
    let event = notify(
        "NotifyEvent",
        r#"{"ts":1709290700.25,"events":[{"component":"input:0","id":0,"event":"btn_down"}]}"#,
    );
    let empty = notify(
        "NotifyStatus",
        r#"{"ts":1709290700.25,"sys":{"cfg_rev":5},"cloud":{"connected":true}}"#,
    );
    let full = "shellypro-1@1709290700250{switch:0_aenergy_total=1.5 switch:0_apower=5.5 \
        switch:0_output=true}";
    check(
        "shelly-gen2",
        &[
            ("x/events/rpc", &status, &[full]),
            ("", &status, &[full]),
            (
                "x/events/rpc",
                &early,
                &["shellypro-1@now{temperature:100_tC=21.5}"],
            ),
            ("x/events/rpc", &event, &[]),
            ("x/events/rpc", &empty, &[]),
            (
                "x/rpc",
                r#"{"id":1,"src":"shellypro-1","result":{"id":0,"voltage":230.5}}"#,
                &["shellypro-1@now{voltage=230.5}"],
            ),
            (
                "house/plug/status/switch:0",
                r#"{"id":0,"source":"init","apower":5.5}"#,
                &["house/plug@now{switch:0_apower=5.5}"],
            ),
            ("house/plug/online", "true", &[]),
        ],
    );
}

#[test]
fn ruuvi_gateway() {
    let http = r#"{"data":{"gw_mac":"AA:01","timestamp":"1709290700","coordinates":"","tags":{
        "CC:01":{"rssi":-60,"timestamp":"1709290690","data":"0201","temperature":21.5},"CC:02":{"rssi":-70,"temperature":null}}}}"#;
    let mqtt = r#"{"gw_mac":"AA:01","rssi":-60,"aoa":[],"gwts":"1709290700","ts":"1709290699","data":"0201","humidity":40.5,"coords":""}"#;
    let station = r#"{"deviceId":"phone","time":"2024-03-01T10:59:00+0000","tags":[{"id":"CC:03","name":"Cellar","temperature":9.5,"updateAt":"2024-03-01T10:58:00+0000"}]}"#;
    check(
        "ruuvi-gateway",
        &[
            (
                "",
                http,
                &[
                    "CC:01@1709290690000{rssi=-60 temperature=21.5}[gw_mac=AA:01]",
                    "CC:02@1709290700000{rssi=-70}[gw_mac=AA:01]",
                ],
            ),
            (
                "ruuvi/AA:01/CC:01",
                mqtt,
                &["CC:01@1709290699000{humidity=40.5 rssi=-60}[gw_mac=AA:01]"],
            ),
            (
                "ruuvi/AA:01/CC:01",
                r#"{"gw_mac":"AA:01","rssi":-60,"ts":"1709290699","data":"0201"}"#,
                &[r#"CC:01@1709290699000{data="0201" rssi=-60}[gw_mac=AA:01]"#],
            ),
            ("ruuvi/AA:01/gw_status", r#"{"state":"online"}"#, &[]),
            (
                "",
                r#"{"DEVICE_ADDR":"AA:01","ESP_FW":"v1","UPTIME":"5"}"#,
                &[],
            ),
            (
                "",
                station,
                &["CC:03@1709290680000{temperature=9.5}[name=Cellar]"],
            ),
        ],
    );
}

#[test]
fn victron_venus() {
    check(
        "victron-venus",
        &[
            (
                "N/c061/system/0/Dc/Battery/Voltage",
                r#"{"value":52.25}"#,
                &[
                    "c061/system/0@now{Dc/Battery/Voltage=52.25}[instance=0 portal=c061 \
                     service=system]",
                ],
            ),
            (
                "N/c061/settings/0/Limit",
                r#"{"max":9,"min":0,"value":5}"#,
                &["c061/settings/0@now{Limit=5}[instance=0 portal=c061 service=settings]"],
            ),
            ("N/c061/battery/1/Soc", r#"{"value":null}"#, &[]),
            ("N/c061/battery/1/Soc", r#"{"value":[]}"#, &[]),
            ("N/c061/vebus/1/State", r#"{"value":""}"#, &[]),
            ("W/c061/vebus/1/Mode", r#"{"value":3}"#, &[]),
            ("R/c061/keepalive", "", &["empty_payload"]),
            (
                "N/c061/full_publish_completed",
                r#"{"value":1709290700}"#,
                &[],
            ),
        ],
    );
}
