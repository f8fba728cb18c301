//! The shipped profiles, each with messages of its vendor: which values are stored, skipped and
//! rejected.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

use std::time::Duration;

use hourbucket::config::Config;
use hourbucket::decode::{Context, Formats, Rejects};
use hourbucket::model::{BatchBuilder, Reading, Value};

/// 2024-03-01T11:00:00Z
const NOW_MS: i64 = 1_709_290_800_000;

/// Each reading as `id@time{name=value ...}[tag=text ...]`, with the time in milliseconds or `now`
/// for the time of receipt; then each reject by its reason.
fn listed(profile: &str, topic: &str, payload: &str) -> Vec<String> {
    listed_with(&Config::default(), profile, topic, payload)
}

fn listed_with(config: &Config, profile: &str, topic: &str, payload: &str) -> Vec<String> {
    let mut config = config.clone();
    config.limits.past = Duration::from_secs(20 * 365 * 86_400);
    let decoding = config.decoding();
    // Only the token of ThingsBoard's devices is known.
    let sensor_id = (profile == "thingsboard-telemetry" && topic.is_empty()).then_some("token-7");
    let cx = Context {
        sensor_id,
        ..Context::of(&decoding, NOW_MS)
    };
    let mut out = BatchBuilder::new(config.limits.fields_max);
    let mut rejects = Rejects::new();
    let decoder = Formats::new(&config.decoding()).get(profile).unwrap();
    decoder.decode(
        payload.as_bytes(),
        Some(topic).filter(|t| !t.is_empty()),
        &cx,
        &mut out,
        &mut rejects,
    );
    let readings = out.finish().to_readings();
    readings
        .iter()
        .map(show)
        .chain(rejects.list().iter().map(|r| r.reason.to_string()))
        .collect()
}

fn show(reading: &Reading) -> String {
    let values = reading.values.iter().map(|(name, value)| match value {
        Value::Double(v) => format!("{name}={v:?}"),
        Value::Int(v) => format!("{name}={v}"),
        Value::Bool(v) => format!("{name}={v}"),
        Value::Str(v) => format!("{name}={v:?}"),
    });
    let tags: Vec<String> = reading
        .tags
        .iter()
        .map(|(name, text)| format!("{name}={text}"))
        .collect();
    let time = if reading.receipt_time {
        "now".to_owned()
    } else {
        reading.ts_ms.to_string()
    };
    let tags = if tags.is_empty() {
        String::new()
    } else {
        format!("[{}]", tags.join(" "))
    };
    format!(
        "{}@{time}{{{}}}{tags}",
        reading.sensor_id,
        values.collect::<Vec<_>>().join(" ")
    )
}

/// Topic, payload and expected lines; an empty topic is none.
fn check(profile: &str, cases: &[(&str, &str, &[&str])]) {
    for (topic, payload, expected) in cases {
        assert_eq!(
            listed(profile, topic, payload),
            *expected,
            "{profile} {topic} {payload}"
        );
    }
}

#[test]
fn zigbee2mqtt() {
    let state = r#"{"battery":87,"contact":true,"last_seen":"2024-03-01T11:59:00+01:00","power":null,"action":"single",
        "color":{"x":0.4,"y":0.5},"device":{"ieeeAddr":"0x1"}}"#;
    let whole = r#"attic/door@1709290740000{action="single" battery=87 color_x=0.4 color_y=0.5 contact=true}"#;
    check(
        "zigbee2mqtt",
        &[
            ("zigbee2mqtt/attic/door", state, &[whole]),
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
fn chirpstack_v4() {
    let info = r#""time":"2024-03-01T10:59:00.123456+00:00","deviceInfo":{"devEui":"0102030405060708","deviceName":"Yard","applicationName":"App","tags":{"site":"north"}}"#;
    let with = |rest: &str| format!("{{{info},{rest}}}");
    let up = with(r#""object":{"temp":21.5,"door":true},"rxInfo":[{"rssi":-90}]"#);
    let raw = with(r#""data":"AQI=","dr":3,"rxInfo":[{"rssi":-90,"snr":7.5}]"#);
    let status = with(r#""margin":9,"batteryLevel":88.5"#);
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

#[test]
fn home_assistant_statestream() {
    let tags = "[domain=sensor object=porch]";
    check(
        "home-assistant-statestream",
        &[
            (
                "homeassistant/sensor/porch/state",
                "-3.5",
                &[&format!("sensor.porch@now{{state=-3.5}}{tags}")],
            ),
            ("homeassistant/sensor/porch/state", "unavailable", &[]),
            (
                "homeassistant/sensor/porch/state",
                "rising",
                &[&format!(r#"sensor.porch@now{{state="rising"}}{tags}"#)],
            ),
            (
                "homeassistant/sensor/porch/battery",
                "87",
                &[&format!("sensor.porch@now{{battery=87}}{tags}")],
            ),
            ("homeassistant/sensor/porch/friendly_name", "\"Porch\"", &[]),
            ("homeassistant/sensor/porch/options", "[\"a\"]", &[]),
            (
                "homeassistant/light/porch/rgb_color",
                "[255,120,0]",
                &["light.porch@now{rgb_color[0]=255 rgb_color[1]=120 \
                     rgb_color[2]=0}[domain=light object=porch]"],
            ),
            ("homeassistant/light/porch/rgb_color", "null", &[]),
            (
                "homeassistant/sensor/porch/last_changed",
                "2024-03-01T10:59:00+00:00",
                &[],
            ),
            ("homeassistant/sensor/x/y/config", r#"{"a":1}"#, &[]),
        ],
    );
}

#[test]
fn aws_iot() {
    let accepted = r#"{"state":{"reported":{"temp":21.5,"fan":{"on":true}}},"metadata":{"reported":{"temp":{"timestamp":1709290690}}},"version":5,"timestamp":1709290700}"#;
    check(
        "aws-iot",
        &[
            (
                "$aws/things/attic/shadow/update/accepted",
                accepted,
                &["attic@1709290690000{fan_on=true temp=21.5}"],
            ),
            (
                "$aws/things/attic/shadow/name/climate/update/accepted",
                accepted,
                &["attic@1709290690000{fan_on=true temp=21.5}[shadow=climate]"],
            ),
            (
                "$aws/things/attic/shadow/update/delta",
                r#"{"state":{"fan":{"on":false}},"version":5}"#,
                &[],
            ),
            (
                "$aws/things/attic/shadow/update",
                r#"{"state":{"desired":{"fan":1}}}"#,
                &[],
            ),
            (
                "device/attic/data",
                r#"{"temp":21.5,"wind":{"speed":5}}"#,
                &["attic@now{temp=21.5 wind_speed=5}"],
            ),
            (
                "",
                r#"{"thingName":"attic","timestamp":1709290700123,"temp":21.5}"#,
                &["attic@1709290700123{temp=21.5}"],
            ),
            ("", r#"{"temp":21.5}"#, &["missing_sensor_id"]),
        ],
    );
}

#[test]
fn azure_iot() {
    let system = r#""systemProperties":{"iothub-connection-device-id":"attic","iothub-enqueuedtime":"2024-03-01T10:59:00Z"}"#;
    let grid = format!(
        r#"[{{"eventType":"Microsoft.Devices.DeviceTelemetry","data":{{"body":{{"temp":21.5}},"properties":{{"site":"north"}},{system}}}}}]"#
    );
    // {"temp":21.5}
    let packed =
        format!(r#"{{"data":{{"body":"eyJ0ZW1wIjoyMS41fQ==","properties":{{}},{system}}}}}"#);
    let export = r#"{"body":{"temp":21.5},"annotations":{"iothub-connection-device-id":"attic","iothub-enqueuedtime":1709290740000}}"#;
    check(
        "azure-iot",
        &[
            ("", &grid, &["attic@1709290740000{temp=21.5}[site=north]"]),
            ("", &packed, &["attic@1709290740000{temp=21.5}"]),
            ("", export, &["attic@1709290740000{temp=21.5}"]),
            (
                "",
                r#"{"event":{"origin":"attic","payload":"{\"temp\":21.5}"}}"#,
                &["attic@now{temp=21.5}"],
            ),
            (
                "",
                r#"[{"eventType":"Microsoft.Devices.DeviceConnected","data":{"deviceId":"attic"}}]"#,
                &[],
            ),
            (
                "devices/attic/messages/events/",
                r#"{"temp":21.5}"#,
                &["attic@now{temp=21.5}[device=attic]"],
            ),
        ],
    );
}

#[test]
fn thingsboard_telemetry() {
    check(
        "thingsboard-telemetry",
        &[
            (
                "",
                r#"{"temp":21.5,"mode":"auto"}"#,
                &[r#"token-7@now{mode="auto" temp=21.5}"#],
            ),
            (
                "",
                r#"[{"ts":1709290700000,"values":{"temp":21.5}},{"temp":22}]"#,
                &["token-7@1709290700000{temp=21.5}", "token-7@now{temp=22}"],
            ),
            (
                "v1/gateway/telemetry",
                r#"{"Pump A":[{"ts":1709290700000,"values":{"rpm":5}}],"Pump B":[{"rpm":6},{"rpm":7}]}"#,
                &[
                    "Pump A@1709290700000{rpm=5}",
                    "Pump B@now{rpm=6}",
                    "Pump B@now{rpm=7}",
                ],
            ),
            ("v1/gateway/connect", r#"{"device":"Pump A"}"#, &[]),
            (
                "v1/devices/me/telemetry",
                r#"{"temp":21.5}"#,
                &["missing_sensor_id"],
            ),
            ("", "{temp:21.5}", &["invalid_json"]),
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

#[test]
fn telegraf_json() {
    let cpu = r#"{"fields":{"usage_idle":97.5},"name":"cpu","tags":{"cpu":"cpu0","host":"edge"},"timestamp":1709290740}"#;
    let mem = r#"{"fields":{"free":5,"ok":true},"name":"mem","tags":{"host":"edge"},"timestamp":1709290740123}"#;
    let of_cpu = "edge/cpu/cpu0@1709290740000{usage_idle=97.5}[cpu=cpu0 host=edge measurement=cpu]";
    let of_mem = "edge/mem@1709290740123{free=5 ok=true}[host=edge measurement=mem]";
    check(
        "telegraf-json",
        &[
            ("telegraf/edge/cpu", cpu, &[of_cpu]),
            (
                "",
                &format!(r#"{{"metrics":[{cpu},{mem}]}}"#),
                &[of_cpu, of_mem],
            ),
            ("", &format!("{cpu}\n{mem}\n"), &[of_cpu, of_mem]),
            (
                "",
                r#"{"fields":{"v":1},"name":"m","tags":{"sensor_id":"S1"},"timestamp":1709290740}"#,
                &["S1@1709290740000{v=1}[measurement=m sensor_id=S1]"],
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
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("config/profiles/{name}.toml"));
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.matches("\n# also = ").count(), 1, "{name}");
        let place = tempfile::tempdir().unwrap();
        let copy = place.path().join("hourbucket.toml");
        std::fs::write(&copy, text.replace("\n# also = ", "\nalso = ")).unwrap();
        let config = hourbucket::config::load(Some(&copy), std::iter::empty())
            .unwrap_or_else(|e| panic!("{e}"))
            .config;
        assert_eq!(listed_with(&config, name, "", payload), [expected]);
        assert!(listed(name, "", payload)[0].matches('=').count() < expected.matches('=').count());
    }
}
