//! Checks before the text is given to the parser, whose stack and time grow with the input: length,
//! nesting, number of operators and regular expressions, and durations and numbers that it cannot
//! represent.

use super::durations::{is_word, total_ms};
use super::error::PromqlError;

/// Bytes of a query.
pub(super) const QUERY_BYTES_MAX: usize = 128 << 10;
/// Open brackets and operators: each can add a level to the tree.
const LEVELS_MAX: usize = 1000;
/// Regular expressions in one query; each is compiled.
const REGEX_MAX: usize = 200;
/// A duration in seconds: 3,000 years.
const SECONDS_MAX: f64 = 1e11;

/// Checks the text of a query.
///
/// # Errors
/// It is too large to be parsed.
pub(super) fn check(text: &str) -> Result<(), PromqlError> {
    if text.len() > QUERY_BYTES_MAX {
        return Err(PromqlError::bad_data(format!(
            "query has {} bytes; at most {QUERY_BYTES_MAX} are allowed",
            text.len()
        )));
    }
    let mut guard = Guard {
        rest: text,
        levels: 0,
        regexes: 0,
    };
    while let Some(c) = guard.rest.chars().next() {
        guard.token(c)?;
    }
    match (guard.levels > LEVELS_MAX, guard.regexes > REGEX_MAX) {
        (true, _) => Err(PromqlError::bad_data(format!(
            "query has {} brackets and operators; at most {LEVELS_MAX} are allowed",
            guard.levels
        ))),
        (_, true) => Err(PromqlError::bad_data(format!(
            "query has {} regular expressions; at most {REGEX_MAX} are allowed",
            guard.regexes
        ))),
        _ => Ok(()),
    }
}

struct Guard<'a> {
    rest: &'a str,
    levels: usize,
    regexes: usize,
}

impl Guard<'_> {
    fn token(&mut self, c: char) -> Result<(), PromqlError> {
        match c {
            '"' | '\'' | '`' => self.skip_text(c),
            '#' => self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest),
            '[' | ':' => {
                self.rest = &self.rest[1..];
                self.levels += usize::from(c == '[');
                self.duration()?;
            }
            c if c.is_ascii_alphanumeric() || c == '_' || c == '.' => {
                let end = self
                    .rest
                    .find(|c: char| !is_word(c))
                    .unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at(end);
                check_number(word, rest)?;
                self.rest = rest;
                match word.to_ascii_lowercase().as_str() {
                    "and" | "or" | "unless" | "atan2" => self.levels += 1,
                    "offset" => self.duration()?,
                    _ => {}
                }
            }
            c => {
                self.levels += usize::from("({+-*/%^<>=!".contains(c));
                self.regexes += usize::from(c == '~');
                self.rest = &self.rest[c.len_utf8()..];
            }
        }
        Ok(())
    }

    fn skip_text(&mut self, quote: char) {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            if c == quote && !escaped {
                self.rest = &self.rest[at + 1..];
                return;
            }
            escaped = quote != '`' && c == '\\' && !escaped;
        }
        self.rest = "";
    }

    /// A number of seconds follows, or a duration such as `5m`, or neither.
    fn duration(&self) -> Result<(), PromqlError> {
        let text = self
            .rest
            .trim_start()
            .trim_start_matches(['+', '-'])
            .trim_start();
        let end = text.find(|c: char| !is_word(c)).unwrap_or(text.len());
        // With a signed exponent (1e+300), the number is cut at the sign: it is refused as well.
        let word = &text[..end];
        let number = word.strip_suffix(['e', 'E']).unwrap_or(word);
        let has_exponent =
            number.len() < word.len() && word.starts_with(|c: char| c.is_ascii_digit());
        let seconds = match number.parse::<f64>() {
            Ok(seconds) if !has_exponent => seconds,
            Ok(_) => f64::INFINITY,
            Err(_) => total_ms(word).map_or(0.0, |ms| ms as f64 / 1000.0),
        };
        match seconds.is_finite() && seconds.abs() <= SECONDS_MAX {
            true => Ok(()),
            false => Err(PromqlError::bad_data(format!(
                "parse error: duration out of range: {word}"
            ))),
        }
    }
}

/// Refuses a number above the largest one, whose exponent may have a sign and be in the `rest`.
fn check_number(word: &str, rest: &str) -> Result<(), PromqlError> {
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Ok(());
    }
    let exponent = match word.ends_with(['e', 'E']) && rest.starts_with(['+', '-']) {
        true => &rest[..1 + rest[1..].find(|c| !is_word(c)).unwrap_or(rest.len() - 1)],
        false => "",
    };
    let number = format!("{word}{exponent}");
    match number.parse::<f64>() {
        Ok(value) if value.is_infinite() => Err(PromqlError::bad_data(format!(
            "parse error: number out of range: {number}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_parser_could_not_bear_is_refused_before() {
        for (text, word) in [
            ("x".repeat(QUERY_BYTES_MAX + 1), "bytes"),
            ("(".repeat(10_000), "brackets"),
            (format!("{}1", "1+".repeat(10_000)), "operators"),
            (format!("{}1", "1 or ".repeat(10_000)), "operators"),
            ("{a=~\"x\"} or ".repeat(201), "regular expressions"),
            ("x offset 1e300".to_owned(), "duration"),
            ("x offset - inf".to_owned(), "duration"),
            ("x offset NaN".to_owned(), "duration"),
            ("x[1e+300]".to_owned(), "duration"),
            ("x[1h:1e20]".to_owned(), "duration"),
            ("x[99999999999y]".to_owned(), "parse error: duration"),
            ("x offset 99999999999999999ms".to_owned(), "duration"),
            ("1e999".to_owned(), "parse error: number"),
            ("x + -.1E+999 ".to_owned(), "number out of range: .1E+999"),
        ] {
            let error = check(&text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        for text in [
            "x[5m] offset -1h",
            "sum(x{a=\"((((\", b='\\'('}) # ((((",
            "x[300]",
            "a:b:c offset 1.5e3",
            "x[5184000000ms]",
            "1e308 + 1e-999 + 0x1e+999 + inf + e999",
        ] {
            check(text).unwrap();
        }
        check(&format!("{{a=\"{}\"}}", "(".repeat(10_000))).unwrap();
    }
}
