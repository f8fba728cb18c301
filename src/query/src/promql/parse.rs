//! Parses text to the expression that is evaluated, with the crate `promql-parser`, which only this
//! module uses. Its tree is converted and its gaps are closed: types of all arguments, extensions
//! that PromQL does not have, numbers that it cannot represent.

use std::ops::Range;
use std::panic::catch_unwind;
use std::time::{Duration, SystemTime};

use promql_parser::label::{MatchOp, Matchers};
use promql_parser::parser as p;
use promql_parser::parser::token as t;

use super::ast::{
    Aggregate, AggregateOp, At, Binary, BinaryOp, Call, Cardinality, Expr, Query, Selector,
    Subquery, ValueType,
};
use super::at_times;
use super::durations::as_parsed;
use super::error::PromqlError;
use super::extension;
use super::functions::{self, Function, Kind};
use super::guard;
use super::labels::METRIC_NAME;
use super::matcher::Matcher;
use super::place::{Tried, place};
use super::raw_strings::in_double_quotes;
use super::regex_texts::{marked, text_of, unmarked};
use super::unexpected::{line_and_column, tokens, unexpected};

/// The parser's text for a query whose tokens are in no order that it knows.
const UNKNOWN_SYNTAX: &str = "invalid promql query";
/// The beginning of the text of an error, after its place.
const PARSE_ERROR: &str = "parse error: ";
/// How the errors of regular expressions begin.
const REGEX_ERRORS: [&str; 2] = ["error parsing regexp", "regular expression needs"];

/// Parses a query.
///
/// # Errors
/// It is not valid, too large, or uses an unsupported feature.
pub fn parse(text: &str) -> Result<Query, PromqlError> {
    converted(text, true).map_err(|error| placed(text, error))
}

/// `compiles`: whether regular expressions are; otherwise they stand for any text.
fn converted(text: &str, compiles: bool) -> Result<Query, PromqlError> {
    let parsed = parsed(text)?;
    let mut convert = Convert {
        selectors: 0,
        are_extended: extension::are_extended(text).into_iter(),
        compiles,
    };
    let expr = convert.expr(parsed)?;
    Ok(Query {
        expr,
        selectors: convert.selectors,
    })
}

/// The query in Prometheus' layout.
///
/// # Errors
/// As [`parse`].
pub fn format(text: &str) -> Result<String, PromqlError> {
    parse(text)?;
    let (text, are_negative) = at_times::positive(text);
    let formatted = unmarked(&parsed(&text)?.prettify());
    let formatted = at_times::signed(&formatted, &are_negative);
    Ok(extension::extended(
        &formatted,
        &extension::are_extended(&text),
    ))
}

/// The matchers of a series selector (`match[]`).
///
/// # Errors
/// It is not a selector, or selects everything.
pub fn parse_selector(text: &str) -> Result<Vec<Matcher>, PromqlError> {
    let wrong = || PromqlError::bad_data(format!("{text:?} is not a series selector"));
    let is_plain = |vs: &p::VectorSelector| vs.offset.is_none() && vs.at.is_none();
    let found = parsed(text).and_then(|found| match found {
        p::Expr::VectorSelector(vs) if is_plain(&vs) => matchers(vs.name, vs.matchers, true),
        _ => Err(wrong()),
    });
    found.map_err(|error| match error {
        PromqlError::BadData(detail) if detail.contains("at least one non-empty matcher") => {
            PromqlError::bad_data("match[] must contain at least one non-empty matcher")
        }
        error => match placed(text, error) {
            PromqlError::BadData(detail) => {
                PromqlError::bad_data(format!("invalid parameter \"match[]\": {detail}"))
            }
            error => error,
        },
    })
}

fn parsed(text: &str) -> Result<p::Expr, PromqlError> {
    guard::check(text)?;
    match catch_unwind(|| p::parse(&readable(text))) {
        Ok(Ok(parsed)) => Ok(parsed),
        Ok(Err(detail)) => Err(invalid(detail)),
        Err(_) => Err(invalid("the query cannot be represented")),
    }
}

/// The error with its place.
fn placed(text: &str, error: PromqlError) -> PromqlError {
    let PromqlError::BadData(detail) = &error else {
        return error;
    };
    let Some(problem) = detail.strip_prefix(PARSE_ERROR) else {
        let is_of_regex = REGEX_ERRORS.iter().any(|begin| detail.starts_with(begin));
        let found = is_of_regex.then(|| regex_place(text, &error)).flatten();
        return match found {
            Some(at) => PromqlError::bad_data(format!("{at}: {PARSE_ERROR}{detail}")),
            None => error,
        };
    };
    let found = match problem {
        UNKNOWN_SYNTAX => unexpected(text, is_parsed),
        _ => place(text, problem, &TriedParts(&error)).map(|at| (at, problem.to_owned())),
    };
    match found {
        Some((at, what)) => PromqlError::bad_data(format!("{at}: {PARSE_ERROR}{what}")),
        None => error,
    }
}

/// Parts of a query with this error.
struct TriedParts<'e>(&'e PromqlError);

impl Tried for TriedParts<'_> {
    fn is_same_error(&self, part: &str) -> bool {
        converted(part, false).is_err_and(|error| error == *self.0)
    }

    fn value_type(&self, part: &str) -> Option<ValueType> {
        let query = converted(part, false).ok()?;
        Some(query.expr.value_type())
    }

    fn argument_types(&self, function: &str) -> Option<&'static [ValueType]> {
        functions::find(function).map(|function| function.args)
    }
}

/// The place of the label whose regular expression has this error.
fn regex_place(text: &str, error: &PromqlError) -> Option<String> {
    let tokens = tokens(text);
    let is_wrong = |three: &&[Range<usize>]| {
        let [_, op, value] = three else { return false };
        let op = &text[op.clone()];
        let matcher = format!("{{a=\"a\",b{op}{}}}", &text[value.clone()]);
        matches!(op, "=~" | "!~") && converted(&matcher, true).is_err_and(|found| found == *error)
    };
    let wrong = tokens.windows(3).find(is_wrong)?;
    Some(line_and_column(text, wrong[0].start))
}

/// The query as the parser reads it.
fn readable(text: &str) -> String {
    marked(&in_double_quotes(&as_parsed(&extension::standard(text))))
}

/// Whether the parser knows the syntax, whatever the query means.
fn is_parsed(text: &str) -> bool {
    let text = readable(text);
    p::lexer(&text).is_ok()
        && !matches!(catch_unwind(|| p::parse(&text)), Ok(Err(detail)) if detail == UNKNOWN_SYNTAX)
}

impl Query {
    /// Checks that the expression has a value at each step of a range query.
    ///
    /// # Errors
    /// It is a string or a range vector.
    pub(crate) fn check_steps(&self) -> Result<(), PromqlError> {
        match self.expr.value_type() {
            ValueType::Scalar | ValueType::Vector => Ok(()),
            other => Err(PromqlError::bad_data(format!(
                "invalid expression type {:?} for range query, must be Scalar or instant Vector",
                type_name(other)
            ))),
        }
    }
}

struct Convert {
    selectors: usize,
    /// Of the calls of `quantile_over_time` that are still to come.
    are_extended: std::vec::IntoIter<bool>,
    compiles: bool,
}

impl Convert {
    fn expr(&mut self, expr: p::Expr) -> Result<Expr, PromqlError> {
        Ok(match expr {
            p::Expr::NumberLiteral(number) => Expr::Number(number.val),
            p::Expr::StringLiteral(text) => Expr::String(text.val),
            p::Expr::Paren(paren) => self.expr(*paren.expr)?,
            p::Expr::VectorSelector(vs) => Expr::Selector(self.selector(vs)?),
            p::Expr::MatrixSelector(ms) => Expr::Range {
                range_ms: positive_ms(ms.range)?,
                selector: self.selector(ms.vs)?,
            },
            p::Expr::Subquery(sub) => self.subquery(sub)?,
            p::Expr::Unary(unary) => {
                let of = self.expr(*unary.expr)?;
                match of.value_type() {
                    ValueType::Scalar | ValueType::Vector => Expr::Negate(Box::new(of)),
                    other => {
                        let name = type_name(other);
                        return Err(invalid(format!(
                            "unary expression only allowed on expressions of type scalar or \
                             instant vector, got {name:?}"
                        )));
                    }
                }
            }
            p::Expr::Binary(binary) => self.binary(binary)?,
            p::Expr::Aggregate(aggregate) => self.aggregate(aggregate)?,
            p::Expr::Call(call) => self.call(call)?,
            p::Expr::Extension(_) => return Err(invalid("unknown kind of expression")),
        })
    }

    fn selector(&mut self, vs: p::VectorSelector) -> Result<Selector, PromqlError> {
        let id = self.selectors;
        self.selectors += 1;
        let offset_ms = offset_ms(vs.offset.as_ref())?;
        // A time that is out of range is too far away for any sample, with every offset.
        let far = At::Ms(MS_MAX);
        let at = vs.at.as_ref().map(|found| at(found).unwrap_or(far));
        Ok(Selector {
            id,
            matchers: matchers(vs.name, vs.matchers, self.compiles)?,
            offset_ms,
            at,
        })
    }

    fn subquery(&mut self, sub: p::SubqueryExpr) -> Result<Expr, PromqlError> {
        let expr = self.expr(*sub.expr)?;
        expect(&expr, ValueType::Vector, "subquery")?;
        Ok(Expr::Subquery(Box::new(Subquery {
            expr,
            range_ms: positive_ms(sub.range)?,
            step_ms: sub.step.map(positive_ms).transpose()?,
            offset_ms: offset_ms(sub.offset.as_ref())?,
            at: sub.at.as_ref().map(at).transpose()?,
        })))
    }

    fn binary(&mut self, binary: p::BinaryExpr) -> Result<Expr, PromqlError> {
        let op = binary_op(binary.op.id())?;
        let modifier = binary.modifier.unwrap_or_default();
        let lhs = self.expr(*binary.lhs)?;
        let rhs = self.expr(*binary.rhs)?;
        for side in [&lhs, &rhs] {
            if !matches!(side.value_type(), ValueType::Scalar | ValueType::Vector) {
                return Err(invalid(
                    "binary expression must contain only scalar and instant vector types",
                ));
            }
        }
        let both_scalar =
            lhs.value_type() == ValueType::Scalar && rhs.value_type() == ValueType::Scalar;
        if modifier.return_bool && !op.is_comparison() {
            return Err(invalid(
                "bool modifier can only be used on comparison operators",
            ));
        }
        if both_scalar && op.is_comparison() && !modifier.return_bool {
            return Err(invalid(
                "comparisons between scalars must use BOOL modifier",
            ));
        }
        if op.is_set()
            && (lhs.value_type() == ValueType::Scalar || rhs.value_type() == ValueType::Scalar)
        {
            return Err(invalid(format!(
                "set operator {:?} not allowed in binary scalar expression",
                set_name(op)
            )));
        }
        let (cardinality, include) = match modifier.card {
            p::VectorMatchCardinality::ManyToOne(labels) => (Cardinality::ManyToOne, labels.labels),
            p::VectorMatchCardinality::OneToMany(labels) => (Cardinality::OneToMany, labels.labels),
            p::VectorMatchCardinality::OneToOne | p::VectorMatchCardinality::ManyToMany => {
                (Cardinality::OneToOne, vec![])
            }
        };
        let (on, matching) = match modifier.matching {
            Some(p::LabelModifier::Include(labels)) => (true, labels.labels),
            Some(p::LabelModifier::Exclude(labels)) => (false, labels.labels),
            None => (false, vec![]),
        };
        let value_type = if both_scalar {
            ValueType::Scalar
        } else {
            ValueType::Vector
        };
        Ok(Expr::Binary(Box::new(Binary {
            op,
            lhs,
            rhs,
            is_bool: modifier.return_bool,
            cardinality,
            on,
            matching,
            include,
            fill_left: modifier.fill_values.lhs,
            fill_right: modifier.fill_values.rhs,
            value_type,
        })))
    }

    fn aggregate(&mut self, aggregate: p::AggregateExpr) -> Result<Expr, PromqlError> {
        let op = aggregate_op(aggregate.op.id())?;
        let param = aggregate.param.map(|param| self.expr(*param)).transpose()?;
        let expr = self.expr(*aggregate.expr)?;
        expect(&expr, ValueType::Vector, "aggregation expression")?;
        if let Some(param) = &param {
            let wanted = if op == AggregateOp::CountValues {
                ValueType::String
            } else {
                ValueType::Scalar
            };
            expect(param, wanted, "aggregation parameter")?;
        }
        let (without, grouping) = match aggregate.modifier {
            Some(p::LabelModifier::Include(labels)) => (false, labels.labels),
            Some(p::LabelModifier::Exclude(labels)) => (true, labels.labels),
            None => (false, vec![]),
        };
        Ok(Expr::Aggregate(Box::new(Aggregate {
            op,
            expr,
            param,
            without,
            grouping,
        })))
    }

    fn call(&mut self, call: p::Call) -> Result<Expr, PromqlError> {
        let is_extended =
            call.func.name == "quantile_over_time" && self.are_extended.next().unwrap_or_default();
        let name = match is_extended {
            true => extension::NAME,
            false => call.func.name,
        };
        let function = functions::find(name)
            .ok_or_else(|| invalid(format!("unknown function with name {name:?}")))?;
        if matches!(function.kind, Kind::Unsupported) {
            return Err(invalid(format!(
                "function {name:?} is not supported: hourbucket stores no info metrics; \
                 docs/promql.md lists the supported features"
            )));
        }
        let mut args = call
            .args
            .args
            .into_iter()
            .map(|arg| self.expr(*arg))
            .collect::<Result<Vec<_>, _>>()?;
        check_args(function, &args)?;
        // With `@`, Prometheus' `timestamp` ignores an offset.
        if let ("timestamp", [Expr::Selector(selector)]) = (name, &mut args[..])
            && selector.at.is_some()
        {
            selector.offset_ms = 0;
        }
        Ok(Expr::Call(Call { function, args }))
    }
}

fn check_args(function: &Function, args: &[Expr]) -> Result<(), PromqlError> {
    let name = function.name;
    let most = function.args.len();
    let got = args.len();
    let least = if function.optional == 0 {
        most
    } else {
        most - 1
    };
    if function.optional == 0 && got != most {
        return Err(invalid(format!(
            "expected {most} argument(s) in call to {name:?}, got {got}"
        )));
    }
    if got < least {
        return Err(invalid(format!(
            "expected at least {least} argument(s) in call to {name:?}, got {got}"
        )));
    }
    if function.optional > 0 && got > most {
        return Err(invalid(format!(
            "expected at most {most} argument(s) in call to {name:?}, got {got}"
        )));
    }
    for (i, arg) in args.iter().enumerate() {
        let wanted = function.args[i.min(most - 1)];
        expect(arg, wanted, &format!("call to function {name:?}"))?;
    }
    Ok(())
}

fn invalid(text: impl Into<String>) -> PromqlError {
    PromqlError::bad_data(format!("{PARSE_ERROR}{}", text.into()))
}

fn type_name(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::Scalar => "scalar",
        ValueType::Vector => "instant vector",
        ValueType::Matrix => "range vector",
        ValueType::String => "string",
    }
}

fn expect(expr: &Expr, wanted: ValueType, place: &str) -> Result<(), PromqlError> {
    match expr.value_type() {
        got if got == wanted => Ok(()),
        got => Err(invalid(format!(
            "expected type {} in {place}, got {}",
            type_name(wanted),
            type_name(got)
        ))),
    }
}

fn matchers(
    name: Option<String>,
    of: Matchers,
    compiles: bool,
) -> Result<Vec<Matcher>, PromqlError> {
    if !of.or_matchers.is_empty() {
        return Err(invalid(
            "unexpected \"or\" in label matching; use separate selectors joined by `or`",
        ));
    }
    let mut all: Vec<Matcher> = vec![];
    if let Some(name) = name {
        if of.matchers.iter().any(|m| m.name == METRIC_NAME) {
            return Err(invalid(format!(
                "metric name must not be set twice: {name:?}"
            )));
        }
        all.push(Matcher::equal(METRIC_NAME, name));
    }
    for matcher in of.matchers {
        let (text, is_regex) = text_of(matcher.value);
        all.push(match (matcher.op, is_regex) {
            (_, true) if !compiles && text != ".*" => Matcher::equal(matcher.name, "any"),
            (MatchOp::Equal, false) => Matcher::equal(matcher.name, text),
            (MatchOp::NotEqual, false) => Matcher::not_equal(matcher.name, text),
            (MatchOp::Equal | MatchOp::Re(_), _) => Matcher::regex(matcher.name, text, true)?,
            (MatchOp::NotEqual | MatchOp::NotRe(_), _) => {
                Matcher::regex(matcher.name, text, false)?
            }
        });
    }
    if all.iter().all(|m| m.matches("")) {
        return Err(invalid(
            "vector selector must contain at least one non-empty matcher",
        ));
    }
    Ok(all)
}

/// Times and durations beyond these would overflow sums of milliseconds: 30,000 years.
const MS_MAX: i64 = 1_000_000_000_000_000;

fn ms(duration: Duration) -> Result<i64, PromqlError> {
    let ms = i64::try_from(duration.as_millis())
        .ok()
        .filter(|ms| *ms <= MS_MAX);
    ms.ok_or_else(|| invalid("duration out of range"))
}

fn positive_ms(duration: Duration) -> Result<i64, PromqlError> {
    match ms(duration)? {
        0 => Err(invalid("duration must be greater than 0")),
        ms => Ok(ms),
    }
}

fn offset_ms(offset: Option<&p::Offset>) -> Result<i64, PromqlError> {
    match offset {
        None => Ok(0),
        Some(p::Offset::Pos(by)) => ms(*by),
        Some(p::Offset::Neg(by)) => Ok(-ms(*by)?),
    }
}

fn at(at: &p::AtModifier) -> Result<At, PromqlError> {
    Ok(match at {
        p::AtModifier::Start => At::Start,
        p::AtModifier::End => At::End,
        p::AtModifier::At(time) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => At::Ms(ms(after)?),
            Err(before) => At::Ms(-ms(before.duration())?),
        },
    })
}

fn binary_op(id: t::TokenId) -> Result<BinaryOp, PromqlError> {
    Ok(match id {
        t::T_ADD => BinaryOp::Add,
        t::T_SUB => BinaryOp::Sub,
        t::T_MUL => BinaryOp::Mul,
        t::T_DIV => BinaryOp::Div,
        t::T_MOD => BinaryOp::Mod,
        t::T_POW => BinaryOp::Pow,
        t::T_ATAN2 => BinaryOp::Atan2,
        t::T_EQLC => BinaryOp::Equal,
        t::T_NEQ => BinaryOp::NotEqual,
        t::T_GTR => BinaryOp::Greater,
        t::T_LSS => BinaryOp::Less,
        t::T_GTE => BinaryOp::GreaterOrEqual,
        t::T_LTE => BinaryOp::LessOrEqual,
        t::T_LAND => BinaryOp::And,
        t::T_LOR => BinaryOp::Or,
        t::T_LUNLESS => BinaryOp::Unless,
        _ => return Err(invalid("unknown operator")),
    })
}

fn set_name(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::And => "and",
        BinaryOp::Or => "or",
        _ => "unless",
    }
}

fn aggregate_op(id: t::TokenId) -> Result<AggregateOp, PromqlError> {
    Ok(match id {
        t::T_SUM => AggregateOp::Sum,
        t::T_AVG => AggregateOp::Avg,
        t::T_COUNT => AggregateOp::Count,
        t::T_MIN => AggregateOp::Min,
        t::T_MAX => AggregateOp::Max,
        t::T_GROUP => AggregateOp::Group,
        t::T_STDDEV => AggregateOp::Stddev,
        t::T_STDVAR => AggregateOp::Stdvar,
        t::T_TOPK => AggregateOp::Topk,
        t::T_BOTTOMK => AggregateOp::Bottomk,
        t::T_QUANTILE => AggregateOp::Quantile,
        t::T_COUNT_VALUES => AggregateOp::CountValues,
        t::T_LIMITK => AggregateOp::Limitk,
        t::T_LIMIT_RATIO => AggregateOp::LimitRatio,
        _ => return Err(invalid("unknown aggregation")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_formatted_as_by_prometheus() {
        for (text, wanted) in [
            (r#"temp{a=~`S\d"`}"#, r#"temp{a=~"S\\d\""}"#),
            ("`a\\\té`", r#""a\\\té""#),
            (r#"temp{a="`\\d`"} # `\d"#, r#"temp{a="`\\d`"}"#),
            ("temp @ -5", "temp @ -5.000"),
            ("temp @ 5", "temp @ 5.000"),
            (
                r#"sum_over_time((a{b="@ 0.000"} @ 0 + c @ -1.5)[5m:1m] @ -0.001) + d @ start()"#,
                r#"sum_over_time((a{b="@ 0.000"} @ 0.000 + c @ -1.500)[5m:1m] @ -0.001) + d @ start()"#,
            ),
        ] {
            assert_eq!(format(text).unwrap(), wanted);
        }
    }

    /// The crate of the parser knows another dialect.
    #[test]
    fn regular_expressions_are_those_of_re2() {
        for (text, value) in [
            (r"[\w-.]+", "a-b.c"),
            (r"[\w-:]+", "a:b-c"),
            (r"[\d-z]", "z"),
            ("[[]", "["),
            (r"\Qa.b\E", "a.b"),
            (r"\101", "A"),
        ] {
            let found = parse_selector(&format!("temp{{a=~`{text}`, b!~'x', c=\"=~\", d!=`~`}}"));
            let found = found.unwrap();
            let shown: Vec<String> = found.iter().skip(1).map(ToString::to_string).collect();
            let quoted = text.replace('\\', "\\\\");
            let wanted = [
                format!("a=~\"{quoted}\""),
                "b!~\"x\"".to_owned(),
                "c=\"=~\"".to_owned(),
                "d!=\"~\"".to_owned(),
            ];
            assert_eq!(shown, wanted);
            assert!(found[1].matches(value), "{text}");
        }
        let error = parse("temp{a=~`(`}").unwrap_err().to_string();
        assert!(error.contains("error parsing regexp"), "{error}");
    }

    #[test]
    fn a_selector_may_have_a_time_without_samples() {
        for text in ["temp @ 1e15", "sum_over_time(temp[5m] @ -1e15)"] {
            assert!(parse(text).is_ok(), "{text}");
        }
        // Its values depend on the time.
        assert!(parse("sum_over_time(vector(time())[5m:1m] @ 1e15)").is_err());
    }

    #[test]
    fn durations_of_zero_and_long_ones_are_read_as_by_prometheus() {
        for (text, offset_ms) in [
            ("temp offset 0s", 0),
            ("temp offset -0s", 0),
            ("temp offset 5184000000ms", 5_184_000_000),
            ("temp offset -5184000001ms", -5_184_000_001),
        ] {
            let Expr::Selector(selector) = parse(text).unwrap().expr else {
                panic!("{text}")
            };
            assert_eq!(selector.offset_ms, offset_ms, "{text}");
        }
        assert_eq!(
            format("rate(temp[5184000000ms])").unwrap(),
            "rate(temp[60d])"
        );
        assert!(matches!(
            parse("0s + 4294967296ms").unwrap().expr,
            Expr::Binary(_)
        ));
        for text in ["rate(temp[0s])", "max_over_time(temp[5m:0s])"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("greater than 0"), "{text}: {error}");
        }
    }

    #[test]
    fn a_range_query_needs_a_scalar_or_an_instant_vector() {
        for (text, refused) in [
            ("1", None),
            ("temp", None),
            ("(`a`)", Some("string")),
            ("temp[5m:1m]", Some("range vector")),
        ] {
            let error = parse(text).unwrap().check_steps().err();
            let wanted = refused.map(|name| {
                PromqlError::bad_data(format!(
                    "invalid expression type {name:?} for range query, must be Scalar or instant \
                     Vector"
                ))
            });
            assert_eq!(error, wanted, "{text}");
        }
    }
}
