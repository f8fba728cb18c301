//! The expression that is evaluated. Parentheses are resolved, types are checked.

use super::matcher::Matcher;

/// A parsed query.
#[derive(Debug, Clone)]
pub struct Query {
    pub(crate) expr: Expr,
    /// Number of selectors; their ids are below it.
    pub selectors: usize,
}

impl Query {
    /// The type of its value in an instant query.
    pub fn value_type(&self) -> ValueType {
        self.expr.value_type()
    }
}

/// What an expression evaluates to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// One number at each step.
    Scalar,
    /// Series with one sample at each step.
    Vector,
    /// Series with many samples at each step.
    Matrix,
    /// A text.
    String,
}

impl ValueType {
    /// The name in Prometheus' API.
    pub fn as_str(self) -> &'static str {
        match self {
            ValueType::Scalar => "scalar",
            ValueType::Vector => "vector",
            ValueType::Matrix => "matrix",
            ValueType::String => "string",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Expr {
    Number(f64),
    String(String),
    Selector(Selector),
    Range { selector: Selector, range_ms: i64 },
    Subquery(Box<Subquery>),
    Negate(Box<Expr>),
    Binary(Box<Binary>),
    Aggregate(Box<Aggregate>),
    Call(Call),
}

impl Expr {
    pub(crate) fn value_type(&self) -> ValueType {
        match self {
            Expr::Number(_) => ValueType::Scalar,
            Expr::String(_) => ValueType::String,
            Expr::Selector(_) | Expr::Aggregate(_) => ValueType::Vector,
            Expr::Range { .. } | Expr::Subquery(_) => ValueType::Matrix,
            Expr::Negate(of) => of.value_type(),
            Expr::Binary(b) => b.value_type,
            Expr::Call(call) => call.function.returns,
        }
    }
}

/// `@`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum At {
    Start,
    End,
    Ms(i64),
}

#[derive(Debug, Clone)]
pub(crate) struct Selector {
    /// Its place in the data that the evaluation gets.
    pub id: usize,
    pub matchers: Vec<Matcher>,
    pub(crate) offset_ms: i64,
    pub at: Option<At>,
}

#[derive(Debug, Clone)]
pub(crate) struct Subquery {
    pub expr: Expr,
    pub range_ms: i64,
    /// `None`: the default interval.
    pub step_ms: Option<i64>,
    pub(crate) offset_ms: i64,
    pub at: Option<At>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Atan2,
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
    And,
    Or,
    Unless,
}

impl BinaryOp {
    pub(crate) fn is_comparison(self) -> bool {
        use BinaryOp::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        matches!(
            self,
            Equal | NotEqual | Greater | Less | GreaterOrEqual | LessOrEqual
        )
    }

    pub(crate) fn is_set(self) -> bool {
        matches!(self, BinaryOp::And | BinaryOp::Or | BinaryOp::Unless)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cardinality {
    OneToOne,
    ManyToOne,
    OneToMany,
}

#[derive(Debug, Clone)]
pub(crate) struct Binary {
    pub op: BinaryOp,
    pub(crate) lhs: Expr,
    pub(crate) rhs: Expr,
    pub(crate) is_bool: bool,
    pub(crate) cardinality: Cardinality,
    /// `on` instead of `ignoring`.
    pub on: bool,
    pub matching: Vec<String>,
    /// The labels of `group_left` or `group_right`.
    pub include: Vec<String>,
    pub fill_left: Option<f64>,
    pub fill_right: Option<f64>,
    pub value_type: ValueType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AggregateOp {
    Sum,
    Avg,
    Count,
    Min,
    Max,
    Group,
    Stddev,
    Stdvar,
    Topk,
    Bottomk,
    Quantile,
    CountValues,
    Limitk,
    LimitRatio,
}

#[derive(Debug, Clone)]
pub(crate) struct Aggregate {
    pub op: AggregateOp,
    pub expr: Expr,
    pub param: Option<Expr>,
    pub without: bool,
    pub grouping: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub function: &'static super::functions::Function,
    pub args: Vec<Expr>,
}
