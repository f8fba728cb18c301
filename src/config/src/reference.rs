//! The reference of every key, `docs/configuration.md`, made of the declarations.

use std::fmt::Write as _;

use super::describe::{Item, Paragraph, items, paragraphs};
use super::suggest;

const INTRODUCTION: &str = include_str!("reference/introduction.md");
/// The last section. A test of `ingest::listen` compares the numbers of MQTT with the code.
const FIXED: &str = include_str!("reference/fixed.md");
const TABLE: &str =
    "\n| key | type and range | default | reload | environment |\n|---|---|---|---|---|\n";
/// Columns of a line of text.
pub(crate) const WIDTH: usize = 118;

/// The reference in Markdown.
pub fn reference() -> String {
    let mut out = INTRODUCTION.to_owned();
    // Keys without a text belong to those above, in one table.
    let mut is_in_table = false;
    for item in items() {
        match item {
            Item::Section { header, text, .. } => {
                let _ = write!(out, "\n## `{header}`\n");
                explain(&mut out, text);
                is_in_table = false;
            }
            Item::Key { key, .. } if key.is_hidden => {}
            Item::Key {
                path,
                key,
                kind,
                default,
            } => {
                explain(&mut out, key.text);
                if !is_in_table || !key.text.is_empty() {
                    out.push_str(TABLE);
                }
                is_in_table = true;
                let default = match (key.instead_of_default, default) {
                    (Some(text), _) => text.to_owned(),
                    (None, Some(default)) if default != "[]" || key.example.is_none() => {
                        format!("`{default}`")
                    }
                    _ => "none".to_owned(),
                };
                let reload = key.restart.map_or("yes", |_| "restart");
                let variable = suggest::variable_of(&path);
                let variable = variable.map_or("in the file".into(), |name| format!("`{name}`"));
                let name = key.name;
                let _ = writeln!(
                    out,
                    "| `{name}` | {kind} | {default} | {reload} | {variable} |"
                );
            }
        }
    }
    out + FIXED
}

fn explain(out: &mut String, text: &str) {
    for Paragraph {
        lines, is_example, ..
    } in paragraphs(text, WIDTH)
    {
        out.push('\n');
        for line in lines {
            let _ = match is_example {
                true => writeln!(out, "    {line}"),
                false => writeln!(out, "{}", plain(&line)),
            };
        }
    }
}

/// Escapes text so that Markdown shows it literally.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let bytes = line.as_bytes();
    // Text between backticks is code and needs no escaping.
    let mut is_code = false;
    for (i, c) in line.char_indices() {
        let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let is_word_at = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(word);
        is_code ^= c == '`';
        let is_inner = is_word_at(i.checked_sub(1)) && is_word_at(Some(i + 1));
        let is_mark = matches!(c, '*' | '<' | '|' | '[' | ']')
            || (c == '_' && !is_inner)
            || (c == '#' && i == 0);
        if is_mark && !is_code {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_shown_literally() {
        assert_eq!(
            plain("_id and sensor_id A__B * <b> `a < b`"),
            "\\_id and sensor_id A__B \\* \\<b> `a < b`"
        );
    }
}
