//! Lists of lines, in the order in which lines were put in.

const NONE: u32 = u32::MAX;

/// The neighbours of a line in its list.
#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    behind: u32,
}

/// Several lists of lines. A line is in at most one of them.
#[derive(Debug, Clone)]
pub(crate) struct Lists {
    links: Box<[Link]>,
    /// First and last line of each list.
    ends: Box<[(u32, u32)]>,
    lengths: Box<[usize]>,
}

impl Lists {
    pub(crate) fn new(lists: usize, lines: usize) -> Self {
        Self {
            links: vec![Link { before: NONE, behind: NONE }; lines].into(),
            ends: vec![(NONE, NONE); lists].into(),
            lengths: vec![0; lists].into(),
        }
    }

    /// The line that has been in the list for longest.
    pub(crate) fn first(&self, list: usize) -> Option<u32> {
        let (first, _) = self.ends[list];
        (first != NONE).then_some(first)
    }

    pub(crate) fn len(&self, list: usize) -> usize {
        self.lengths[list]
    }

    /// Puts a line that is in no list behind all others of `list`.
    pub(crate) fn push(&mut self, list: usize, line: u32) {
        let (first, last) = self.ends[list];
        self.links[line as usize] = Link { before: last, behind: NONE };
        match last {
            NONE => self.ends[list] = (line, line),
            _ => {
                self.links[last as usize].behind = line;
                self.ends[list] = (first, line);
            }
        }
        self.lengths[list] += 1;
    }

    /// Takes a line out of `list`, which it is in.
    pub(crate) fn remove(&mut self, list: usize, line: u32) {
        let Link { before, behind } = self.links[line as usize];
        match before {
            NONE => self.ends[list].0 = behind,
            _ => self.links[before as usize].behind = behind,
        }
        match behind {
            NONE => self.ends[list].1 = before,
            _ => self.links[behind as usize].before = before,
        }
        self.lengths[list] -= 1;
    }

    /// Puts all lines of `from` behind those of `to`.
    pub(crate) fn append(&mut self, to: usize, from: usize) {
        let ((first, last), (begin, end)) = (self.ends[to], self.ends[from]);
        if begin == NONE {
            return;
        }
        self.links[begin as usize].before = last;
        match last {
            NONE => self.ends[to] = (begin, end),
            _ => {
                self.links[last as usize].behind = begin;
                self.ends[to] = (first, end);
            }
        }
        self.lengths[to] += self.lengths[from];
        (self.ends[from], self.lengths[from]) = ((NONE, NONE), 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn they_are_lists(steps in proptest::collection::vec((0usize..3, 0u32..12, 0usize..4), 0..200)) {
            let mut lists = Lists::new(3, 12);
            let mut naive: [Vec<u32>; 3] = Default::default();
            for (list, line, what) in steps {
                let holder = naive.iter().position(|it| it.contains(&line));
                match (what, holder) {
                    (0, None) => {
                        lists.push(list, line);
                        naive[list].push(line);
                    }
                    (1, Some(holder)) => {
                        lists.remove(holder, line);
                        naive[holder].retain(|&it| it != line);
                    }
                    (2, _) => {
                        let from = (list + 1) % 3;
                        lists.append(list, from);
                        let moved = std::mem::take(&mut naive[from]);
                        naive[list].extend(moved);
                    }
                    _ => {}
                }
                let mut copy = lists.clone();
                for (list, naive) in naive.iter().enumerate() {
                    prop_assert_eq!(copy.len(list), naive.len());
                    for &line in naive {
                        prop_assert_eq!(copy.first(list), Some(line));
                        copy.remove(list, line);
                    }
                    prop_assert_eq!(copy.first(list), None);
                }
            }
        }
    }
}
