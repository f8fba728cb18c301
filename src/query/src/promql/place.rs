//! Where in a query an error is, as Prometheus says it. The parser keeps no places, so the smallest
//! part of the query with the same error is searched, and by its text the token in it that the
//! error is about.

use std::ops::Range;

use super::ast::ValueType;
use super::unexpected::{QUERY_BYTES_MAX, is_beginning, line_and_column, tokens};

/// The errors of a query that ends too early.
const OF_THE_END: [&str; 4] = [
    "unclosed left parenthesis",
    "end of input",
    "not terminated",
    "at the end",
];
/// The errors about an operator.
const OF_AN_OPERATOR: [&str; 3] = [
    "bool modifier",
    "comparisons between scalars",
    "ON and GROUP clause",
];
const OPERATORS: [&str; 16] = [
    "+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "and", "or", "unless", "atan2",
];

/// What is known of a part of a query.
pub(super) trait Tried {
    /// Whether it fails in the same way.
    fn is_same_error(&self, part: &str) -> bool;
    /// Its type if it is valid.
    fn value_type(&self, part: &str) -> Option<ValueType>;
    /// The types of a function's arguments.
    fn argument_types(&self, function: &str) -> Option<&'static [ValueType]>;
}

/// The place, as Prometheus writes it (`line:column`); `None` if it is not found, or the query is
/// too large to be searched.
pub(super) fn place(text: &str, error: &str, tried: &impl Tried) -> Option<String> {
    if text.len() > QUERY_BYTES_MAX {
        return None;
    }
    let is_any = |of: &[&str]| of.iter().any(|part| error.contains(part));
    let tokens = tokens(text);
    let is_same = |part: &str| tried.is_same_error(part);
    let has_error = |range: Range<usize>| is_beginning(&text[range], &is_same);
    let last = tokens.partition_point(|token| !has_error(0..token.end));
    let Some(end) = tokens.get(last).map(|token| token.end) else {
        let is_end = is_any(&OF_THE_END);
        return is_end.then(|| line_and_column(text, text.trim_end().len()));
    };
    let first = (0..=last)
        .rev()
        .find(|at| has_error(tokens[*at].start..end))?;
    let part = &tokens[call_start(text, &tokens, first)..];
    if error.contains("unexpected right parenthesis") {
        return Some(line_and_column(text, end));
    }
    let word = |at: usize| &text[part[at].clone()];
    let operator = || at_depth_0(text, part).find(|at| *at > 0 && OPERATORS.contains(&word(*at)));
    let found = if error.contains("duration") {
        return Some(line_and_column(text, tokens[last].start));
    } else if is_any(&OF_AN_OPERATOR) {
        operator()
    } else if error.contains("binary expression must contain") {
        operator()
            .filter(|at| {
                let left = &text[part[0].start..part[*at - 1].end];
                let of_left = tried.value_type(left);
                matches!(of_left, Some(ValueType::Scalar | ValueType::Vector))
            })
            .map(|at| at + 1)
    } else if is_any(&["ranges only allowed", "before range"]) {
        at_depth_0(text, part).rfind(|at| word(*at) == "[" && part[*at].start < end)
    } else if error.contains("expected type") {
        argument(text, part, tried)
    } else {
        None
    };
    Some(line_and_column(text, part[found.unwrap_or(0)].start))
}

/// The name before the brackets at `first`, if they are those of a call or an aggregation.
fn call_start(text: &str, tokens: &[Range<usize>], first: usize) -> usize {
    let word = |at: usize| &text[tokens[at].clone()];
    let is_name = |at: usize| {
        let is_word = word(at).starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        is_word && !OPERATORS.contains(&word(at).to_ascii_lowercase().as_str())
    };
    match first {
        1.. if word(first) == "(" && is_name(first - 1) => first - 1,
        // Labels between the name and the arguments: `sum by (a) (x)`.
        1.. if word(first) == "(" && word(first - 1) == ")" => {
            let open = (0..first).rev().find(|at| word(*at) == "(").unwrap_or(0);
            let is_grouped = open > 1 && is_name(open - 1) && is_name(open - 2);
            if is_grouped { open - 2 } else { first }
        }
        _ => first,
    }
}

/// The tokens outside of brackets, and the opening brackets.
fn at_depth_0<'t>(
    text: &'t str,
    tokens: &'t [Range<usize>],
) -> impl DoubleEndedIterator<Item = usize> + 't {
    let mut depth = 0usize;
    let mut found = vec![];
    for (at, token) in tokens.iter().enumerate() {
        let is_closing = matches!(&text[token.clone()], ")" | "]" | "}");
        depth = depth.saturating_sub(usize::from(is_closing));
        if depth == 0 && !is_closing {
            found.push(at);
        }
        depth += usize::from(matches!(&text[token.clone()], "(" | "[" | "{"));
    }
    found.into_iter()
}

/// The first argument with another type than its function or aggregation needs.
fn argument(text: &str, tokens: &[Range<usize>], tried: &impl Tried) -> Option<usize> {
    let name = &text[tokens[0].clone()];
    let word = |at: usize| tokens.get(at).map_or("", |token| &text[token.clone()]);
    // An aggregation may have its labels before its arguments.
    let groups = matches!(word(1).to_ascii_lowercase().as_str(), "by" | "without");
    let mut opening = at_depth_0(text, tokens).filter(|at| word(*at) == "(");
    let open = opening.nth(usize::from(groups))?;
    let inner = &tokens[open + 1..];
    let mut arguments: Vec<Range<usize>> = vec![];
    let mut depth = 0usize;
    let mut begin = 0;
    for (at, token) in inner.iter().enumerate() {
        match &text[token.clone()] {
            "(" | "[" | "{" => depth += 1,
            "," | ")" if depth == 0 => {
                arguments.push(begin..at);
                begin = at + 1;
                if text[token.clone()] == *")" {
                    break;
                }
            }
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    let wanted = |i: usize| match tried.argument_types(name) {
        Some(types) => types.get(i).or(types.last()).copied(),
        None if i + 1 == arguments.len() => Some(ValueType::Vector),
        None if name.eq_ignore_ascii_case("count_values") => Some(ValueType::String),
        None => Some(ValueType::Scalar),
    };
    let is_wrong = |(i, argument): &(usize, &Range<usize>)| {
        let tokens = &inner[(*argument).clone()];
        let Some((first, last)) = tokens.first().zip(tokens.last()) else {
            return false;
        };
        let found = tried.value_type(&text[first.start..last.end]);
        found.is_some() && found != wanted(*i)
    };
    let (_, wrong) = arguments.iter().enumerate().find(is_wrong)?;
    Some(open + 1 + wrong.start)
}
