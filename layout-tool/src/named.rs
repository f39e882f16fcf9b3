//! Arguments that are for some tables alone: `[NAME=]REST`.

use wildmatch::WildMatch;

/// What stands before an equals sign in `argument` and is the name of one of `tables`, or a pattern (`*`, `?`) of such names; and the
/// rest. Names and paths may contain equals signs: the longest name counts.
pub fn split<'a>(argument: &'a str, tables: &[&str]) -> (Option<&'a str>, &'a str) {
    let splits = argument.match_indices('=').filter_map(|(at, _)| argument.split_at_checked(at));
    let named = splits
        .map(|(name, rest)| (name, rest.strip_prefix('=').unwrap_or(rest)))
        .rfind(|(name, _)| !matching(name, tables).is_empty());
    named.map_or((None, argument), |(name, rest)| (Some(name), rest))
}

/// The tables among `tables` that are called `name`, or whose names match the pattern `name`, in their order.
pub fn matching<'a>(name: &str, tables: &[&'a str]) -> Vec<&'a str> {
    if let Some(&table) = tables.iter().find(|&&table| table == name) {
        return vec![table];
    }
    let glob = WildMatch::new(name);
    let is_pattern = name.contains(['*', '?']);
    tables.iter().copied().filter(|table| is_pattern && glob.matches(table)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_patterns_stand_before_an_equals_sign() {
        let tables = ["user", "a=b", "e.x", "e.y"];
        assert_eq!(split("user=c.npy", &tables), (Some("user"), "c.npy"));
        assert_eq!(split("a=b=c.npy", &tables), (Some("a=b"), "c.npy"));
        assert_eq!(split("other=c.npy", &tables), (None, "other=c.npy"));
        assert_eq!(split("e.*=c.csv:query=q", &tables), (Some("e.*"), "c.csv:query=q"));
        assert_eq!(split("f.*=c.csv", &tables), (None, "f.*=c.csv"));
        assert_eq!(matching("e.*", &tables), ["e.x", "e.y"]);
        assert_eq!(matching("user", &tables), ["user"]);
        assert!(matching("use", &tables).is_empty());
    }
}
