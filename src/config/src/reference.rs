//! Generates the reference of every key, `docs/configuration.md`. The meaning of a key comes from
//! the shipped file, its type, range and default from the code that reads it, and whether it can be
//! reloaded from [`super::reload`]. Nothing is written twice. [`TYPES`] covers keys whose getter
//! has no fixed type.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Config, load, reload, suggest};

const SHIPPED: &str = include_str!("../../../config/hourbucket.toml");

const INTRODUCTION: &str = "\
# Configuration

This page is generated from the code that reads the settings and from the comments in \
`config/hourbucket.toml`, by
`hourbucket config-reference`. A test fails if it is out of date. Do not edit it. Edit its sources \
and generate it again
with `UPDATE=1 cargo test --test pure config::`.

**Sources of settings.** Environment over file over default. The file is TOML: the path given by \
`--config`, or else
`config/hourbucket.toml`, which may be missing. Relative paths are resolved against the working \
directory of the process,
not against the file. Startup fails on unknown keys, values out of range and impossible \
combinations, and reports all of
them together, each with its key and line. `hourbucket check --config FILE` tests the settings and \
changes nothing.

**Environment.** Each key has a variable. The key's type determines how the text is parsed: \
`true`, `5000`, `15s`,
`512MiB`; lists of names are separated by commas. A number in a variable's name is the index of a \
list element, from 0; the
number after the last one appends an element. A variable that ends in `_FILE` names a file that \
holds the value, such as
`HOURBUCKET_STORE__URI_FILE=/run/secrets/uri`; the file's last line ending is dropped. An empty \
variable counts as not set.
A variable with a double underscore in its name must name a key, or it is refused. One that names \
a key with
single underscores (`HOURBUCKET_STORE_URI`) is refused as well. Other variables that begin with `HOURBUCKET_`, such as `HOURBUCKET_MONGOD` of the demo, belong to other \
programs and are ignored.

**Units.** Sizes: `8388608`, `\"512MiB\"` (1024-based), `\"10MB\"` (1000-based). Durations: \
`\"250ms\"`, `\"15s\"`, `\"10m\"`,
`\"1h30m\"`, `\"365d\"`, `\"2w\"`.

**Reload.** SIGHUP (`systemctl reload hourbucket`, `kill -HUP`) reads everything again: the file, \
the files that variables
name, tokens, keys and certificates. If there is any problem, nothing is changed. Otherwise the \
keys marked *yes* in the column
*reload* apply from the next request, message, connection or handshake on. Work in progress keeps \
the settings it started
with, and no connection is closed, except those of MQTT devices whose token, JWT or certificate is \
not valid any more, and
those over HTTP whose client certificate is not.
Certificates can be replaced; whether a port uses TLS is decided when it is opened. Keys marked \
*restart* keep their values; each one that
differs is logged with the reason. The variables of a running process cannot change, and still \
override the file. The result
is in the log, in `/readyz` under `config`, in
`hourbucket_config_reloads_total{result=\"applied|restart_needed|invalid\"}` and in
`hourbucket_config_last_reload_success_timestamp_seconds`.
";

/// The last section. A test of `ingest::listen` compares the numbers of MQTT with the code.
const FIXED: &str = "
## Fixed limits

These are not settings: a larger value would let a stranger use more memory, and no client needs one.

| limit | size | why | beyond it |
|---|---|---|---|
| CONNECT over MQTT | 16 KiB | the device is not authenticated yet; a JWT has at most 8 KiB, a \
will is not published | the connection is closed |
| client id over MQTT | 256 bytes | as the longest sensor id; it is in the log | CONNACK with \
`Client Identifier not valid` |
| packet over MQTT that is taken without a share of the room | 4 KiB | each connection may hold \
one, also before it proves anything | it waits for room in the 32 MiB of arriving packets |
| message over MQTT above `packet_max_bytes` | 16 KiB | enough to recognise it | the rest is left \
out of its dead letter |
| replies over MQTT that are sent together | 16 KiB | 4,000 acknowledgements | they are sent \
before more is read |
| head of an HTTP request | 64 KiB, up to 128 KiB depending on how it arrives; 100 header lines | \
larger than those of proxies | 431 |
| JWT | 8 KiB | with a dozen claims and an RSA signature of 4096 bits one has about 2 KiB | 401 |
| verified JWTs that are remembered | 8 MiB of their text | about 16,000 senders; the others cost \
a signature for each request | the longest unused are forgotten |
| ids of which the last use is kept | 65,536 | 11 MiB in the file | the longest unused are \
forgotten |
";

const CLIENT_AUTH: &str = "`\"required\"`, `\"optional\"`, `\"identity\"`";

/// Key, type and default of keys with individual parsers. A default of `None` is looked up in
/// [`Config::default`].
const TYPES: &[(&str, &str, Option<&str>)] = &[
    ("http.tls.client_auth", CLIENT_AUTH, Some("`\"required\"`")),
    ("admin.tls.client_auth", CLIENT_AUTH, Some("`\"required\"`")),
    (
        "listen.mqtt.client_auth",
        "`\"required\"`, `\"identity\"`",
        Some("`\"required\"`"),
    ),
    (
        "http.trusted_proxies",
        "list of addresses and networks, up to 64",
        None,
    ),
    (
        "http.proxy_header",
        "`\"x-forwarded-for\"`, `\"proxy-v2\"`",
        Some("`\"x-forwarded-for\"`"),
    ),
    (
        "admin.trusted_proxies",
        "list of addresses and networks, up to 64",
        None,
    ),
    (
        "admin.proxy_header",
        "`\"x-forwarded-for\"`, `\"proxy-v2\"`",
        Some("`\"x-forwarded-for\"`"),
    ),
    (
        "listen.mqtt.trusted_proxies",
        "list of addresses and networks, up to 64",
        None,
    ),
    (
        "certificates.write_default",
        "list of patterns on sensor ids",
        None,
    ),
    (
        "certificates.read_default",
        "list of patterns on sensor ids",
        None,
    ),
    ("store.database", "database name, up to 63 bytes", None),
    (
        "store.write_concern",
        "`\"majority\"`, or a number of members, 1 to 50",
        None,
    ),
    ("bucket.span", "duration that divides a day, 1m to 1d", None),
    ("enrich.collection", "collection name", None),
    ("enrich.id_field", "field name", None),
    ("enrich.fields", "list of field names", None),
    ("limits.unset_before", "date", None),
    ("limits.zone", "IANA time zone", None),
    (
        "jwt.algorithms",
        "list of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA",
        None,
    ),
    ("jwt.audience", "list of texts, up to 32", None),
    ("jwt.write_default", "list of patterns on sensor ids", None),
    ("jwt.read_default", "list of patterns on sensor ids", None),
    ("native.time", "list of names, up to 16", None),
    ("rollup.zone", "IANA time zone", None),
    ("otlp.sensor_id_attributes", "list of names, up to 16", None),
    (
        "remote_write.sensor_id_labels",
        "list of names, up to 16",
        None,
    ),
    ("log.level", "filter: comma-separated levels", None),
    ("mqtt.url", "URL: `mqtt`, `mqtts`, `ws` or `wss`", REQUIRED),
    ("mqtt.client_id", "text, up to 256 characters", REQUIRED),
    ("mqtt.protocol", "`4` or `5`", Some("`5`")),
    (
        "mqtt.password_file",
        "path of a file that holds a secret",
        None,
    ),
    ("mqtt.status_topic", "topic", None),
    ("mqtt.subscriptions.filter", "topic filter", REQUIRED),
    ("mqtt.subscriptions.qos", "`0`, `1` or `2`", Some("`1`")),
    (
        "mqtt.subscriptions.topic",
        "topic template",
        Some("required, unless the format reads topics itself"),
    ),
    ("mqtt.subscriptions.format", "name of a format", REQUIRED),
    (
        "mqtt.subscriptions.ts_unit",
        "`\"s\"`, `\"ms\"`, `\"us\"`, `\"ns\"`",
        None,
    ),
    ("mqtt.subscriptions.zone", "IANA time zone", None),
    (
        "mqtt.subscriptions.retained",
        "`\"once\"`, `\"always\"`, `\"never\"`",
        Some("`\"once\"`"),
    ),
    (
        "mqtt.subscriptions.user_property_tags",
        "list of names, up to 16",
        None,
    ),
    ("listen.mqtt.topics.filter", "topic filter", REQUIRED),
    (
        "listen.mqtt.topics.topic",
        "topic template",
        Some("required, unless the format reads topics itself"),
    ),
    ("listen.mqtt.topics.format", "name of a format", REQUIRED),
    (
        "listen.mqtt.topics.ts_unit",
        "`\"s\"`, `\"ms\"`, `\"us\"`, `\"ns\"`",
        None,
    ),
    ("listen.mqtt.topics.zone", "IANA time zone", None),
    (
        "listen.mqtt.topics.user_property_tags",
        "list of names, up to 16",
        None,
    ),
    (
        "formats.example.topic",
        "topic template, or a list of them",
        None,
    ),
    ("formats.example.when", "list of conditions", None),
    ("formats.example.skip", "`true` or `false`", Some("`false`")),
    ("formats.example.each", "place, or a list of them", None),
    ("formats.example.where", "list of conditions", None),
    ("formats.example.id", "source, or a list of them", None),
    (
        "formats.example.time",
        "place, or a list in which one can be `{ at, unit }`",
        None,
    ),
    (
        "formats.example.time_unit",
        "`\"s\"`, `\"ms\"`, `\"us\"`, `\"ns\"`",
        None,
    ),
    ("formats.example.zone", "IANA time zone", None),
    (
        "formats.example.time_unreadable",
        "`\"reject\"`, `\"receive\"`",
        Some("`\"reject\"`"),
    ),
    (
        "formats.example.values",
        "place, a list of them, or a table",
        Some("`\"\"`, the whole record"),
    ),
    ("formats.example.also", "table of names and places", None),
    (
        "formats.example.field",
        "source, or a list of them",
        Some("`\"{field}\"`"),
    ),
    ("formats.example.prefix", "source", None),
    (
        "formats.example.separator",
        "text, up to 8 bytes",
        Some("`\"_\"`"),
    ),
    (
        "formats.example.level_separator",
        "text, up to 8 bytes",
        Some("`\"/\"`"),
    ),
    ("formats.example.include", "list of globs", None),
    ("formats.example.exclude", "list of globs", None),
    (
        "formats.example.texts",
        "`\"keep\"`, `\"numbers\"`, `\"only-numbers\"`, `\"drop\"`",
        Some("`\"keep\"`"),
    ),
    ("formats.example.none", "list of texts and numbers", None),
    ("formats.example.tags", "table of sources", None),
    ("formats.example.fields", "list of rules", None),
];
const REQUIRED: Option<&str> = Some("required");

/// The page in Markdown.
pub fn reference() -> String {
    let keys = Keys::new();
    let mut out = INTRODUCTION.to_owned();
    let mut section = String::new();
    let (mut text, mut rows): (Vec<&str>, Vec<String>) = (vec![], vec![]);
    // The text before the first section is about the whole file, and the introduction covers it.
    let body = SHIPPED.split_once("\n\n").map_or(SHIPPED, |(_, body)| body);
    for line in body.lines() {
        let (bare, is_comment) = line
            .strip_prefix('#')
            .map_or((line, false), |bare| (bare, true));
        match setting(bare.strip_prefix(' ').unwrap_or(bare)) {
            Some(Setting::Section(name)) => {
                table(&mut out, &mut rows);
                section = name.trim_matches(['[', ']']).to_owned();
                let _ = write!(out, "\n## `{name}`\n");
                paragraphs(&mut out, &mut text);
            }
            Some(Setting::Key(key)) => {
                if !text.is_empty() {
                    table(&mut out, &mut rows);
                    paragraphs(&mut out, &mut text);
                }
                rows.push(keys.row(&format!("{section}.{key}"), key));
            }
            None if is_comment => text.push(bare),
            None => {
                table(&mut out, &mut rows);
                paragraphs(&mut out, &mut text);
            }
        }
    }
    table(&mut out, &mut rows);
    paragraphs(&mut out, &mut text);
    out + FIXED
}

/// A section or key in the shipped file, commented out or not.
enum Setting<'a> {
    Section(&'a str),
    Key(&'a str),
}

fn setting(line: &str) -> Option<Setting<'_>> {
    if line.starts_with('[') && line.ends_with(']') {
        return Some(Setting::Section(line));
    }
    let key = line.split_once(" = ")?.0;
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    is_key.then_some(Setting::Key(key))
}

/// Types and defaults of the keys.
struct Keys {
    described: BTreeMap<String, (String, Option<String>)>,
    defaults: toml::Table,
}

impl Keys {
    fn new() -> Keys {
        let mut described = load::one_of_each().described;
        for (key, kind, default) in TYPES {
            described.insert(
                (*key).to_owned(),
                ((*kind).to_owned(), default.map(str::to_owned)),
            );
        }
        Keys {
            described,
            defaults: Config::default().masked().parse().unwrap_or_default(),
        }
    }

    fn row(&self, path: &str, key: &str) -> String {
        let (kind, default) = self.described.get(path).cloned().unwrap_or_default();
        let default = match default {
            Some(text) if text.starts_with('`') || text.starts_with("required") => text,
            Some(text) => format!("`{text}`"),
            None => self
                .default(path)
                .map_or_else(|| "none".to_owned(), |value| format!("`{value}`")),
        };
        let reload = if reload::waits(path).is_none() {
            "yes"
        } else {
            "restart"
        };
        format!(
            "| `{key}` | {kind} | {default} | {reload} | {} |",
            variable(path)
        )
    }

    fn default(&self, path: &str) -> Option<String> {
        let mut steps = path.split('.');
        let mut value = self.defaults.get(steps.next()?)?;
        for step in steps {
            value = value.get(step)?;
        }
        Some(value.to_string())
    }
}

/// The environment variable that sets a key.
fn variable(path: &str) -> String {
    suggest::variable_of(path).map_or_else(|| "in the file".to_owned(), |name| format!("`{name}`"))
}

fn table(out: &mut String, rows: &mut Vec<String>) {
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "\n| key | type and range | default | reload | environment |\n|---|---|---|---|---|\n",
    );
    rows.drain(..).for_each(|row| {
        let _ = writeln!(out, "{row}");
    });
}

/// Comments become paragraphs; indented lines become code.
fn paragraphs(out: &mut String, text: &mut Vec<&str>) {
    let mut before = "";
    for line in text.drain(..) {
        let is_code = line.starts_with("   ");
        let was_code = before.starts_with("   ");
        if before.trim().is_empty() || is_code != was_code {
            out.push('\n');
        }
        if is_code {
            let _ = writeln!(out, "    {}", line.trim());
        } else if !line.trim().is_empty() {
            let _ = writeln!(out, "{}", plain(line.trim()));
        }
        before = line;
    }
}

/// Escapes text so that Markdown shows it literally.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let bytes = line.as_bytes();
    // Text between backticks is code and needs no escaping.
    let mut is_code = false;
    for (i, c) in line.char_indices() {
        let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let is_word_at = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(word);
        is_code ^= c == '`';
        let is_inner = is_word_at(i.checked_sub(1)) && is_word_at(Some(i + 1));
        let is_mark = matches!(c, '*' | '<' | '|' | '[' | ']')
            || (c == '_' && !is_inner)
            || (c == '#' && i == 0);
        if is_mark && !is_code {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_type_and_only_keys_are_mentioned() {
        let keys = load::known_keys();
        let described = load::one_of_each().described;
        for key in keys.iter().filter(|key| *key != "mqtt.password") {
            let typed = TYPES.iter().any(|(name, ..)| name == key);
            assert!(
                typed || described.contains_key(key),
                "{key}: add its type to TYPES"
            );
        }
        for (key, ..) in TYPES {
            assert!(keys.iter().any(|known| known == key), "{key} is not a key");
        }
    }

    #[test]
    fn variables_are_named_as_they_are_read() {
        for (path, name) in [
            ("store.uri", "`HOURBUCKET_STORE__URI`"),
            ("http.tls.cert_file", "`HOURBUCKET_HTTP__TLS__CERT_FILE`"),
            ("mqtt.url", "`HOURBUCKET_MQTT__0__URL`"),
            (
                "mqtt.subscriptions.qos",
                "`HOURBUCKET_MQTT__0__SUBSCRIPTIONS__0__QOS`",
            ),
            ("listen.mqtt.window", "`HOURBUCKET_LISTEN__MQTT__WINDOW`"),
            (
                "listen.mqtt.topics.filter",
                "`HOURBUCKET_LISTEN__MQTT__TOPICS__0__FILTER`",
            ),
        ] {
            assert_eq!(variable(path), name);
        }
        assert_eq!(
            plain("_id and sensor_id A__B * <b> `a < b`"),
            "\\_id and sensor_id A__B \\* \\<b> `a < b`"
        );
    }
}
