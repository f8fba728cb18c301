//! Regular expressions of RE2, Prometheus' dialect, in the words of the crate `regex`. The two
//! differ in these places: `\d`, `\s`, `\w` and `\b` know only ASCII in RE2; a class has no operators
//! and no classes in it, so `[`, `&&`, `--` and `~~` are characters; `\Q…\E`, octal escapes and a
//! `{` that begins no repetition exist.

/// The same expression for `regex`. What neither accepts is left for `regex` to refuse.
pub(super) fn from_re2(text: &str) -> String {
    let mut translation = Translation {
        rest: text,
        out: String::with_capacity(text.len() * 2),
    };
    while let Some(c) = translation.next() {
        match c {
            '\\' => {
                translation.escape(false);
            }
            '[' => translation.class(),
            '{' if !is_repetition(translation.rest) => translation.out.push_str("\\{"),
            c => translation.out.push(c),
        }
    }
    translation.out
}

struct Translation<'a> {
    rest: &'a str,
    out: String,
}

impl Translation<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// What follows a backslash. Returns whether it is one character.
    fn escape(&mut self, is_in_class: bool) -> bool {
        let Some(c) = self.next() else {
            self.out.push('\\');
            return true;
        };
        match c {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => {
                let set = match c.to_ascii_lowercase() {
                    'd' => "0-9",
                    's' => r"\t\n\f\r\x20",
                    _ => "0-9A-Za-z_",
                };
                match (c.is_ascii_uppercase(), is_in_class) {
                    (false, true) => self.out.push_str(set),
                    (false, false) => self.out.extend(["[", set, "]"]),
                    (true, _) => self.out.extend(["[^", set, "]"]),
                }
                return false;
            }
            'b' | 'B' if !is_in_class => self.out.extend(['(', '?', '-', 'u', ':', '\\', c, ')']),
            'Q' if !is_in_class => {
                let (literal, rest) = self.rest.split_once("\\E").unwrap_or((self.rest, ""));
                self.out.push_str(&regex::escape(literal));
                self.rest = rest;
            }
            '0'..='7' if c == '0' || self.rest.starts_with(is_octal) => self.octal(c),
            // For `regex` these would be the edges of words.
            '<' | '>' => self.out.push(c),
            'p' | 'P' | 'x' => {
                let name = self.rest.strip_prefix('{').and_then(|name| name.find('}'));
                let (name, rest) = self.rest.split_at(name.map_or(0, |end| end + 2));
                self.out.extend(['\\', c]);
                self.out.push_str(name);
                self.rest = rest;
                return c == 'x';
            }
            c => self.out.extend(['\\', c]),
        }
        true
    }

    /// Up to three octal digits, of which this is the first.
    fn octal(&mut self, first: char) {
        let more = self.rest.chars().take(2).take_while(|c| is_octal(*c));
        let (digits, rest) = self.rest.split_at(more.count());
        let of = |number: u32, digit: char| number * 8 + digit.to_digit(8).unwrap_or(0);
        let number = std::iter::once(first).chain(digits.chars()).fold(0, of);
        self.out.push_str(&format!("\\x{{{number:x}}}"));
        self.rest = rest;
    }

    /// A class after its `[`.
    fn class(&mut self) {
        self.out.push('[');
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.out.push('^');
            self.rest = rest;
        }
        let mut is_first = true;
        let mut ends_range = false;
        while let Some(c) = self.next() {
            let mut is_character = true;
            match c {
                ']' if !is_first && !ends_range => return self.out.push(']'),
                '[' if !ends_range && self.named() => is_character = false,
                '\\' => is_character = self.escape(true),
                '[' | ']' | '^' | '&' | '~' | '-' => self.out.extend(['\\', c]),
                c => self.out.push(c),
            }
            is_first = false;
            // A `-` after one character begins a range, unless it is the last of the class.
            ends_range = match self.rest.strip_prefix('-') {
                Some(rest) if is_character && !ends_range && !rest.starts_with(']') => {
                    self.out.push('-');
                    self.rest = rest;
                    true
                }
                _ => false,
            };
        }
    }

    /// Copies the rest of `[:name:]`, if it is one.
    fn named(&mut self) -> bool {
        let name = self.rest.strip_prefix(':').and_then(|name| name.find(":]"));
        let Some(end) = name else { return false };
        let (name, rest) = self.rest.split_at(end + 3);
        self.out.push('[');
        self.out.push_str(name);
        self.rest = rest;
        true
    }
}

fn is_octal(c: char) -> bool {
    ('0'..='7').contains(&c)
}

/// Whether `3}`, `3,}` or `3,5}` follows.
fn is_repetition(rest: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    rest.split_once('}')
        .is_some_and(|(times, _)| match times.split_once(',') {
            None => is_number(times),
            Some((from, to)) => is_number(from) && (to.is_empty() || is_number(to)),
        })
}
