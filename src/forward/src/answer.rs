//! What the centre's answer to a body means. Pure.

use serde::Deserialize;

/// Characters of an answer that a problem quotes.
const QUOTED_CHARS_MAX: usize = 300;

/// An answer, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// About the readings of the body, each accepted or rejected.
    Items(Items),
    /// About the whole body; nothing of it was taken, or it is not known whether it was.
    Refused {
        /// The status of HTTP.
        status: u16,
        /// `Retry-After`, in seconds.
        retry_after_s: Option<u64>,
        /// The text of the answer.
        detail: String,
    },
    /// None came; why.
    None(String),
}

/// The answer to readings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Items {
    /// How many are durable at the centre now, including those that it had before.
    pub accepted: usize,
    /// How many it rejects.
    pub rejected: usize,
    /// The first of these.
    #[serde(default)]
    pub errors: Vec<ItemReject>,
}

/// A rejected reading of the body.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ItemReject {
    /// Its position, from 0.
    pub index: usize,
    /// One of a fixed set of names.
    pub reason: String,
    /// Why, for people.
    pub detail: String,
}

impl Answer {
    /// The meaning of an answer with this status, `Retry-After` and body.
    pub fn classify(status: u16, retry_after: Option<&str>, body: &str) -> Answer {
        // 400 is the answer if every reading is rejected, and also to a body that has none.
        if matches!(status, 200 | 400)
            && let Ok(items) = serde_json::from_str::<Items>(body)
        {
            return Answer::Items(items);
        }
        let json: Option<serde_json::Value> = serde_json::from_str(body).ok();
        let detail = json
            .as_ref()
            .and_then(|json| json["error"]["detail"].as_str())
            .unwrap_or(body.trim());
        Answer::Refused {
            status,
            retry_after_s: retry_after.and_then(|seconds| seconds.trim().parse().ok()),
            detail: detail.chars().take(QUOTED_CHARS_MAX).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_about_the_readings_or_about_the_body() {
        let items = r#"{"accepted":1,"rejected":1,"errors":[{"index":1,"reason":"too_old","detail":"d"}],"hints":[]}"#;
        let expected = Items {
            accepted: 1,
            rejected: 1,
            errors: vec![ItemReject {
                index: 1,
                reason: "too_old".into(),
                detail: "d".into(),
            }],
        };
        assert_eq!(
            Answer::classify(200, None, items),
            Answer::Items(expected.clone())
        );
        assert_eq!(Answer::classify(400, None, items), Answer::Items(expected));
        let refused = |status, retry_after_s, detail: &str| Answer::Refused {
            status,
            retry_after_s,
            detail: detail.into(),
        };
        let busy = r#"{"error":{"reason":"busy","detail":"try later"}}"#;
        assert_eq!(
            Answer::classify(429, Some("7"), busy),
            refused(429, Some(7), "try later")
        );
        assert_eq!(
            Answer::classify(503, Some("soon"), "<html>"),
            refused(503, None, "<html>")
        );
        // A proxy's page does not confirm anything.
        assert_eq!(
            Answer::classify(200, None, "welcome"),
            refused(200, None, "welcome")
        );
    }
}
