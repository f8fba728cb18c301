//! The figures of the load test in README and guides are those of its records, and the versions of
//! MongoDB those that the tests run on.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use crate::support::guides;
use crate::support::mongod;

/// The record of the load test whose figures README and guides have.
const RECORD: &str = "2026-11-28 21:07";

/// The record beside other programs.
const OTHERS: &str = "2026-11-29 11:41";

/// The record of its queries.
const READS: &str = "2026-11-28 04:49";

/// The text of the record that begins with this headline.
fn record_of(headline: &str) -> String {
    guides::read("loadtest/RESULTS.md")
        .split("\n## ")
        .find(|part| part.starts_with(headline))
        .unwrap()
        .to_owned()
}

/// Rows of a record: the text of the first column up to a colon, and the numbers of the others.
fn record_rows(headline: &str) -> BTreeMap<String, BTreeSet<String>> {
    let record = record_of(headline);
    // Not the rows of the targets, which begin with the same names and have rounded figures.
    let measured = record.split("| what | target |").next().unwrap();
    let rows = measured.lines().filter(|line| line.starts_with("| "));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in rows {
        let cells: Vec<&str> = line
            .split(['|', ':', ' ', '*'])
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        found
            .entry(cells[0].to_owned())
            .or_default()
            .extend(cells.iter().map(|cell| (*cell).to_owned()));
    }
    found
}

/// The load-test figures in README and guides are those of the records.
#[test]
fn figures_are_those_of_the_records() {
    let mut record = record_rows(RECORD);
    for (name, figures) in record_rows(OTHERS) {
        record.entry(name).or_default().extend(figures);
    }
    let mut compared = 0;
    for page in guides::pages()
        .iter()
        .filter(|p| *p == "README.md" || p.starts_with("docs/"))
    {
        for line in guides::read(page)
            .lines()
            .filter(|line| line.starts_with("| "))
        {
            // The name of a row of the record, in code or as the baselines are called.
            let named = |name: &&String| {
                line.contains(&format!("`{name}`")) || line.starts_with(&format!("| {name}: "))
            };
            let rows: Vec<_> = record.keys().filter(named).collect();
            let measured = |word: &&str| {
                let (whole, part) = word.split_once('.').unwrap_or((word, ""));
                let digits =
                    |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                digits(whole)
                    && (part.len() >= 3 && digits(part) || part.is_empty() && whole.len() >= 5)
            };
            for figure in line
                .split([' ', '|', '(', ')'])
                .filter(measured)
                .filter(|_| !rows.is_empty())
            {
                let there = rows.iter().any(|name| record[*name].contains(figure));
                assert!(
                    there,
                    "{page}: {figure} is not in the record of {rows:?}: {line}"
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 25, "{compared} figures were compared");
}

/// "tested with MongoDB …" names the versions of `tests/all_servers.sh`.
#[test]
fn versions_of_mongodb_are_those_that_the_tests_run_on() {
    let mut versions = mongod::versions();
    let number = |part: &str| part.parse::<u32>().unwrap();
    versions.sort_by_key(|version| version.split('.').map(number).collect::<Vec<_>>());
    let (last, others) = versions.split_last().unwrap();
    let list = format!("{} and {last}", others.join(", "));
    for page in ["README.md", "docs/deploy.md", "docs/guarantees.md"] {
        let text = guides::read(page).replace('\n', " ");
        let claims: Vec<_> = text.split("tested with MongoDB ").skip(1).collect();
        assert_eq!(claims.len(), 1, "{page}");
        assert!(claims[0].starts_with(&list), "{page} has not {list}");
    }
}

/// The median times of queries in README are those of the record.
#[test]
fn times_of_queries_are_those_of_the_record() {
    let record = record_of(READS);
    let cells = |line: &str| {
        line.split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = record
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(cells)
        .collect();
    let median = |question: &str, layout: &str| {
        let mut of_driver = rows.iter().filter(|row| row[3] == "MongoDB");
        of_driver
            .find(|row| (&*row[1], &*row[2]) == (question, layout))
            .map(|row| row[5].clone())
    };
    let layouts = [
        "hourbucket, bucket mode",
        "native collection",
        "one document per reading",
    ];
    let mut compared = 0;
    for row in guides::read("README.md")
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(cells)
    {
        if median(&row[1], layouts[0]).is_some() {
            let measured = layouts.map(|layout| median(&row[1], layout).unwrap());
            assert_eq!(row[2..5], measured, "README.md: {}", row[1]);
            compared += 1;
        }
    }
    assert_eq!(compared, 5);
}
