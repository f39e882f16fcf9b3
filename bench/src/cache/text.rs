//! Text as tokens, and tokens as n-grams.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use warprow_workload::{IdShuffle, mix_all};

/// Words of the vocabulary: the most frequent ones. Others are cut into pairs of bytes.
const WORDS: usize = 32_768;

/// Text as a simple tokenizer cuts it: a word of letters, a digit, or another character each is a token if it is one of
/// the most frequent; the bytes of others are tokens in pairs. (A model's tokenizer has more words of several pieces.)
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// The tokens of each page.
    pub pages: Vec<Vec<u32>>,
}

impl Tokens {
    /// Reads files, and all .html, .md, .txt and .rs files in folders. Of HTML the text within `main` counts, without
    /// tags. Pages come in an order that `seed` gives.
    pub fn of(paths: &[PathBuf], seed: u64) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            list(path, &mut files).with_context(|| format!("reading {}", path.display()))?;
        }
        ensure!(!files.is_empty(), "there is no .html, .md, .txt or .rs file in these folders");
        files.sort();
        let mut texts = Vec::with_capacity(files.len());
        for path in &files {
            let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes);
            texts.push(if path.extension().is_some_and(|it| it == "html") { plain(&text) } else { text.into_owned() });
        }
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for text in &texts {
            words(text).for_each(|word| *counts.entry(word).or_default() += 1);
        }
        let mut vocabulary: Vec<_> = counts.into_iter().collect();
        vocabulary.sort_unstable_by_key(|&(word, count)| (std::cmp::Reverse(count), word));
        vocabulary.truncate(WORDS);
        let numbers: HashMap<&str, u32> = (0..).zip(vocabulary).map(|(number, (word, _))| (word, number)).collect();
        let order = IdShuffle::new(texts.len() as u64, seed);
        let mut pages = Vec::with_capacity(texts.len());
        for page in 0..texts.len() as u64 {
            let mut tokens = Vec::new();
            for word in words(&texts[order.id(page) as usize]) {
                match numbers.get(word) {
                    Some(&number) => tokens.push(number),
                    None => tokens.extend(word.as_bytes().chunks(2).map(|pair| {
                        let second = pair.get(1).map_or(0, |&byte| u32::from(byte) + 1);
                        WORDS as u32 + u32::from(pair[0]) * 257 + second
                    })),
                }
            }
            if tokens.len() > 8 {
                pages.push(tokens);
            }
        }
        Ok(Self { pages })
    }

    /// Tokens in all.
    pub fn len(&self) -> usize {
        self.pages.iter().map(Vec::len).sum()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Different tokens.
    pub fn different(&self) -> usize {
        self.pages.iter().flatten().collect::<std::collections::HashSet<_>>().len()
    }
}

fn list(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let known =
            path.extension().and_then(|it| it.to_str()).is_some_and(|it| ["html", "md", "txt", "rs"].contains(&it));
        if path.is_dir() || known {
            list(&path, files)?;
        }
    }
    Ok(())
}

/// The text of a page, without tags.
fn plain(html: &str) -> String {
    let begin = html.find("<main").unwrap_or(0);
    let end = html.rfind("</main>").filter(|&end| end > begin).unwrap_or(html.len());
    let mut text = String::with_capacity(end - begin);
    let mut rest = &html[begin..end];
    while let Some(tag) = rest.find('<') {
        text.push_str(&rest[..tag]);
        rest = &rest[tag..];
        let hidden = ["script", "style"].into_iter().find(|name| rest[1..].starts_with(name));
        let close = hidden.and_then(|name| rest.find(&format!("</{name}")));
        let from = close.unwrap_or(0);
        rest = rest[from..].find('>').map_or("", |end| &rest[from + end + 1..]);
    }
    text.push_str(rest);
    for (entity, character) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&#x27;", "'"), ("&amp;", "&")]
    {
        text = text.replace(entity, character);
    }
    text
}

/// Words of letters, single digits and other characters; white space is left out.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let len = match first.is_alphabetic() {
            true => rest.find(|it: char| !it.is_alphabetic()).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (word, behind) = rest.split_at(len);
        rest = behind;
        Some(word)
    })
}

/// For each token the rows of the 2-, 3- and 4-gram that end there, within its page: a hash modulo `rows`. Tables of a
/// model have several heads an order, each with a hash of its own; all heads hit and miss together, but for rows that
/// n-grams share, so one stands for them.
pub fn ngrams(tokens: &Tokens, rows: u64) -> Vec<u64> {
    let mut ids = Vec::with_capacity(tokens.len() * 3);
    for page in &tokens.pages {
        for at in 0..page.len() {
            for order in 2..=4usize {
                if let Some(begin) = (at + 1).checked_sub(order) {
                    let gram = &page[begin..=at];
                    let mut parts = [u64::MAX; 4];
                    parts.iter_mut().zip(gram).for_each(|(part, &token)| *part = token.into());
                    ids.push(((order as u64) << 40) | (mix_all(parts) % rows.max(1)));
                }
            }
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lose_their_tags() {
        let html = "<nav>x</nav><main id=a><h1>One &amp; two</h1><script>if (a < b) {}</script><p>3</main><p>no";
        assert_eq!(plain(html), "One & two3");
        assert_eq!(plain("plain <b>text"), "plain text");
        assert_eq!(plain("cut <b"), "cut ");
    }

    #[test]
    fn words_are_cut() {
        assert_eq!(
            words(" fn main() -> u64 {é}").collect::<Vec<_>>(),
            ["fn", "main", "(", ")", "-", ">", "u", "6", "4", "{", "é", "}"]
        );
    }

    #[test]
    fn ngrams_stay_within_their_page() {
        let tokens = Tokens { pages: vec![vec![1, 2, 3], vec![1, 2]] };
        let ids = ngrams(&tokens, 1 << 30);
        // 12, 123, 23 of the first page, 12 of the second.
        assert_eq!(ids.len(), 4);
        assert_eq!(ids[0], ids[3]);
        assert_eq!(ids.iter().map(|id| id >> 40).collect::<Vec<_>>(), [2, 2, 3, 2]);
    }
}
