//! Reads Rust source as a list of the paths that it names, for `architecture.rs`: without comments,
//! literals and test modules, with `use` trees expanded and `self` and `super` resolved.

/// The parts of a file that rules check.
pub(crate) struct Code {
    /// Every path that it names, with its line; a macro's ends with `!`. Keywords and single names
    /// are included.
    pub(crate) paths: Vec<(usize, String)>,
    /// The file without comments, literals and test modules.
    pub(crate) text: String,
}

impl Code {
    /// Reads a file; `path` is from the root, with `/`.
    pub(crate) fn read(path: &str, text: &str) -> Code {
        let text = without_tests(&blank(text, Comments::Blank));
        let mut scan = Scan {
            text: &text,
            at: 0,
            paths: Vec::new(),
        };
        scan.all();
        let module = module_of(path);
        let ends: Vec<usize> = (0..text.len()).filter(|at| text[*at] == '\n').collect();
        let line = |at: usize| 1 + ends.partition_point(|end| *end < at);
        let paths = scan
            .paths
            .into_iter()
            .map(|(at, path)| (line(at), resolve(&module, &path)))
            .collect();
        Code {
            paths,
            text: text.iter().collect(),
        }
    }

    /// The file without literals and comments, with its test modules.
    pub(crate) fn blanked(text: &str) -> String {
        blank(text, Comments::Blank).into_iter().collect()
    }

    /// The file without literals, but with its comments.
    pub(crate) fn without_literals(text: &str) -> String {
        blank(text, Comments::Keep).into_iter().collect()
    }
}

/// The files (without extension) that a file declares as `#[cfg(test)] mod name;`.
pub(crate) fn test_modules(path: &str, text: &str) -> Vec<String> {
    let text: String = blank(text, Comments::Blank).into_iter().collect();
    let dir = match path
        .strip_suffix("/mod.rs")
        .or(path.strip_suffix("/lib.rs"))
        .or(path.strip_suffix("/main.rs"))
    {
        Some(dir) => dir,
        None => path.trim_end_matches(".rs"),
    };
    let declared = text.split("#[cfg(test)]").skip(1).filter_map(|rest| {
        let head = &rest[..rest.find([';', '{'])?];
        let name = head
            .trim()
            .rsplit_once("mod ")
            .filter(|(before, _)| before.is_empty() || before.starts_with("pub"))?
            .1;
        rest[head.len()..]
            .starts_with(';')
            .then(|| format!("{dir}/{}", name.trim()))
    });
    declared.collect()
}

/// The modules above the items of a file, from the root of its crate.
fn module_of(path: &str) -> Vec<String> {
    let place = path.trim_start_matches("src/").trim_end_matches(".rs");
    let place = place
        .split_once("/src/")
        .map_or(place, |(_, inside)| inside);
    let place = place.strip_suffix("/mod").unwrap_or(place);
    if place == "lib" || place == "main" {
        Vec::new()
    } else {
        place.split('/').map(str::to_owned).collect()
    }
}

/// `self::` and `super::`, resolved from the root of the crate.
fn resolve(module: &[String], path: &str) -> String {
    let mut rest: Vec<&str> = path.split("::").collect();
    if rest.len() < 2 || !matches!(rest[0], "self" | "super") {
        return path.to_owned();
    }
    let mut module: Vec<&str> = module.iter().map(String::as_str).collect();
    while let Some(step @ ("self" | "super")) = rest.first().copied() {
        if step == "super" {
            module.pop();
        }
        rest.remove(0);
    }
    ["crate"]
        .into_iter()
        .chain(module)
        .chain(rest)
        .collect::<Vec<_>>()
        .join("::")
}

/// How [`blank`] treats comments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comments {
    Keep,
    Blank,
}

/// The text with strings, characters and, optionally, comments replaced by blanks; line numbers
/// stay the same.
fn blank(text: &str, comments: Comments) -> Vec<char> {
    let mut out: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < out.len() {
        let next = out.get(at + 1).copied().unwrap_or(' ');
        let is_comment = out[at] == '/' && matches!(next, '/' | '*');
        let end = match (out[at], next) {
            ('/', '/') => line_end(&out, at),
            ('/', '*') => comment_end(&out, at),
            ('"', _) => string_end(&out, at + 1),
            ('r', '"' | '#') if at == 0 || !is_word(out[at - 1]) || out[at - 1] == 'b' => {
                raw_end(&out, at + 1)
            }
            ('\'', '\\') => (at + 3..out.len())
                .find(|i| out[*i] == '\'')
                .map_or(out.len(), |i| i + 1),
            ('\'', _) if out.get(at + 2) == Some(&'\'') => at + 3,
            _ => at,
        };
        if !is_comment || comments == Comments::Blank {
            out[at..end]
                .iter_mut()
                .filter(|c| **c != '\n')
                .for_each(|c| *c = ' ');
        }
        at = end.max(at + 1);
    }
    out
}

fn line_end(text: &[char], at: usize) -> usize {
    text[at..]
        .iter()
        .position(|c| *c == '\n')
        .map_or(text.len(), |n| at + n)
}

/// Block comments nest.
fn comment_end(text: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at + 1 < text.len() {
        match (text[at], text[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn string_end(text: &[char], mut at: usize) -> usize {
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// The end of a raw string whose `r` is before `at`; `at` itself if it is none (`r#name`).
fn raw_end(text: &[char], at: usize) -> usize {
    let hashes = text[at..].iter().take_while(|c| **c == '#').count();
    if text.get(at + hashes) != Some(&'"') {
        return at;
    }
    let close: Vec<char> = std::iter::once('"')
        .chain(std::iter::repeat_n('#', hashes))
        .collect();
    let body = at + hashes + 1;
    text[body..]
        .windows(close.len())
        .position(|w| w == close)
        .map_or(text.len(), |n| body + n + close.len())
}

/// Blanks out every `#[cfg(test)]` item with a body.
fn without_tests(text: &[char]) -> Vec<char> {
    let mut out = text.to_vec();
    let mark: Vec<char> = "#[cfg(test)]".chars().collect();
    let mut at = 0;
    while let Some(start) = out[at..]
        .windows(mark.len())
        .position(|w| w == mark)
        .map(|n| at + n)
    {
        let end = item_end(&out, start + mark.len());
        out[start..end]
            .iter_mut()
            .filter(|c| **c != '\n')
            .for_each(|c| *c = ' ');
        at = end;
    }
    out
}

/// The end of the item at `at`: after its `;` or the brace that closes its body.
fn item_end(text: &[char], at: usize) -> usize {
    let mut depth = 0;
    for (i, c) in text.iter().enumerate().skip(at) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(c, ';' | '}') {
            return i + 1;
        }
    }
    text.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Scans blanked text and collects paths with their offsets.
struct Scan<'a> {
    text: &'a [char],
    at: usize,
    paths: Vec<(usize, String)>,
}

impl Scan<'_> {
    fn all(&mut self) {
        while self.at < self.text.len() {
            if !is_word(self.text[self.at]) {
                self.at += 1;
                continue;
            }
            let start = self.at;
            let mut path = self.word();
            if path == "use" {
                self.tree("");
                continue;
            }
            while self.skip("::") {
                let next = self.word();
                if next.is_empty() {
                    break;
                }
                path = format!("{path}::{next}");
            }
            if self.peek() == Some('!') && self.text.get(self.at + 1) != Some(&'=') {
                path.push('!');
            }
            self.paths.push((start, path));
        }
    }

    /// One branch of a `use` tree, and those below it.
    fn tree(&mut self, above: &str) {
        let mut path = above.to_owned();
        loop {
            self.blanks();
            let start = self.at;
            if self.skip("{") {
                while !matches!(self.next_mark(), None | Some('}' | ';')) {
                    self.tree(&path);
                    self.blanks();
                    self.skip(",");
                }
                self.skip("}");
                return;
            }
            if self.skip("::") {
                continue;
            }
            let word = if self.skip("*") {
                "*".to_owned()
            } else {
                self.word()
            };
            if word.is_empty() {
                // Not a continuation of a path: advance in any case, also on text that is not a
                // `use`.
                self.at += usize::from(!matches!(self.peek(), None | Some(',' | '}' | ';')));
                return;
            }
            path = if path.is_empty() {
                word
            } else {
                format!("{path}::{word}")
            };
            self.blanks();
            if self.skip("::") {
                continue;
            }
            // The name after `as` is not a path.
            while !matches!(self.peek(), None | Some(',' | '}' | ';')) {
                self.at += 1;
            }
            self.paths.push((start, path));
            return;
        }
    }

    fn next_mark(&mut self) -> Option<char> {
        self.blanks();
        self.peek()
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn skip(&mut self, mark: &str) -> bool {
        let found = mark
            .chars()
            .enumerate()
            .all(|(i, c)| self.text.get(self.at + i) == Some(&c));
        if found {
            self.at += mark.chars().count();
        }
        found
    }

    fn word(&mut self) -> String {
        let start = self.at;
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        self.text[start..self.at].iter().collect()
    }
}
