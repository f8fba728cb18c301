//! The fleet page at `/`: one file that sends requests only to this port. `web/build.sh` builds it
//! from `web/`. The result is committed, so that building the service does not require node.
//!
//! The page shows untrusted data (ids, tags, payloads). Its Content-Security-Policy therefore
//! allows only its own script and style, by their hashes, and forbids turning text into markup.

use std::io::Write;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

const HTML: &str = include_str!("page.html");

/// The page, hashed and compressed once: about 100 KB, a few milliseconds.
struct Page {
    plain: Variant,
    gzip: Variant,
    policy: HeaderValue,
}

struct Variant {
    body: Bytes,
    /// A strong validator, so each encoding needs a different one (RFC 9110 §8.8.3).
    etag: HeaderValue,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail. The test below would detect an empty body.
    let gzip = encoder
        .write_all(HTML.as_bytes())
        .and_then(|()| encoder.finish())
        .unwrap_or_default();
    Page {
        plain: variant(HTML.into()),
        gzip: variant(gzip.into()),
        policy: header(&policy(HTML)),
    }
});

fn variant(body: Bytes) -> Variant {
    let hash = BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(&body)[..12]);
    Variant {
        body,
        etag: header(&format!("\"{hash}\"")),
    }
}

/// `text` is ASCII that this file generates.
fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The Content-Security-Policy: allows only the page's own script and style, and requests to this
/// port.
fn policy(html: &str) -> String {
    let hash = |tag: &str| {
        let inner = html
            .split_once(&format!("<{tag}>"))
            .and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
        BASE64_STANDARD.encode(Sha256::digest(inner.map_or("", |(text, _)| text)))
    };
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash("script"),
        hash("style")
    )
}

/// `GET /`. The browser caches the page and revalidates it each time.
pub(super) async fn page(asked: HeaderMap) -> Response {
    let takes_gzip = listed(&asked, &ACCEPT_ENCODING).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim() == "gzip" && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    });
    let form = if takes_gzip { &PAGE.gzip } else { &PAGE.plain };
    let is_known = listed(&asked, &IF_NONE_MATCH).any(|tag| {
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == form.etag.as_bytes()
    });
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = Response::new(form.body.clone().into());
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        );
        if takes_gzip {
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    };
    let headers = response.headers_mut();
    headers.insert(ETAG, form.etag.clone());
    headers.insert(CONTENT_SECURITY_POLICY, PAGE.policy.clone());
    for (name, value) in [
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept-encoding"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The members of a list header.
pub(super) fn listed<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(',').map(str::trim))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use axum::body::to_bytes;
    use flate2::read::GzDecoder;

    use super::*;

    async fn get(asked: &[(HeaderName, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        let headers = asked
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        let response = page(headers.collect()).await;
        let (head, body) = response.into_parts();
        (
            head.status,
            head.headers,
            to_bytes(body, usize::MAX).await.unwrap().to_vec(),
        )
    }

    #[tokio::test]
    async fn the_page_comes_as_it_is_asked_for_and_once() {
        let (status, headers, body) = get(&[]).await;
        assert_eq!((status, body.as_slice()), (StatusCode::OK, HTML.as_bytes()));
        assert!(!headers.contains_key(CONTENT_ENCODING));
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        let plain = headers[ETAG].to_str().unwrap().to_owned();

        let (_, headers, packed) = get(&[(ACCEPT_ENCODING, "br, gzip;q=0.8")]).await;
        assert_eq!(headers[CONTENT_ENCODING], "gzip");
        assert_ne!(headers[ETAG], plain);
        let mut unpacked = String::new();
        GzDecoder::new(packed.as_slice())
            .read_to_string(&mut unpacked)
            .unwrap();
        assert!(
            unpacked == HTML && packed.len() < HTML.len() / 2,
            "{} bytes",
            packed.len()
        );

        let (_, headers, _) = get(&[(ACCEPT_ENCODING, "gzip;q=0")]).await;
        assert_eq!(headers[ETAG], plain);
        for known in [
            plain.clone(),
            format!("\"other\", W/{plain}"),
            "*".to_owned(),
        ] {
            let (status, headers, body) = get(&[(IF_NONE_MATCH, &known)]).await;
            assert_eq!(
                (status, body.len()),
                (StatusCode::NOT_MODIFIED, 0),
                "{known}"
            );
            assert!(headers[ETAG] == plain && headers.contains_key(CONTENT_SECURITY_POLICY));
        }
        assert_eq!(get(&[(IF_NONE_MATCH, "\"other\"")]).await.0, StatusCode::OK);
    }

    #[test]
    fn the_policy_names_what_stands_in_the_page() {
        // The digests of "a" and "b", by openssl dgst -sha256 -binary | base64.
        let policy = policy("<style>a</style><script>b</script>");
        assert!(
            policy.contains("style-src 'sha256-ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs='"),
            "{policy}"
        );
        assert!(
            policy.contains("script-src 'sha256-PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0='"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"));
    }

    /// The page contains the hash of its sources, which shows that it was built after the last
    /// change of `web/`. If node is installed, `web/build.sh --check` compares the whole page.
    #[test]
    fn the_committed_page_was_built_from_its_sources() {
        let web = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
        let listed = std::fs::read_dir(web.join("src")).unwrap();
        let mut names: Vec<_> = listed
            .map(|e| format!("src/{}", e.unwrap().file_name().into_string().unwrap()))
            .collect();
        names.extend(["build.mjs".to_owned(), "package-lock.json".to_owned()]);
        names.sort();
        let mut hash = Sha256::new();
        for name in names {
            hash.update(format!("{name}\0"));
            hash.update(std::fs::read(web.join(&name)).unwrap());
            hash.update([0]);
        }
        let sources: String = hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let line = format!("\nSources: {sources}\n");
        assert!(
            HTML.contains(&line),
            "web/ has changed since src/query/src/admin/page.html was built; run web/build.sh"
        );
    }

    #[test]
    fn the_page_is_small_and_names_no_other_host() {
        assert!(HTML.len() < 150_000, "{} bytes", HTML.len());
        for once in ["<script", "</script>", "<style", "</style>"] {
            assert_eq!(HTML.matches(once).count(), 1, "{once}");
        }
        let links = HTML
            .match_indices("://")
            .map(|(at, _)| HTML[at + 3..].chars().take(20).collect::<String>());
        // Allowed: the namespace of SVG in the icon, which is a name, and the example command,
        // which names this host.
        let strange: Vec<_> = links
            .filter(|l| !l.starts_with("www.w3.org/2000/svg") && !l.starts_with("${"))
            .collect();
        assert!(strange.is_empty(), "{strange:?}");
    }
}
