//! What the tests of the house read Rust sources with.

/// The tokens of a source file, without comments. Literals of text are one token, which holds no name.
pub(crate) fn tokens(source: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let name = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (len, counts) = match (text_literal(rest), first) {
            (Some(len), _) => (len, true),
            _ if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            _ if rest.starts_with("/*") => (block_comment(rest), false),
            _ if first.is_whitespace() => (first.len_utf8(), false),
            // A lifetime.
            (None, '\'') => (1 + name(&rest[1..]), false),
            _ if first.is_alphanumeric() || first == '_' => (name(rest), true),
            _ if rest.starts_with("::") => (2, true),
            _ => (first.len_utf8(), true),
        };
        let (token, behind) = rest.split_at(len);
        tokens.extend(counts.then_some(token));
        rest = behind;
    }
    tokens
}

/// Bytes of the comment that `text` begins with. Such comments nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let here = &text.as_bytes()[at..];
        let step = match () {
            () if here.starts_with(b"/*") => 1,
            () if here.starts_with(b"*/") => -1,
            () => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            break;
        }
    }
    at
}

/// Bytes of the string or character that `text` begins with, if it does.
fn text_literal(text: &str) -> Option<usize> {
    let quoted = text.trim_start_matches(['b', 'c', 'r']);
    let prefix = text.len() - quoted.len();
    if prefix > 2 {
        return None;
    }
    if text[..prefix].contains('r') {
        let hashes = quoted.len() - quoted.trim_start_matches('#').len();
        let content = quoted[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(prefix + hashes + 1 + content.find(&end)? + end.len());
    }
    let quote = quoted.chars().next().filter(|letter| ['"', '\''].contains(letter))?;
    let mut within = quoted.char_indices().skip(1);
    if quote == '\'' {
        // Else it is a lifetime.
        let is_character = quoted[1..].starts_with('\\') || quoted.chars().nth(2) == Some('\'');
        is_character.then_some(())?;
    }
    while let Some((at, character)) = within.next() {
        match character {
            '\\' => drop(within.next()),
            _ if character == quote => return Some(prefix + at + 1),
            _ => {}
        }
    }
    None
}
