//! The conditions of `remove --where`: `FIELD OP VALUE`, joined by `and`. Pure.
//!
//! A comparison holds only for a reading that has the field with a value of the same kind: a reading
//! without the field, or with text where the condition has a number, never matches, `!=` included.

use std::fmt;
use std::str::FromStr;

use model::ValueRef;
use model::rows::Row;

/// All of these comparisons.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Condition {
    /// As it was written.
    text: String,
    comparisons: Vec<Comparison>,
}

#[derive(Debug, Clone, PartialEq)]
struct Comparison {
    field: String,
    operator: Operator,
    value: Literal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

/// Longer ones first, so that none is found as the beginning of another.
const OPERATORS: [(&str, Operator); 6] = [
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

#[derive(Debug, Clone, PartialEq)]
enum Literal {
    Number(f64),
    Bool(bool),
    Text(String),
}

/// A condition cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}:\n  {text}\n  {:indent$}^", "")]
pub struct InvalidCondition {
    text: String,
    /// Characters before the mistake.
    indent: usize,
    expected: &'static str,
}

impl FromStr for Condition {
    type Err = InvalidCondition;

    fn from_str(text: &str) -> Result<Condition, InvalidCondition> {
        let mut rest = text.trim_start();
        let mut comparisons = vec![];
        loop {
            let (comparison, after) = comparison(rest).map_err(|(at, expected)| {
                let before = &text[..text.len() - at.len()];
                InvalidCondition {
                    text: text.to_owned(),
                    indent: before.chars().count(),
                    expected,
                }
            })?;
            comparisons.push(comparison);
            rest = after.trim_start();
            if rest.is_empty() {
                return Ok(Condition {
                    text: text.trim().to_owned(),
                    comparisons,
                });
            }
            rest = rest
                .strip_prefix("and")
                .filter(|after| after.starts_with(char::is_whitespace))
                .ok_or_else(|| InvalidCondition {
                    text: text.to_owned(),
                    indent: text[..text.len() - rest.len()].chars().count(),
                    expected: "`and`, or the end",
                })?
                .trim_start();
        }
    }
}

/// What is left of the text where something is wrong, and what was expected there.
type Mistake<'t> = (&'t str, &'static str);

/// The comparison at the beginning, and what follows it.
fn comparison(text: &str) -> Result<(Comparison, &str), Mistake<'_>> {
    let (field, rest) = match text.strip_prefix('"') {
        Some(quoted) => {
            let end = quoted
                .find('"')
                .ok_or((text, "a closing \" of the field"))?;
            (&quoted[..end], &quoted[end + 1..])
        }
        None => {
            let is_end = |c: char| c.is_whitespace() || "<>=!'\"".contains(c);
            text.split_at(text.find(is_end).unwrap_or(text.len()))
        }
    };
    if field.is_empty() {
        return Err((text, "the name of a field"));
    }
    let rest = rest.trim_start();
    let operator = OPERATORS
        .iter()
        .find_map(|(name, operator)| Some((*operator, rest.strip_prefix(name)?)));
    let (operator, rest) = operator.ok_or((rest, "one of < <= > >= == !="))?;
    let (value, after) = literal(rest.trim_start())?;
    let is_ordered = !matches!(operator, Operator::Equal | Operator::NotEqual);
    if is_ordered && !matches!(value, Literal::Number(_)) {
        return Err((
            rest.trim_start(),
            "a number: only == and != compare other values",
        ));
    }
    let field = field.to_owned();
    let comparison = Comparison {
        field,
        operator,
        value,
    };
    Ok((comparison, after))
}

/// The value at the beginning, and what follows it.
fn literal(text: &str) -> Result<(Literal, &str), Mistake<'_>> {
    if let Some(quoted) = text.strip_prefix('\'') {
        let end = quoted.find('\'').ok_or((text, "a closing ' of the text"))?;
        return Ok((Literal::Text(quoted[..end].to_owned()), &quoted[end + 1..]));
    }
    let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    let value = match word {
        "true" => Literal::Bool(true),
        "false" => Literal::Bool(false),
        _ => {
            let number = word.parse().ok().filter(|number: &f64| !number.is_nan());
            Literal::Number(number.ok_or((text, "a number, true, false or 'text'"))?)
        }
    };
    Ok((value, rest))
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    /// The fields that it compares.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        self.comparisons.iter().map(|comparison| &*comparison.field)
    }

    /// Whether it compares nothing, and so holds for every reading.
    pub(crate) fn is_empty(&self) -> bool {
        self.comparisons.is_empty()
    }

    /// Whether it holds for a reading.
    pub(crate) fn holds(&self, row: &Row<'_>) -> bool {
        let holds = |comparison: &Comparison| {
            row.named()
                .any(|(name, value)| name == comparison.field && comparison.holds(value))
        };
        self.comparisons.iter().all(holds)
    }
}

impl Comparison {
    fn holds(&self, value: ValueRef<'_>) -> bool {
        let order = match (&self.value, value) {
            (Literal::Number(wanted), value) => value
                .num()
                .and_then(|number| number.as_f64().partial_cmp(wanted)),
            (Literal::Bool(wanted), ValueRef::Bool(value)) => Some(value.cmp(wanted)),
            (Literal::Text(wanted), ValueRef::Str(value)) => Some(value.cmp(wanted)),
            _ => None,
        };
        order.is_some_and(|order| match self.operator {
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::Greater => order.is_gt(),
            Operator::GreaterOrEqual => order.is_ge(),
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{RowFlags, Rows};

    #[test]
    fn a_condition_holds_for_values_of_its_kind() {
        let mut rows = Rows::default();
        let values = [
            ("temp", ValueRef::Double(-127.0)),
            ("n", ValueRef::Int(3)),
            ("on", ValueRef::Bool(true)),
            ("state", ValueRef::Str("it's ok")),
            ("two words", ValueRef::Int(1)),
        ];
        rows.push_named(1, RowFlags::default(), &values);
        let row = rows.iter().next().unwrap();
        for (text, holds) in [
            ("temp < -100", true),
            ("temp<-100 and n==3", true),
            ("temp < -100 and n > 3", false),
            ("n >= 3 and n <= 3.0 and n != 4", true),
            ("on == true", true),
            ("on != true", false),
            ("state != 'ok'", true),
            ("\"two words\" == 1", true),
            ("state == 1", false),
            ("state != 1", false),
            ("missing != 1", false),
            ("temp > -1e3", true),
        ] {
            let condition: Condition = text.parse().unwrap();
            assert_eq!(condition.holds(&row), holds, "{text}");
        }
    }

    #[test]
    fn a_mistake_is_shown_where_it_is() {
        for (text, at, expected) in [
            ("", 0, "the name of a field"),
            ("temp", 4, "one of"),
            ("temp = 3", 5, "one of"),
            ("temp < abc", 7, "a number, true"),
            ("temp < 'a'", 7, "a number: only"),
            ("temp < 3 or n > 4", 9, "`and`"),
            ("temp < 3 and", 9, "`and`"),
            ("temp < 3 and > 4", 13, "the name of a field"),
            ("größe == 'x", 9, "a closing '"),
            ("\"temp < 3", 0, "a closing \""),
            ("temp < NaN", 7, "a number, true"),
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert_eq!(error.indent, at, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let shown = "temp < abc".parse::<Condition>().unwrap_err().to_string();
        assert!(shown.ends_with(":\n  temp < abc\n         ^"), "{shown}");
    }
}
