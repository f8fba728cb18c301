//! Errors name their place, those of syntax the token that cannot be there.

use query::promql;

use super::queries::{fixed, random};

fn error(query: &str) -> String {
    promql::parse(query).unwrap_err().to_string()
}

#[test]
fn usual_mistakes_are_named_with_their_place() {
    for (query, wanted) in [
        (
            "sum(temp) by site",
            "1:14: parse error: unexpected \"site\"",
        ),
        (
            "sum(temp) by (site",
            "1:19: parse error: unclosed left parenthesis",
        ),
        (
            "sum by (site) temp",
            "1:15: parse error: unexpected \"temp\"",
        ),
        ("temp humid", "1:6: parse error: unexpected \"humid\""),
        ("temp +", "1:7: parse error: unexpected end of the query"),
        (
            "sum by (site)  ",
            "1:14: parse error: unexpected end of the query",
        ),
        (
            "rate(temp[5m]) * * 2",
            "1:18: parse error: unexpected \"*\"",
        ),
        (
            "temp{site=\"a\" floor=\"b\"}",
            "1:15: parse error: unexpected \"floor\"",
        ),
        ("temp{=\"a\"}", "1:6: parse error: unexpected \"=\""),
        (
            "temp{\n  site=\"a\"\n  floor=\"b\"}",
            "3:3: parse error: unexpected \"floor\"",
        ),
        (
            "temp # \"a\n  + é\"\" \"b\"",
            "2:5: parse error: unexpected character: 'é'",
        ),
        (
            "temp # \"a\n  + \"é\" \"b\"",
            "2:9: parse error: unexpected \"\\\"b\\\"\"",
        ),
        ("temp offset temp", "1:13: parse error: unexpected \"temp\""),
        ("temp @ 1e-5 5", "1:13: parse error: unexpected \"5\""),
        ("a:b c:d", "1:5: parse error: unexpected \"c:d\""),
        (
            "temp == bool bool 1",
            "1:14: parse error: unexpected \"bool\"",
        ),
        (
            "temp on (site) humid",
            "1:6: parse error: unexpected \"on\"",
        ),
    ] {
        assert_eq!(error(query), wanted, "{query}");
    }
    let long = format!("temp {}", "humid".repeat(1000));
    assert_eq!(error(&long), "parse error: invalid promql query");
    let long = format!("temp {}", "humid".repeat(100));
    assert!(error(&long).len() < 100);
}

/// The places are those of Prometheus' parser; the texts are not compared.
#[test]
fn errors_of_meaning_have_the_place_of_prometheus() {
    for (query, at) in [
        ("rate(temp)", "1:6"),
        ("sum(rate(temp)) + rate(humid)", "1:10"),
        ("sum by (site) (temp[5m])", "1:16"),
        ("quantile_over_time(temp, temp[5m])", "1:20"),
        ("clamp(temp, 1,\n temp)", "2:2"),
        ("topk(temp, humid)", "1:6"),
        ("count_values(1, humid)", "1:14"),
        ("1 + abs((temp[5m]))", "1:9"),
        ("1 > 2", "1:3"),
        ("temp + (1 == 2)", "1:11"),
        ("1 + 1 > 2", "1:7"),
        ("temp + bool 2", "1:6"),
        ("sum(temp) and 1", "1:1"),
        ("1 + (sum by (a) (temp) and 1)", "1:6"),
        ("temp * on (a) group_left (a) humid", "1:6"),
        ("temp + \"a\"", "1:8"),
        ("-temp[5m]", "1:1"),
        ("1 + -\"a\"", "1:5"),
        ("sum(temp)[5m]", "1:10"),
        ("abs(temp offset 1m [5m])", "1:20"),
        ("rate(temp[0s])", "1:11"),
        ("temp offset 1m offset 2m", "1:1"),
        ("1 + sum(temp) offset 1m", "1:5"),
        ("abs()", "1:1"),
        ("1 + abs(temp, humid)", "1:5"),
        ("1 + nosuch(temp)", "1:5"),
        ("sum(temp, humid)", "1:1"),
        ("temp + {}", "1:8"),
        ("temp{site=~\".*\"} + {site=~\".*\"}", "1:20"),
        ("temp + temp{site=~\"(\"}", "1:13"),
        ("temp + )", "1:9"),
        ("temp{site=\"a\"", "1:14"),
        ("temp + 'a", "1:8"),
    ] {
        let found = error(query);
        assert!(
            found.starts_with(&format!("{at}: parse error: ")),
            "{query}: {found}, wanted {at}"
        );
    }
}

#[test]
fn errors_of_selectors_name_the_parameter() {
    for (selector, wanted) in [
        (
            "temp{a=\"b\" c=\"d\"}",
            "invalid parameter \"match[]\": 1:12: parse error: unexpected \"c\"",
        ),
        (
            "temp + 1",
            "invalid parameter \"match[]\": \"temp + 1\" is not a series selector",
        ),
        ("{}", "match[] must contain at least one non-empty matcher"),
    ] {
        let error = promql::parse_selector(selector).unwrap_err().to_string();
        assert_eq!(error, wanted);
    }
}

/// The places outside strings, braces and brackets where a token may be inserted.
fn places(query: &str) -> Vec<usize> {
    let mut places = vec![];
    let mut quote = None;
    let mut open = 0;
    let mut before = ' ';
    for (at, c) in query.char_indices() {
        let is_between = |a: char, b: char| " ()+,".contains(a) || " ()+,".contains(b);
        if quote.is_none() && open == 0 && is_between(before, c) {
            places.push(at);
        }
        match (quote, c) {
            (Some(end), _) => quote = quote.filter(|_| c != end || before == '\\'),
            (None, '"' | '\'' | '`') => quote = Some(c),
            (None, '{' | '[') => open += 1,
            (None, '}' | ']') => open -= 1,
            _ => {}
        }
        before = c;
    }
    places.push(query.len());
    places
}

/// So each beginning of a valid query is recognised as one.
#[test]
fn a_wrong_token_is_found_anywhere_in_a_valid_query() {
    let mut rng = fastrand::Rng::with_seed(1);
    let others = std::iter::repeat_with(|| random(&mut rng)).take(30);
    let mut found = 0;
    let queries = fixed().into_iter().chain(others).map(|asked| asked.query);
    for (n, query) in queries.enumerate() {
        let is_searched = query.len() < 500 && !query.contains(['\n', '#']) && query.is_ascii();
        if !is_searched || promql::parse(&query).is_err() {
            continue;
        }
        // A third of the places of each query: many queries are alike.
        for at in places(&query).into_iter().skip(n % 3).step_by(3) {
            let wrong = format!("{} = {}", &query[..at], &query[at..]);
            let wanted = format!("1:{}: parse error: unexpected \"=\"", at + 2);
            assert_eq!(error(&wrong), wanted, "{wrong}");
            found += 1;
        }
    }
    assert!(found > 1000, "{found}");
}
