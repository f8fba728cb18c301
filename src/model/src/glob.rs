//! Patterns over texts. Pure.

/// Whether a pattern matches the whole text: `*` matches any text, `?` one character, everything else
/// itself. Only the last `*` is retried, so time is at most linear in the text times the pattern.
pub fn matches(mut glob: &str, mut text: &str) -> bool {
    let mut retry: Option<(&str, &str)> = None;
    loop {
        let mut chars = glob.chars();
        match chars.next() {
            Some('*') => {
                glob = chars.as_str();
                retry = Some((glob, text));
                continue;
            }
            Some(c) => {
                let mut rest = text.chars();
                match rest.next() {
                    Some(t) if c == '?' || c == t => {
                        (glob, text) = (chars.as_str(), rest.as_str());
                        continue;
                    }
                    _ => {}
                }
            }
            None if text.is_empty() => return true,
            None => {}
        }
        let Some((after_star, tried)) = retry else {
            return false;
        };
        let mut rest = tried.chars();
        if rest.next().is_none() {
            return false;
        }
        (glob, text) = (after_star, rest.as_str());
        retry = Some((after_star, text));
    }
}
