//! Tensors that are shards of one table, by their names.

use std::collections::BTreeMap;

use wildmatch::WildMatch;

/// A glob in which `{}` stands for the number of a shard.
pub(crate) struct ShardPattern {
    before: WildMatch,
    after: WildMatch,
    /// How many shards there are, if the pattern says so.
    count: Option<u64>,
}

/// Shards of one table: the names of its tensors without the number, and with it, in the order of the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shards<'a> {
    /// What the table is called if nobody gives it a name.
    pub name: String,
    pub tensors: Vec<&'a str>,
}

/// Names before and behind a number, and the tensors by it.
type Groups<'a> = BTreeMap<(&'a str, &'a str), BTreeMap<u64, &'a str>>;

impl ShardPattern {
    /// `None`: the glob has no `{}` and no `{N}`.
    pub(crate) fn of(glob: &str) -> Option<Self> {
        let (before, rest) = glob.split_once('{')?;
        let (count, after) = rest.split_once('}')?;
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let count = if count.is_empty() { None } else { Some(count.parse().ok()?) };
        Some(Self { before: WildMatch::new(before), after: WildMatch::new(after), count })
    }

    /// The tables that have shards among `names`; why not, if some of them are not whole.
    pub(crate) fn tables<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<Vec<Shards<'a>>, String> {
        let mut groups = Groups::new();
        for name in names {
            let mut places =
                numbers(name).filter(|place| self.before.matches(place.before) && self.after.matches(place.after));
            let Some(place) = places.next() else { continue };
            if places.next().is_some() {
                return Err(format!(
                    "the number of a shard may be in several places of {name:?}: say more of its name"
                ));
            }
            insert(&mut groups, &place, name)?;
        }
        groups.into_iter().map(|(around, shards)| whole(around, shards, self.count)).collect()
    }
}

/// Tables that have shards among `names` by the usual name: tensors whose names differ in the number N of a part `shard_N` alone, where
/// there are several. Each is whole, or says why not.
pub(crate) fn usual<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(Vec<&'a str>, Result<Shards<'a>, String>)> {
    let mut groups = Groups::new();
    let mut odd = Vec::new();
    for name in names {
        let is_shard = |place: &Place<'_>| {
            let begins = place.before.strip_suffix("shard_").is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            begins && (place.after.is_empty() || place.after.starts_with('.'))
        };
        if let Some(place) = numbers(name).find(is_shard)
            && let Err(why) = insert(&mut groups, &place, name)
        {
            odd.push((vec![name], Err(why)));
        }
    }
    let several = groups.into_iter().filter(|(_, shards)| shards.len() > 1);
    several
        .map(|(around, shards)| (shards.values().copied().collect(), whole(around, shards, None)))
        .chain(odd)
        .collect()
}

/// A number in a name.
struct Place<'a> {
    before: &'a str,
    number: &'a str,
    after: &'a str,
}

/// All numbers in a name.
fn numbers(name: &str) -> impl Iterator<Item = Place<'_>> {
    let bytes = name.as_bytes();
    let is_digit = move |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let begins = (0..bytes.len()).filter(move |&at| is_digit(at) && !(at > 0 && is_digit(at - 1)));
    begins.filter_map(move |begin| {
        let end = (begin..bytes.len()).find(|&at| !is_digit(at)).unwrap_or(bytes.len());
        Some(Place { before: name.get(..begin)?, number: name.get(begin..end)?, after: name.get(end..)? })
    })
}

fn insert<'a>(groups: &mut Groups<'a>, place: &Place<'a>, name: &'a str) -> Result<(), String> {
    let number = place.number.parse().map_err(|_| format!("the number of shard {name:?} is too large"))?;
    match groups.entry((place.before, place.after)).or_default().insert(number, name) {
        None => Ok(()),
        Some(other) => Err(format!("tensors {other:?} and {name:?} are both shard {number}")),
    }
}

/// The shards in their order, if none is missing.
fn whole<'a>(
    (before, after): (&'a str, &'a str),
    shards: BTreeMap<u64, &'a str>,
    count: Option<u64>,
) -> Result<Shards<'a>, String> {
    let last = shards.keys().next_back().copied().unwrap_or(0);
    let there = shards.len() as u64;
    let of = format!("{before}{{}}{after}");
    let count = count.unwrap_or(last.saturating_add(1));
    if last >= count {
        return Err(format!(
            "{of:?} has {count} shards as the pattern says, and one more, shard {last}: correct the number"
        ));
    }
    if there < count {
        let missing = (0..count).find(|number| !shards.contains_key(number)).unwrap_or(0);
        let others = count - there - 1;
        let others = if others == 0 { String::new() } else { format!(", and so are {others} others") };
        return Err(format!("shard {missing} of {of:?} is missing{others}: fetch the files that have them"));
    }
    let kept = before.rsplit_once('.').map_or("", |(kept, _)| kept);
    let behind = after.split_once('.').map_or("", |(_, behind)| behind);
    let name = match (kept, behind) {
        ("", "") => of,
        ("", one) | (one, "") => one.to_owned(),
        (kept, behind) => format!("{kept}.{behind}"),
    };
    Ok(Shards { name, tensors: shards.into_values().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables<'a>(pattern: &str, names: &'a [String]) -> Result<Vec<Shards<'a>>, String> {
        ShardPattern::of(pattern).unwrap().tables(names.iter().map(|name| &**name))
    }

    fn names(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
        numbers.into_iter().map(|n| format!("m.layers.1.ple.shard_{n}.weight")).collect()
    }

    #[test]
    fn shards_are_found_by_the_number_in_their_names() {
        let listed = names([3, 0, 11, 10, 1, 2, 9, 8, 7, 6, 5, 4]);
        let found = tables("*.shard_{}.weight", &listed).unwrap();
        let in_order = names(0..12);
        assert_eq!(
            found,
            [Shards { name: "m.layers.1.ple.weight".into(), tensors: in_order.iter().map(|n| &**n).collect() }]
        );
        assert_eq!(tables("*.shard_{12}.weight", &listed).unwrap(), found);
        assert!(tables("*.part_{}.weight", &listed).unwrap().is_empty());
        for plain in ["*.shard_0.weight", "a{b}c", "a{", "a}{"] {
            assert!(ShardPattern::of(plain).is_none(), "{plain}");
        }
        // Of two layers: two tables.
        let two: Vec<String> = (0..4).map(|n| format!("layers.{}.shard_{}.weight", n / 2, n % 2)).collect();
        let found = tables("layers.*.shard_{}.weight", &two).unwrap();
        assert_eq!(found.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["layers.0.weight", "layers.1.weight"]);
    }

    #[test]
    fn shards_that_are_not_whole_are_named() {
        for (pattern, numbers, hint) in [
            ("*.shard_{}.weight", &[0, 1, 3][..], "shard 2 of \"m.layers.1.ple.shard_{}.weight\" is missing:"),
            ("*.shard_{}.weight", &[1, 2], "shard 0"),
            ("*.shard_{}.weight", &[4], "and so are 3 others"),
            ("*.shard_{3}.weight", &[0, 1], "shard 2"),
            ("*.shard_{3}.weight", &[0, 1, 2, 3], "one more, shard 3"),
            ("*{}*", &[0, 1], "several places"),
        ] {
            let listed = names(numbers.iter().copied());
            let error = tables(pattern, &listed).unwrap_err();
            assert!(error.contains(hint), "{pattern}: {error}");
        }
        let twice = ["a.shard_1.w".to_owned(), "a.shard_01.w".to_owned()];
        assert!(tables("*shard_{}.w", &twice).unwrap_err().contains("both shard 1"));
        let vast = ["a.shard_99999999999999999999999.w".to_owned()];
        assert!(tables("*shard_{}.w", &vast).unwrap_err().contains("too large"));
    }

    #[test]
    fn usual_shards_are_several() {
        let listed: Vec<String> =
            ["a.shard_0.w", "a.shard_1.w", "b.shard_0.w", "c.shard_0", "c.shard_2", "d.unshard_0", "d.unshard_1"]
                .map(str::to_owned)
                .to_vec();
        let found = usual(listed.iter().map(|name| &**name));
        let names: Vec<_> =
            found.iter().map(|(tensors, shards)| (tensors.len(), shards.as_ref().map(|it| &*it.name))).collect();
        assert_eq!(names[0], (2, Ok("a.w")));
        assert!(matches!(&names[1], (2, Err(why)) if why.contains("shard 1 of")), "{names:?}");
        assert_eq!(names.len(), 2);
    }
}
