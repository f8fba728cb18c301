//! Queries over every function, operator, aggregation and form of matching; and random ones from a
//! seed.

use super::data::{HOUR, T0};

/// A query and when it is evaluated.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    pub query: String,
    pub start_ms: i64,
    pub end_ms: i64,
    /// 0 for an instant query.
    pub step_ms: i64,
}

const MAPS: &str = "abs acos acosh asin asinh atan atanh ceil cos cosh deg exp floor ln log10 log2 \
    rad sgn sin sinh sqrt tan tanh day_of_month day_of_week day_of_year days_in_month hour minute \
    month year timestamp sort sort_desc absent round";
const OVER_TIME: &str = "absent_over_time avg_over_time changes count_over_time delta deriv \
    first_over_time idelta increase irate last_over_time mad_over_time max_over_time min_over_time \
    present_over_time rate resets stddev_over_time stdvar_over_time sum_over_time \
    ts_of_first_over_time ts_of_last_over_time ts_of_max_over_time ts_of_min_over_time";
const OPERATORS: &str = "+ - * / % ^ atan2 == != > < >= <=";
const AGGREGATIONS: &str = "sum avg count min max group stddev stdvar";

const HISTOGRAMS: &str = r#"
histogram_quantile(-0.5, rate(took_bucket[10m]))
histogram_quantile(0, rate(took_bucket[10m]))
histogram_quantile(0.1, rate(took_bucket[10m]))
histogram_quantile(0.5, took_bucket)
histogram_quantile(0.5, rate(took_bucket[10m]))
histogram_quantile(0.9, rate(took_bucket[10m]))
histogram_quantile(0.99, sum by (le) (rate(took_bucket[10m])))
histogram_quantile(1, rate(took_bucket[10m]))
histogram_quantile(1.5, rate(took_bucket[10m]))
histogram_quantile(NaN, rate(took_bucket[10m]))
histogram_quantile(scalar(sparse) / 10, rate(took_bucket[10m]))
histogram_quantile(0.9, nothing)
histogram_quantile(0.9, temp)
histogram_quantile(0.9, {__name__=~"took_.+|temp"})
histogram_quantile(0.5, took_bucket{path="/a", le!="+Inf"})
histogram_quantile(0.5, took_bucket * -1)
histogram_fraction(0, 0.5, took_bucket)
histogram_fraction(0.2, 0.7, rate(took_bucket[10m]))
histogram_fraction(-2, 0, took_bucket)
histogram_fraction(-5, 10, took_bucket)
histogram_fraction(-Inf, +Inf, took_bucket)
histogram_fraction(NaN, 1, took_bucket)
histogram_fraction(1, 0, took_bucket)
histogram_fraction(3, 4, took_bucket)
histogram_quantiles(took_bucket, "q", 0.5, 0.9)
histogram_quantiles(rate(took_bucket[10m]), "q", 1, 0.25)
histogram_count(took_bucket)
histogram_sum(took_bucket)
histogram_avg(took_bucket)
histogram_stddev(took_bucket)
histogram_stdvar(temp)
"#;

const OTHERS: &str = r#"
1
-1 ^ 2
2 ^ 3 ^ 2
1 + 2 * 3 % 4
-(3 - 5)
1 / 0
0 / 0
-1 / 0
1 > bool 2
1 == bool 1
"text"
time()
pi()
start()
end()
range()
step()
vector(1)
vector(time())
scalar(temp)
scalar(temp{sensor_id="S1"})
scalar(nothing)
hour()
minute()
day_of_week()
year() * 100 + month()
days_in_month(vector(1708000000))
temp
temp{site="north"}
temp{site!="north"}
temp{site=~"n.*|x"}
temp{site!~"n.*"}
temp{floor=""}
temp{floor!=""}
temp{floor=~".+"}
{__name__=~"temp|hum", site="south"}
{"air.quality-2"}
{"air.quality-2", "tag with space"="x"}
sum by ("tag with space") ({"air.quality-2"})
temp offset 10m
temp offset -10m
temp @ 1700003000
temp @ start()
temp @ end()
temp @ 1700003000 offset 5m
temp offset 5m @ 1700003000
temp[5m]
temp[5m:1m]
temp[5m:]
temp[4m:90s] offset 1m
temp[5m] @ 1700003000
sparse
on_hour
on_hour offset 1h
rate(energy_total[5m] offset 5m)
rate(energy_total[5m] @ 1700003000)
sum_over_time(temp[10m] @ end())
avg_over_time(temp[10m:2m] @ 1700003000)
max_over_time(rate(energy_total[5m])[30m:1m])
max_over_time(rate(energy_total[5m])[30m:7m] offset 3m)
avg_over_time(sum by (site) (temp)[20m:3m])
sum_over_time(sum_over_time(temp[2m])[10m:1m])
last_over_time(temp[5m:1m])
absent_over_time(nothing[5m])
absent_over_time(sparse[10m])
absent_over_time(nothing{a="1",b=~"x",c="2",c="3"}[5m])
absent(nothing)
absent(nothing{site="north", floor=~"1"})
absent(sum(nothing))
absent(temp{site="east"})
quantile_over_time(0.5, temp[10m])
quantile_over_time(0.99, temp[10m])
quantile_over_time(-1, temp[10m])
quantile_over_time(2, temp[10m])
quantile_over_time(scalar(temp{sensor_id="S1"}) / 100, temp[10m])
predict_linear(temp[30m], 600)
predict_linear(temp[30m], -600)
predict_linear(temp[30m] offset 10m, 600)
double_exponential_smoothing(temp[30m], 0.3, 0.6)
double_exponential_smoothing(temp[30m], 2, 0.6)
double_exponential_smoothing(temp[30m], 0.5, 0)
clamp(temp, 0, 10)
clamp(temp, 10, 0)
clamp(temp, NaN, 5)
clamp_min(temp, 3)
clamp_max(temp, 3)
clamp_max(temp, scalar(hum{sensor_id="S1"}))
round(temp, 0.5)
round(temp, 5)
round(temp, -3)
label_replace(temp, "new", "$1-x", "site", "(n)orth")
label_replace(temp, "site", "", "site", "north")
label_replace(temp, "new", "${a}", "site", "(?P<a>.).*")
label_replace(temp, "__name__", "other", "site", ".*")
label_replace(temp, "sensor_id", "same", "sensor_id", ".*")
label_replace(temp, "new", "$1", "site", "(.*")
label_join(temp, "new", "-", "site", "floor")
label_join(temp, "new", "", "nothing")
label_join(temp, "site", "/", "site", "sensor_id", "floor")
sort_by_label(temp, "sensor_id")
sort_by_label_desc(temp, "site", "sensor_id")
timestamp(temp offset 10m)
timestamp(temp + 0)
timestamp(timestamp(temp))
topk(2, temp)
topk(1, temp) by (site)
topk by (site) (1, temp)
topk(0, temp)
topk(100, temp)
topk(NaN, temp)
topk(1e30, temp)
bottomk(2, temp)
bottomk without (sensor_id, floor) (1, temp)
topk(2, temp / 0)
bottomk(2, sqrt(temp))
topk(scalar(sparse), temp)
limitk(2, temp)
limitk by (site) (1, temp)
limit_ratio(0.5, temp)
limit_ratio(-0.5, temp)
limit_ratio(0, temp)
limit_ratio(1.1, {__name__=~".+"})
quantile(0.5, temp)
quantile(0.9, temp) by (site)
quantile(2, temp)
quantile(NaN, temp)
quantile without (floor, sensor_id) (0.25, temp)
count_values("v", temp)
count_values("v", sparse)
count_values by (site) ("v", round(temp, 5))
count_values without (sensor_id) ("v", round(temp, 5))
count_values("site", sgn(temp))
sum(temp) by (site, floor)
sum(temp) without (sensor_id)
sum by () (temp)
sum without () (temp)
sum by (__name__) ({__name__=~"temp|hum"})
sum by (nothing) (temp)
sum(sum by (site) (temp))
avg(temp * 1e308)
sum(temp * 1e308)
min(temp / 0)
max(sqrt(temp))
min(sqrt(temp))
stddev(temp / 0)
temp + hum
temp + on (sensor_id) hum
temp + ignoring (floor) hum
temp * on (site) hum
temp - on (sensor_id, site) group_left () hum
hum / on (sensor_id) group_right (floor) temp
temp * on (site) group_left () (sum by (site) (hum))
sum by (site) (hum) * on (site) group_right () temp
temp * on (site) group_left (floor) (sum by (site, floor) (hum))
temp * ignoring (sensor_id, floor) group_left () (sum by (site) (hum))
temp * on (site) group_left (new) label_replace(sum by (site) (hum), "new", "$1", "site", "(.).*")
temp > hum
temp > bool hum
temp > on (sensor_id) hum
temp == on (sensor_id) group_left () temp
temp != bool temp
temp and hum
temp and on (sensor_id) hum
temp and ignoring (floor) hum
temp or hum
temp or on (site) hum
temp unless hum
temp unless on (sensor_id) hum
temp unless on () nothing
temp and on () vector(1)
temp or vector(5)
vector(5) or temp
temp > 5 or hum < 3
temp > 5 and temp < 10 unless temp == 7
temp > 5
5 > temp
5 > bool temp
temp > bool 5
temp == 2.5
2.5 == temp
temp ^ 2
2 ^ temp
temp % 3
-7 % temp
temp % 0
temp atan2 2
-temp
+temp
-sum(temp)
-{__name__=~"temp|hum", sensor_id="S1"}
abs({__name__=~"temp|hum"})
sum_over_time({__name__=~"temp|hum"}[5m])
last_over_time({__name__=~"temp|hum"}[5m])
temp + {__name__=~"temp|hum"}
{__name__=~"temp|hum"} > 5
{__name__=~"temp|hum"} > bool 5
{__name__=~"temp|hum"} + 1
temp + on (sensor_id) fill (0) hum
temp + on (sensor_id) fill_left (1) fill_right (2) hum
hum + on (sensor_id) fill_left (7) temp
temp + on (nothing) hum
sum(temp) + sum(hum)
sum(temp) / count(temp) == bool avg(temp)
(temp)
((temp)) + ((1))
sum((temp))
count(count by (site) (temp))
group(temp) by (site)
rate(temp[1m])
rate(temp[30s])
increase(energy_total[90s])
delta(temp[1h] offset 30m)
irate(energy_total[61s])
resets(energy_total[3h])
changes(sparse[3h])
deriv(sparse[1h])
rate(sparse[1h])
stddev_over_time(on_hour[3h])
count_over_time(on_hour[1h])
count_over_time(on_hour[1h]) > 1
sum_over_time(on_hour[2h])
min_over_time(temp[1h])
max_over_time(temp[1h])
avg_over_time(temp[1h])
count_over_time(temp[1h])
sum by (site) (avg_over_time(temp[1h]))
temp{sensor_id=~`S\d`}
temp{sensor_id=~"S\\d"}
temp{sensor_id!~`\w\b\d?`, site=`no\rth`}
label_replace(temp, "x", `$1-\d`, "site", `(\w+)`)
label_replace(temp, "x", "$1-\\d", "site", "(\\w+)")
`a\b"c`
temp{sensor_id=~"S[0-9&&1]"}
label_replace(temp, "x", "$1", "site", `(\Qno\E.*|[[]|\163o.th)`)
label_replace(label_replace(temp, "x", "é1", "", ""), "y", "$1", "x", `(\w+)`)
label_replace(label_replace(temp, "x", "é1", "", ""), "y", "$1", "x", `(.\d)`)
label_replace(label_replace(temp, "x", "é1", "", ""), "y", "$1", "x", `.*\b(\w)`)
label_replace(label_replace(temp, "x", "n-[&o", "", ""), "y", "$1", "x", `([a-z&&\-[]*)`)
clamp(temp, Inf, NaN)
clamp(temp, NaN, -Inf)
clamp(temp, -Inf, NaN)
clamp_min(temp / 0 * 0, Inf)
clamp_max(temp / 0 * 0, -Inf)
clamp(temp / 0 * 0, -Inf, Inf)
"#;

/// All fixed queries.
pub(super) fn fixed() -> Vec<Asked> {
    let mut texts: Vec<String> = OTHERS
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    for name in MAPS.split_whitespace() {
        texts.push(format!("{name}(temp)"));
        texts.push(format!("{name}(hum{{site=\"north\"}} / 10)"));
    }
    for name in OVER_TIME.split_whitespace() {
        texts.push(format!("{name}(temp[10m])"));
        texts.push(format!("{name}(energy_total[7m13s])"));
        texts.push(format!("{name}(sparse[1h])"));
        texts.push(format!("{name}(temp{{site=\"south\"}}[17m:3m])"));
    }
    for op in OPERATORS.split_whitespace() {
        let scalar = if op.starts_with(['=', '!', '<', '>']) {
            " bool"
        } else {
            ""
        };
        texts.push(format!("7 {op}{scalar} 3"));
        texts.push(format!("temp {op} 3"));
        texts.push(format!("3 {op} temp"));
        texts.push(format!("temp {op} on (sensor_id) hum"));
        texts.push(format!(
            "temp {op} ignoring (floor, sensor_id) group_left () (avg by (site) (hum))"
        ));
    }
    for op in AGGREGATIONS.split_whitespace() {
        texts.push(format!("{op}(temp)"));
        texts.push(format!("{op} by (site) (temp)"));
        texts.push(format!("{op}(temp) without (sensor_id, floor)"));
        texts.push(format!(
            "{op} by (sensor_id) ({{__name__=~\"temp|hum|sparse\"}})"
        ));
    }
    texts.extend(HISTOGRAMS.trim().lines().map(str::to_owned));
    let mut all = vec![];
    for (i, query) in texts.into_iter().enumerate() {
        // On a full hour, with samples on both edges, and next to it.
        let at = [T0 + 2 * HOUR, T0 + HOUR + 1_234_567][i % 2];
        all.push(Asked {
            query: query.clone(),
            start_ms: at,
            end_ms: at,
            step_ms: 0,
        });
        if i % 3 == 0
            && !query.contains("limit")
            && !is_range_vector(&query)
            && !query.starts_with(['"', '`'])
        {
            all.push(Asked {
                query,
                start_ms: T0 + HOUR,
                end_ms: T0 + 2 * HOUR + 60_000,
                step_ms: 900_000,
            });
        }
    }
    all
}

fn is_range_vector(query: &str) -> bool {
    query.starts_with("temp[")
}

/// A random query.
pub(super) fn random(rng: &mut fastrand::Rng) -> Asked {
    let query = vector(rng, 3);
    let at = T0
        + if rng.bool() {
            rng.i64(0..4) * HOUR
        } else {
            rng.i64(0..4 * HOUR)
        };
    match rng.bool() {
        true => Asked {
            query,
            start_ms: at,
            end_ms: at,
            step_ms: 0,
        },
        false => {
            let step_ms = [15_000, 60_000, 420_000, HOUR][rng.usize(0..4)];
            Asked {
                query,
                start_ms: at,
                end_ms: at + rng.i64(1..12) * step_ms,
                step_ms,
            }
        }
    }
}

fn pick<'a>(rng: &mut fastrand::Rng, words: &'a str) -> &'a str {
    let words: Vec<&str> = words.split_whitespace().collect();
    words[rng.usize(0..words.len())]
}

fn selector(rng: &mut fastrand::Rng) -> String {
    let name = pick(rng, "temp temp hum energy_total sparse on_hour");
    let matchers = [
        "",
        "",
        "{site=\"north\"}",
        "{site!=\"north\"}",
        "{sensor_id=~\"S1|S6\"}",
        "{floor!~\"1\"}",
    ];
    format!("{name}{}", matchers[rng.usize(0..matchers.len())])
}

fn modifiers(rng: &mut fastrand::Rng) -> &'static str {
    [
        "",
        "",
        "",
        " offset 7m",
        " offset -3m",
        " @ 1700003000",
        " @ end()",
        " @ start() offset 1m",
    ][rng.usize(0..8)]
}

fn range(rng: &mut fastrand::Rng) -> &'static str {
    ["1m", "5m", "7m13s", "30m", "1h", "2h", "90s"][rng.usize(0..7)]
}

fn labels(rng: &mut fastrand::Rng) -> &'static str {
    ["site", "site, floor", "sensor_id", "", "floor", "__name__"][rng.usize(0..6)]
}

fn scalar(rng: &mut fastrand::Rng) -> String {
    [
        "2",
        "-3.5",
        "0",
        "time()",
        "1e3",
        "scalar(sum(temp))",
        "pi()",
    ][rng.usize(0..7)]
    .to_owned()
}

fn vector(rng: &mut fastrand::Rng, depth: u32) -> String {
    if depth == 0 {
        return format!("{}{}", selector(rng), modifiers(rng));
    }
    match rng.u32(0..10) {
        0..=2 => over_time(rng, depth),
        // Not the maps that amplify rounding without bound, nor dates, which are undefined for NaN.
        3 => format!(
            "{}({})",
            pick(rng, "abs ceil floor sqrt sgn round ln sort timestamp"),
            vector(rng, depth - 1)
        ),
        4 | 5 => {
            let modifier = ["by", "without"][rng.usize(0..2)];
            format!(
                "{} {modifier} ({}) ({})",
                pick(rng, AGGREGATIONS),
                labels(rng),
                vector(rng, depth - 1)
            )
        }
        6 => format!(
            "{} {} {}",
            vector(rng, depth - 1),
            pick(rng, "+ - * / > < >= <="),
            scalar(rng)
        ),
        7 => {
            let matching = [
                "",
                "on (sensor_id)",
                "ignoring (floor)",
                "on (site)",
                "on (site) group_left ()",
            ];
            let matching = matching[rng.usize(0..matching.len())];
            let op = pick(rng, "+ - * / > < >= <=");
            format!(
                "({}) {op} {matching} ({})",
                vector(rng, depth - 1),
                vector(rng, depth - 1)
            )
        }
        8 => {
            let matching = ["", "on (sensor_id)", "ignoring (floor)", "on (site)"][rng.usize(0..4)];
            let op = pick(rng, "and or unless");
            format!(
                "({}) {op} {matching} ({})",
                vector(rng, depth - 1),
                vector(rng, depth - 1)
            )
        }
        _ => format!("-({})", vector(rng, depth - 1)),
    }
}

fn over_time(rng: &mut fastrand::Rng, depth: u32) -> String {
    let function = pick(rng, OVER_TIME);
    match rng.u32(0..3) {
        0 => format!(
            "{function}(({})[{}:{}])",
            vector(rng, depth - 1),
            range(rng),
            pick(rng, "1m 70s 5m")
        ),
        1 => format!(
            "quantile_over_time(0.{}, {}[{}])",
            rng.u32(0..10),
            selector(rng),
            range(rng)
        ),
        _ => format!(
            "{function}({}[{}]{})",
            selector(rng),
            range(rng),
            modifiers(rng)
        ),
    }
}
