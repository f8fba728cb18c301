//! The header of a CSV file: finds columns by name or number.

use std::io;

use super::source::SourceError;

/// Why the mapping does not fit the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum MappingError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{0}")]
    Csv(#[from] io::Error),
    #[error("--delimiter: expected one ASCII character, or tab")]
    Delimiter,
    #[error("there is no column {column} ({option}); the header has: {columns}{hint}")]
    Column {
        option: &'static str,
        column: String,
        columns: String,
        hint: &'static str,
    },
    #[error(
        "the column of the {what} is not known; name it with {option}; the header has: \
         {columns}{hint}"
    )]
    Unknown {
        what: &'static str,
        option: &'static str,
        columns: String,
        hint: &'static str,
    },
    #[error("--time-format without an offset (%z) needs --zone")]
    Zone,
    #[error("with --field, expected one --value: the column of the value")]
    LongValue,
    #[error("the name of column {0} is not UTF-8; is the file in ISO 8859-1 (--latin1)?")]
    NameNotUtf8(usize),
    #[error(
        "columns {} and {} are both the value {name}; choose one with --value COLUMN, or name both: \
         --value COLUMN=NAME",
        columns[0] + 1, columns[1] + 1
    )]
    SameName { name: String, columns: [usize; 2] },
}

/// The names of the columns.
pub(super) struct Header<'a> {
    pub(super) names: &'a [String],
}

impl Header<'_> {
    fn columns(&self) -> String {
        self.names.join(", ")
    }

    fn hint(&self) -> &'static str {
        match self.names {
            [only] if only.contains(';') => "; add --delimiter ';'",
            [only] if only.contains('\t') => "; add --delimiter tab",
            _ => "",
        }
    }

    pub(super) fn find(&self, option: &'static str, column: &str) -> Result<usize, MappingError> {
        let by_number = || {
            column
                .parse()
                .ok()
                .filter(|n| (1..=self.names.len()).contains(n))
                .map(|n: usize| n - 1)
        };
        self.names
            .iter()
            .position(|name| name == column)
            .or_else(by_number)
            .ok_or_else(|| MappingError::Column {
                option,
                column: column.to_owned(),
                columns: self.columns(),
                hint: self.hint(),
            })
    }

    /// The column with one of these names, which need no option.
    pub(super) fn usual(
        &self,
        known: &[&str],
        what: &'static str,
        option: &'static str,
    ) -> Result<usize, MappingError> {
        let found = known.iter().find_map(|usual| {
            self.names
                .iter()
                .position(|name| name.eq_ignore_ascii_case(usual))
        });
        found.ok_or_else(|| MappingError::Unknown {
            what,
            option,
            columns: self.columns(),
            hint: self.hint(),
        })
    }

    /// The columns of an option (`COLUMN` or `COLUMN=NAME`), each with its name.
    pub(super) fn named(
        &self,
        option: &'static str,
        list: &[String],
    ) -> Result<Vec<(usize, String)>, MappingError> {
        let one = |spec: &String| {
            let (column, name) = match (self.find(option, spec), spec.rsplit_once('=')) {
                (Err(_), Some((column, name))) => (self.find(option, column)?, name.to_owned()),
                (found, _) => (found?, spec.clone()),
            };
            Ok((
                column,
                if name == (column + 1).to_string() {
                    self.names[column].clone()
                } else {
                    name
                },
            ))
        };
        list.iter().map(one).collect()
    }
}

/// One of two columns with the same name would be lost.
pub(super) fn different(values: &[(usize, String)]) -> Result<(), MappingError> {
    for (i, (column, name)) in values.iter().enumerate() {
        if let Some((other, _)) = values[..i].iter().find(|(_, before)| before == name) {
            return Err(MappingError::SameName {
                name: name.clone(),
                columns: [*other, *column],
            });
        }
    }
    Ok(())
}
