//! Pairs `name=value` as a JSON object: the query of a `GET`, and a body with the Content-Type
//! `application/x-www-form-urlencoded`. Weather stations and trackers send such bodies. Pure.
//!
//! Each pair is a member, and its value is read like a bare value of the format `scalar`. Names and
//! values are percent-decoded, and `+` is a space; bytes that are not UTF-8 become U+FFFD. A name
//! that occurs twice is a duplicate key, as in any other object. Pairs that hold a secret
//! ([`is_secret`]) are left out, so that no format can store them.
//!
//! `curl -d` and many libraries send this Content-Type with every body. So a body that does not
//! look like pairs is left to its format.

use form_urlencoded::parse;

use decode::{Decoder, bare_value_as_json, unpadded};

/// Most pairs in one query or body, as many as keys in a reading of the native format.
const PAIRS_MAX: usize = 512;

/// The detail of a query or body with more.
pub(super) const TOO_MANY: &str = "more than 512 pairs name=value; send several requests";

/// The detail of [`Shape::Neither`].
pub(super) const NEITHER: &str = "neither JSON nor up to 1 MiB of pairs name=value; the Content-Type is \
    application/x-www-form-urlencoded, which curl sends unless -H 'Content-Type: ...' names another";

/// A longer body is not read as a form; its object may be six times larger.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The parameters of a hook's URL, which are not values.
const PARAMETERS: [&str; 5] = ["token", "sensor_id", "field", "topic", "ts_unit"];

/// Endings of names whose values are secrets, in lower case and without separators.
const SECRETS: [&str; 17] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "passkey",
    "pwd",
    "token",
    "secret",
    "credential",
    "credentials",
    "authorization",
    "auth",
    "jwt",
    "apikey",
    "accesskey",
    "authkey",
    "writekey",
];

/// The same, if they are a word of their own: a compass and a monkey are not secret.
const SECRET_WORDS: [&str; 2] = ["key", "pass"];

/// Whether the value of this name is a secret, however it is written: `PASSWORD`, `api_key`,
/// `X-Auth-Token`, `siteAuthenticationKey`.
fn is_secret(name: &str) -> bool {
    let word = name
        .rsplit(|c: char| !c.is_alphanumeric())
        .find(|word| !word.is_empty())
        .unwrap_or_default();
    let from = word
        .as_bytes()
        .windows(2)
        .rposition(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
    let word = &word[from.map_or(0, |at| at + 1)..];
    let plain: String = name.chars().filter(|c| c.is_alphanumeric()).collect();
    let plain = plain.to_lowercase();
    SECRETS.iter().any(|secret| plain.ends_with(secret))
        || SECRET_WORDS
            .iter()
            .any(|secret| word.eq_ignore_ascii_case(secret))
}

/// How a request's pairs are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// They are the query of the URL, which always is pairs.
    is_query: bool,
    /// The format is the native one: the sensor id is a text, and `id` is the sensor of readings
    /// that are not given any other.
    is_native: bool,
}

/// What a body is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Object(Object),
    /// Neither pairs nor JSON, which is all that the format reads.
    Neither,
    /// What the format reads, as it is.
    Other,
}

/// The pairs as a JSON object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) json: Vec<u8>,
    /// Names of the pairs that hold a secret, and are not in the object.
    pub(super) secrets: Vec<String>,
    /// There are more than [`PAIRS_MAX`] pairs; the object has the first ones.
    pub(super) is_cut: bool,
}

impl Form {
    /// For the query of a `GET` that this decoder reads.
    pub(super) fn of_query(decoder: &Decoder) -> Form {
        Form {
            is_query: true,
            is_native: decoder.built_in().is_some(),
        }
    }

    /// For a body with the Content-Type of a form; `None` if the format does not read objects.
    pub(super) fn of_body(decoder: &Decoder) -> Option<Form> {
        decoder.reads_objects().then(|| Form {
            is_query: false,
            is_native: decoder.built_in().is_some(),
        })
    }

    /// Reads a body, or a query. `knows_sensor`: the URL names the sensor of readings that name
    /// none.
    pub(super) fn read_shape(self, body: &[u8], knows_sensor: bool) -> Shape {
        let text = if self.is_query {
            body
        } else {
            unpadded(body).trim_ascii_start()
        };
        if self.is_query || is_pairs(text) {
            return Shape::Object(self.object(text, knows_sensor));
        }
        match text.first() {
            Some(b'{' | b'[') | None => Shape::Other,
            Some(_) if self.is_native => Shape::Neither,
            Some(_) => Shape::Other,
        }
    }

    fn object(self, pairs: &[u8], knows_sensor: bool) -> Object {
        let is_sensor = |name: &str| self.is_native && !self.is_query && name == "sensor_id";
        let knows_sensor = knows_sensor || parse(pairs).any(|(name, _)| is_sensor(&name));
        let mut object = Object::default();
        let mut members: Vec<u8> = vec![b'{'];
        let mut pairs = parse(pairs);
        for (name, value) in pairs.by_ref().take(PAIRS_MAX) {
            if self.is_query && PARAMETERS.contains(&&*name) {
                continue;
            }
            if is_secret(&name) {
                object.secrets.push(name.into_owned());
                continue;
            }
            let is_id = self.is_native && name == "id";
            if is_id && knows_sensor {
                continue;
            }
            let name = if is_id { "sensor_id" } else { &*name };
            if members.len() > 1 {
                members.push(b',');
            }
            members.extend(text(name).bytes());
            members.push(b':');
            let value = if is_id || is_sensor(name) {
                text(&value)
            } else {
                bare_value_as_json(&value)
            };
            members.extend(value.bytes());
        }
        members.push(b'}');
        object.is_cut = pairs.next().is_some();
        object.json = members;
        object
    }
}

/// A text in JSON.
fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Whether a query has a pair that is not a parameter of the hook.
pub(super) fn has_values(query: &[u8]) -> bool {
    parse(query).any(|(name, _)| !PARAMETERS.contains(&&*name))
}

/// Whether a body looks like pairs. No JSON, line of line protocol or binary data has such a first
/// name.
fn is_pairs(body: &[u8]) -> bool {
    let end = body.iter().position(|b| matches!(b, b'=' | b'&'));
    let is_of_name = |b: &u8| *b > b' ' && !matches!(b, b'{' | b'[' | b'<' | b'"' | b',' | 0x7f);
    body.len() <= BODY_BYTES_MAX
        && body.contains(&b'=')
        && end.is_some_and(|end| body[..end].iter().all(is_of_name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NATIVE: Form = Form {
        is_query: false,
        is_native: true,
    };
    const MAPPED: Form = Form {
        is_query: false,
        is_native: false,
    };
    const QUERY: Form = Form {
        is_query: true,
        is_native: true,
    };

    fn object(form: Form, body: &str, knows_sensor: bool) -> (String, Vec<String>) {
        match form.read_shape(body.as_bytes(), knows_sensor) {
            Shape::Object(Object {
                json,
                secrets,
                is_cut: false,
            }) => (String::from_utf8(json).unwrap(), secrets),
            other => panic!("{other:?}"),
        }
    }

    fn json(form: Form, body: &str) -> String {
        object(form, body, false).0
    }

    #[test]
    fn a_value_is_what_it_looks_like() {
        let values = "hum=53&temp=-2.50&on=true&name=a%22b&x=&n=NaN&zip=01234";
        let object =
            r#"{"hum":53,"temp":-2.5,"on":true,"name":"a\"b","x":null,"n":null,"zip":"01234"}"#;
        for form in [NATIVE, MAPPED, QUERY] {
            assert_eq!(json(form, values), object);
        }
        assert_eq!(
            json(
                QUERY,
                "a=unavailable&b=%20&c=.5&d=%2B7&e=1e400&f=-inf&g=21,5&h=0"
            ),
            r#"{"a":null,"b":null,"c":0.5,"d":7,"e":1e400,"f":-inf,"g":"21,5","h":0}"#
        );
        assert_eq!(
            json(NATIVE, "a+b=c+d%2be&%c3%bc=%ff&t=1&t=2&&c\0\0\r\n"),
            "{\"a b\":\"c d+e\",\"\u{fc}\":\"\u{fffd}\",\"t\":1,\"t\":2,\"c\":null}"
        );
    }

    #[test]
    fn the_native_format_gets_its_sensor_as_a_text() {
        assert_eq!(json(NATIVE, "id=0123&t=1"), r#"{"sensor_id":"0123","t":1}"#);
        assert_eq!(
            json(NATIVE, "id=7&t=1&sensor_id=12"),
            r#"{"t":1,"sensor_id":"12"}"#
        );
        assert_eq!(object(NATIVE, "id=7&t=1", true).0, r#"{"t":1}"#);
        assert_eq!(json(MAPPED, "id=7&t=1"), r#"{"id":7,"t":1}"#);
        // Of a hook's URL they are parameters.
        assert_eq!(
            object(QUERY, "id=7&t=1&token=a.b&sensor_id=S&topic=x", true),
            (r#"{"t":1}"#.to_owned(), vec![])
        );
    }

    #[test]
    fn secrets_are_left_out_and_named() {
        let names = [
            "PASSWORD",
            "PASSKEY",
            "passwd",
            "pwd",
            "token",
            "key",
            "Key",
            "api_key",
            "apikey",
            "X-Api-Key",
            "secret",
            "client_secret",
            "access_token",
            "accessToken",
            "wifiPassword",
            "siteAuthenticationKey",
            "AUTH",
            "pass",
            "wu.pass",
            "key[]",
            "p%61ss",
        ];
        let pairs = names.map(|name| format!("{name}=hunter2&")).concat();
        for form in [NATIVE, MAPPED] {
            let (json, secrets) = object(form, &format!("{pairs}t=1"), false);
            assert_eq!((json.as_str(), secrets.len()), (r#"{"t":1}"#, names.len()));
        }
        let (json, secrets) = object(QUERY, "PASSWORD=hunter2&token=a.b&t=1", false);
        assert_eq!(
            (json.as_str(), secrets),
            (r#"{"t":1}"#, vec!["PASSWORD".to_owned()])
        );
        for name in [
            "compass",
            "monkey",
            "bypass",
            "keypad",
            "tokens",
            "authored",
            "key_count",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn a_body_that_is_not_pairs_is_left_to_its_format() {
        for body in [
            r#"{"sensor_id":"S","t":"a=b"}"#,
            r#" [{"sensor_id":"S","t":"a=b"}]"#,
            "",
        ] {
            assert_eq!(
                NATIVE.read_shape(body.as_bytes(), false),
                Shape::Other,
                "{body}"
            );
        }
        let large = format!("a={}", "b".repeat(BODY_BYTES_MAX));
        for body in [
            "room,sensor_id=S temp=1",
            "cpu usage=1",
            "21.5",
            r#""a=b""#,
            "<a b=\"c\"/>",
            "\u{82}\u{1}=",
            &large,
        ] {
            assert_eq!(
                NATIVE.read_shape(body.as_bytes(), false),
                Shape::Neither,
                "{body:.40}"
            );
            assert_eq!(
                MAPPED.read_shape(body.as_bytes(), false),
                Shape::Other,
                "{body:.40}"
            );
        }
    }

    #[test]
    fn the_number_of_pairs_is_limited() {
        let pairs = |n: usize| (0..n).map(|i| format!("f{i}={i}&")).collect::<String>();
        let read = |n| match MAPPED.read_shape(pairs(n).as_bytes(), false) {
            Shape::Object(object) => object,
            other => panic!("{other:?}"),
        };
        assert!(!read(PAIRS_MAX).is_cut);
        let cut = read(PAIRS_MAX + 1);
        assert!(cut.is_cut);
        assert_eq!(cut.json, read(PAIRS_MAX).json);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_pairs_are_an_object_without_secrets(
            body in prop::collection::vec(prop_oneof![Just(b'='), Just(b'&'), Just(b'%'), any::<u8>()], 0..80),
            secret in "[a-z]{0,3}[-_]?(PassWord|token|SECRET|api_key)",
        ) {
            let body = [&body[..], b"&", secret.as_bytes(), b"=hunter2"].concat();
            for form in [NATIVE, MAPPED, QUERY] {
                let Shape::Object(object) = form.read_shape(&body, false) else { continue };
                let json = String::from_utf8(object.json).unwrap();
                // Numbers beyond the range of JSON stay as they are written.
                if !["1e", "inf", "E"].iter().any(|number| json.contains(number)) {
                    prop_assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{}", json);
                }
                prop_assert!(!json.contains("hunter2"), "{}", json);
            }
        }
    }
}
