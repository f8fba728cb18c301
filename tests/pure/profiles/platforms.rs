//! Profiles of platforms and collectors: Home Assistant, AWS, Azure, ThingsBoard, Telegraf.

use super::check;

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
            // The time of a reported object is at its members.
            (
                "$aws/things/attic/shadow/update/accepted",
                r#"{"state":{"reported":{"fan":{"on":true}}},"metadata":{"reported":{"fan":{"on":{"timestamp":1709290690}}}},"timestamp":1709290700}"#,
                &["attic@1709290690000{fan_on=true}"],
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
    let central = |source: &str, rest: &str| {
        format!(
            r#"{{"applicationId":"1dffa667","messageSource":"{source}","deviceId":"attic","schema":"default@v1","templateId":"urn:q:1","enqueuedTime":"2024-03-01T10:59:00Z",{rest},"enrichments":{{"site":"north"}},"messageProperties":{{"p":"v"}}}}"#
        )
    };
    check(
        "azure-iot",
        &[
            ("", &grid, &["attic@1709290740000{temp=21.5}[site=north]"]),
            ("", &packed, &["attic@1709290740000{temp=21.5}"]),
            ("", export, &["attic@1709290740000{temp=21.5}"]),
            (
                "",
                &central(
                    "telemetry",
                    r#""telemetry":{"temp":21.5,"wind":{"speed":5}}"#,
                ),
                &["attic@1709290740000{temp=21.5 wind_speed=5}"],
            ),
            (
                "",
                &central(
                    "properties",
                    r#""properties":[{"name":"temp","value":21.5}]"#,
                ),
                &[],
            ),
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
