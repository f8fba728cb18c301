//! Documents in texts: that every key of the language reaches into them, and their limits.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

use super::document::MEMBERS_MAX;
use super::tests::{PLAIN, listed, rejected, run};
use crate::RejectReason;

/// What EMQX's rule engine sends: the payload of the device is a text.
const EMQX: &str =
    r#"{"topic":"plant/x","timestamp":1709290000123,"clientid":"gw-1","payload":"PAYLOAD"}"#;

fn emqx(payload: &str) -> String {
    EMQX.replace("\"PAYLOAD\"", &text(payload))
}

/// A text in JSON.
fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Every way in which a cloud writes a document into a text.
fn written(document: &str) -> [String; 7] {
    [
        document.to_owned(),
        format!(" \n{document} "),
        format!("{document}\0\0"),
        STANDARD.encode(document),
        STANDARD_NO_PAD.encode(document),
        URL_SAFE.encode(document),
        URL_SAFE_NO_PAD.encode(document),
    ]
}

#[test]
fn id_and_time_are_found_inside_a_text() {
    let rule = "[formats.x]\nid = \"/payload/dev\"\ntime = \"/payload/ts\"\nvalues = \"/payload\"\n\
        exclude = [\"dev\", \"ts\"]\ntags = { gw = \"/clientid\", site = \"{/payload/at/site|upper}\" }\n";
    let document = r#"{"dev":"d7","ts":1709290000,"temp":21.5,"at":{"site":"n"},"n":"?>>?ÿÿ"}"#;
    for payload in written(document) {
        assert_eq!(
            listed(rule, None, &emqx(&payload)),
            [r#"d7@1709290000{at_site="n" n="?>>?ÿÿ" temp=21.5}[gw=gw-1 site=N]"#],
            "{payload}"
        );
    }
    // A document in a document in a text.
    let rule = "[formats.x]\nid = \"/payload/body/id\"\nvalues = { t = \"/payload/body/t/0\" }\n";
    let inner = format!(
        r#"{{"body":{}}}"#,
        text(&STANDARD.encode(r#"{"id":"d7","t":[21.5]}"#))
    );
    for payload in written(&inner) {
        assert_eq!(listed(rule, None, &emqx(&payload)), ["d7@now{t=21.5}"]);
    }
}

#[test]
fn each_enters_texts() {
    let documents = r#"[{"dev":"a","ts":1709290000,"t":1},{"dev":"b","t":2}]"#;
    let all = "[formats.x]\neach = [\"/payload/*\", \"/payload\"]\nid = \"/dev\"\ntime = [\"/ts\", \"$/payload/0/ts\"]\n\
        tags = { gw = \"$/clientid\" }\n";
    for payload in written(documents) {
        assert_eq!(
            listed(all, None, &emqx(&payload)),
            ["a@1709290000{t=1}[gw=gw-1]", "b@1709290000{t=2}[gw=gw-1]"],
            "{payload}"
        );
    }
    // A text that is one record.
    let one = "[formats.x]\neach = \"/payload\"\nid = \"/dev\"\ntime = \"/ts\"\n";
    for payload in written(r#"{"dev":"d7","ts":1709290000,"temp":21.5}"#) {
        assert_eq!(
            listed(one, None, &emqx(&payload)),
            ["d7@1709290000{temp=21.5}"]
        );
    }
    let keys = "[formats.x]\neach = \"/payload/{sensor_id}\"\n";
    let payload = r#"{"a":{"t":1},"b":{"t":2}}"#;
    assert_eq!(
        listed(keys, None, &emqx(payload)),
        ["a@now{t=1}", "b@now{t=2}"]
    );
    // Amazon Data Firehose: a list of texts, each a record, or each a list of records.
    let firehose = |data: &[&str]| {
        let records = data
            .iter()
            .map(|data| format!(r#"{{"data":"{}"}}"#, STANDARD.encode(data)));
        format!(
            r#"{{"requestId":"e","timestamp":1709290000123,"records":[{}]}}"#,
            records.collect::<Vec<_>>().join(",")
        )
    };
    let rule = "[formats.x]\neach = \"/records/*\"\nid = \"/data/id\"\nvalues = \"/data\"\n\
        time = { at = \"$/timestamp\", unit = \"ms\" }\nexclude = [\"id\"]\nwhere = [{ at = \"/data/skip\", there = false }]\n";
    let body = firehose(&[
        r#"{"id":"dev-1","temp":21.5}"#,
        r#"{"id":"dev-3","skip":1}"#,
        r#"{"id":"dev-2","temp":22.5}"#,
    ]);
    assert_eq!(
        listed(rule, None, &body),
        ["dev-1@1709290000{temp=21.5}", "dev-2@1709290000{temp=22.5}"]
    );
    let rule = "[formats.x]\neach = \"/records/*/data/*\"\nid = \"/id\"\n";
    let two = r#"[{"id":"a","t":1},{"id":"b","t":2}]"#;
    let (readings, rejects) = run(
        rule,
        None,
        firehose(&[two, "no JSON", r#"[{"id":"c","t":3}]"#]),
    );
    let ids: Vec<_> = readings.iter().map(|r| r.sensor_id.as_str()).collect();
    assert_eq!(
        (ids, rejects),
        (vec!["a", "b", "c"], vec![(2, RejectReason::NoValues)]),
        "what is not read is reported"
    );
}

#[test]
fn values_in_a_text_may_be_a_list() {
    let rule = "[formats.x]\nid = \"/clientid\"\nvalues = \"/payload\"\n";
    for payload in written(r#"[{"temp":21.5},{"temp":22}]"#) {
        assert_eq!(
            listed(rule, None, &emqx(&payload)),
            ["gw-1@now{[0]_temp=21.5 [1]_temp=22}"]
        );
    }
    // Google Pub/Sub.
    let rule = "[formats.x]\nid = \"/message/attributes/deviceId\"\ntime = \"/message/publishTime\"\nvalues = \"/message/data\"\n";
    let body = r#"{"message":{"data":"eyJ0ZW1wIjoyMS41LCJuIjoiPz4_PsO_w78ifQ","attributes":{"deviceId":"dev-1"},"publishTime":"2024-03-01T10:46:40.509Z"}}"#;
    assert_eq!(
        listed(rule, None, body),
        [r#"dev-1@1709290000{n="?>?>ÿÿ" temp=21.5}"#]
    );
}

#[test]
fn rules_and_tags_look_into_texts() {
    let rules = "[formats.x]\nid = \"/clientid\"\nvalues = \"/payload/v\"\nfield = \"/payload/name\"\n\
        tags = { \"*\" = \"/labels\" }\n\
        [[formats.x.rules]]\nwhen = [{ at = \"/payload/type\", is = [\"status\"] }]\nskip = true\n\
        [[formats.x.rules]]\nwhen = [{ at = \"/payload\", kind = \"text\" }]\n";
    let status = emqx(r#"{"type":"status"}"#);
    assert_eq!(listed(rules, None, &status), [""; 0]);
    let labels = emqx(r#"{"type":"data","v":1,"name":"t"}"#).replacen(
        '{',
        r#"{"labels":"{\"site\":\"n\"}","#,
        1,
    );
    assert_eq!(listed(rules, None, &labels), ["gw-1@now{t=1}[site=n]"]);
}

#[test]
fn other_texts_stay_texts() {
    let rule = "[formats.x]\nid = \"S\"\nvalues = \"/v\"\nfield = \"f\"\n";
    for word in [
        "W10",
        "e30",
        "W3s",
        "Wednesday",
        "[x]",
        "{x}",
        "e30=",
        "{\"a\":1",
        "W+",
        "Wz",
    ] {
        let payload = format!(r#"{{"v":{}}}"#, text(word));
        assert_eq!(
            listed(rule, None, &payload),
            [format!("S@now{{f={word:?}}}")]
        );
    }
    // A named value is what it is.
    let named = "[formats.x]\nid = \"S\"\nvalues = { raw = \"/v\" }\n";
    assert_eq!(
        listed(named, None, r#"{"v":"{\"a\":1}"}"#),
        [r#"S@now{raw="{\"a\":1}"}"#]
    );
    let inside = "[formats.x]\nid = \"/payload/dev\"\nvalues = { t = \"/timestamp\" }\n";
    for payload in ["21.5", "nothing", "", "eyJkZXYi", "{\"dev\":", "\"dev\""] {
        assert_eq!(
            rejected(inside, None, emqx(payload)),
            [(0, RejectReason::MissingSensorId)],
            "{payload}"
        );
    }
}

#[test]
fn a_duplicate_key_in_a_text_rejects_the_record_that_uses_it() {
    let rule =
        "[formats.x]\neach = \"/r/*\"\nid = \"/d/id\"\nvalues = \"/d\"\nexclude = [\"id\"]\n";
    let record = |document: &str| format!(r#"{{"d":{}}}"#, text(document));
    let payload = format!(
        r#"{{"r":[{},{},{}]}}"#,
        record(r#"{"id":"A","a":1}"#),
        record(r#"{"id":"B","a":1,"a":2}"#),
        record(r#"{"id":"C","a":1}"#)
    );
    let (readings, rejects) = run(rule, None, payload);
    let ids: Vec<_> = readings.iter().map(|r| r.sensor_id.as_str()).collect();
    assert_eq!(
        (ids, rejects),
        (vec!["A", "C"], vec![(1, RejectReason::DuplicateKey)])
    );
    for rule in [
        "[formats.x]\nid = \"/payload/id\"\nvalues = { t = \"/timestamp\" }\n",
        "[formats.x]\nid = \"S\"\neach = \"/payload/*\"\n",
        "[formats.x]\nid = \"S\"\nvalues = { t = \"/timestamp\" }\nwhere = [{ at = \"/payload/x\", there = true }]\n",
        "[formats.x]\nid = \"S\"\nvalues = { t = \"/timestamp\" }\nwhen = [{ at = \"/payload/x\", there = true }]\n",
    ] {
        let payload = emqx(r#"{"id":"A","a":{"b":1,"b":2}}"#);
        assert_eq!(
            rejected(rule, None, payload),
            [(0, RejectReason::DuplicateKey)],
            "{rule}"
        );
    }
}

#[test]
fn the_limits_of_documents_hold() {
    let rule = "[formats.x]\nid = \"/payload/id\"\nvalues = { t = \"/timestamp\" }\n";
    let deep = format!(
        r#"{{"id":"A","d":{}1{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    assert_eq!(
        rejected(rule, None, emqx(&deep)),
        [(0, RejectReason::MissingSensorId)]
    );
    let zeros = |n: usize| format!(r#"{{"id":"A","d":[{}0]}}"#, "0,".repeat(n));
    assert_eq!(
        rejected(rule, None, emqx(&zeros(MEMBERS_MAX))),
        [(0, RejectReason::TooManyFields)]
    );
    // Those of several records are not in memory together, those of one record and its message are.
    let each = "[formats.x]\neach = [\"/r/*\", \"/payload/*\"]\nid = \"/d/id\"\nvalues = { t = \"/t\" }\n\
        where = [{ at = \"/t\", there = true }]\n";
    let record = format!(r#"{{"t":1,"d":{}}}"#, text(&zeros(MEMBERS_MAX / 2)));
    let (readings, rejects) = run(
        each,
        None,
        format!(r#"{{"r":[{record},{record},{record}]}}"#),
    );
    assert_eq!((readings.len(), rejects), (3, vec![]));
    let both = format!("[{record},{}]", zeros(MEMBERS_MAX / 2));
    assert_eq!(
        rejected(each, None, emqx(&both)),
        [(0, RejectReason::TooManyFields)]
    );
    // A text is parsed once for all records, and one that is not JSON as well.
    let shared = "[formats.x]\neach = \"/r/*\"\nid = [\"$/bad/id\", \"$/payload/id\"]\n";
    let records = vec![r#"{"t":1}"#; 40].join(",");
    let payload = format!(
        r#"{{"bad":{},"payload":{},"r":[{records}]}}"#,
        text(&format!("[{}", "0,".repeat(100_000))),
        text(&zeros(MEMBERS_MAX / 2))
    );
    assert_eq!(run(shared, None, payload).0.len(), 40);
    // Documents in documents: as deep as the place, and no deeper.
    let mut nested = r#"{"id":"A"}"#.to_owned();
    for _ in 0..12 {
        nested = format!(r#"{{"p":"{}"}}"#, STANDARD.encode(nested));
    }
    let place = format!("{}/id", "/p".repeat(12));
    let rule = format!("[formats.x]\nid = \"{place}\"\nvalues = {{ t = \"/t\" }}\n");
    let payload = nested.replacen('{', r#"{"t":1,"#, 1);
    assert_eq!(listed(&rule, None, &payload), ["A@now{t=1}"]);
    let flat = PLAIN.replace("\"/v\"", "\"/p\"");
    let (readings, _) = run(&flat, None, nested.replacen('{', r#"{"id":"S","#, 1));
    assert!(readings[0].values.keys().eq(["p"]), "{readings:?}");
}
