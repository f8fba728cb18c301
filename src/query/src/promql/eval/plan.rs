//! Which samples the selectors of a query need.

use super::grid::{Grid, QueryTime, SUBQUERY_STEP_MS};
use crate::promql::ast::{At, Expr, Query, Selector, Subquery};
use crate::promql::functions::{Kind, OverTime};
use crate::promql::series::AnsweredBy;
use crate::promql::series::{SelectorRequest, Windows};

/// What must be read for a query: one request for each selector, by their numbers.
pub fn requests(query: &Query, time: QueryTime) -> Vec<SelectorRequest> {
    let plan = Plan::new(query, time);
    let none = || SelectorRequest::of_samples(vec![], 0, 0);
    plan.requests
        .into_iter()
        .map(|request| request.unwrap_or_else(none))
        .collect()
}

/// The steps of all expressions of a query, those of its subqueries included.
pub(crate) fn steps(query: &Query, time: QueryTime) -> u64 {
    Plan::new(query, time).steps
}

/// The steps at which a subquery's expression is evaluated: multiples of its interval, counted from
/// 1970, in the windows of all outer steps.
pub(super) fn inner_grid(subquery: &Subquery, at: Option<i64>, outer: Grid) -> Grid {
    let step_ms = subquery.step_ms.unwrap_or(SUBQUERY_STEP_MS);
    let (first, last) = match at {
        Some(at) => (at, at),
        None => (outer.start_ms, outer.last_ms()),
    };
    let after = first - subquery.offset_ms - subquery.range_ms;
    // Towards zero, as in Prometheus, and then up to the first step that is in the window.
    let mut start_ms = step_ms * (after / step_ms);
    if start_ms <= after {
        start_ms += step_ms;
    }
    Grid {
        start_ms,
        end_ms: last - subquery.offset_ms,
        step_ms,
    }
}

struct Plan {
    time: QueryTime,
    requests: Vec<Option<SelectorRequest>>,
    steps: u64,
}

impl Plan {
    fn new(query: &Query, time: QueryTime) -> Plan {
        let mut plan = Plan {
            time,
            requests: vec![None; query.selectors],
            steps: 0,
        };
        plan.expr(&query.expr, time.grid());
        plan
    }

    fn expr(&mut self, expr: &Expr, grid: Grid) {
        self.steps = self.steps.saturating_add(grid.steps() as u64);
        match expr {
            Expr::Number(_) | Expr::String(_) => {}
            Expr::Selector(selector) => self.selector(selector, grid, self.time.lookback_ms, None),
            Expr::Range { selector, range_ms } => {
                self.selector(selector, grid, *range_ms, None);
                // It is the whole query, not the argument of a function.
                if let Some(request) = &mut self.requests[selector.id] {
                    request.keeps_samples = true;
                }
            }
            Expr::Subquery(subquery) => {
                let inner = inner_grid(subquery, self.resolve(subquery.at), grid);
                self.expr(&subquery.expr, inner);
            }
            Expr::Negate(of) => self.expr(of, grid),
            Expr::Binary(binary) => {
                self.expr(&binary.lhs, grid);
                self.expr(&binary.rhs, grid);
            }
            Expr::Aggregate(aggregate) => {
                aggregate
                    .param
                    .iter()
                    .for_each(|param| self.expr(param, grid));
                self.expr(&aggregate.expr, grid);
            }
            Expr::Call(call) => {
                let over_time = match call.function.kind {
                    Kind::OverTime(over_time) => Some(over_time),
                    _ => None,
                };
                for arg in &call.args {
                    match arg {
                        Expr::Range { selector, range_ms } => {
                            self.selector(selector, grid, *range_ms, over_time)
                        }
                        other => self.expr(other, grid),
                    }
                }
            }
        }
    }

    fn resolve(&self, at: Option<At>) -> Option<i64> {
        at.map(|at| match at {
            At::Start => self.time.start_ms,
            At::End => self.time.end_ms,
            At::Ms(ms) => ms,
        })
    }

    fn selector(
        &mut self,
        selector: &Selector,
        grid: Grid,
        range_ms: i64,
        over_time: Option<OverTime>,
    ) {
        let steps = grid.steps();
        if steps == 0 {
            return;
        }
        let (first, steps) = match self.resolve(selector.at) {
            Some(at) => (at, 1),
            None => (grid.start_ms, steps),
        };
        let needs = |functions: &[OverTime]| over_time.is_some_and(|f| functions.contains(&f));
        self.requests[selector.id] = Some(SelectorRequest {
            matchers: selector.matchers.clone(),
            windows: Windows {
                first_end_ms: first - selector.offset_ms,
                step_ms: grid.step_ms,
                steps,
                range_ms,
                needs_sum: needs(&[OverTime::Sum, OverTime::Avg]),
                needs_min: needs(&[OverTime::Min]),
                needs_max: needs(&[OverTime::Max]),
            },
            answered_by: over_time.map_or(AnsweredBy::Samples, OverTime::answered_by),
            keeps_samples: false,
        });
    }
}
