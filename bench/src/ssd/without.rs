//! What look-ups by a GPU do without, as it is written on the command line.

use warprow_gpu::Ablations;

/// A part's name, and how it is left out.
type Part = (&'static str, fn(Ablations) -> Ablations);

/// The parts.
const PARTS: [Part; 4] = [
    ("dedupe", Ablations::without_deduplication),
    ("shared-commands", Ablations::without_shared_commands),
    ("shared-doorbells", Ablations::without_shared_doorbells),
    ("written-rows", Ablations::without_written_rows),
];
/// Whole look-ups.
const NOTHING: &str = "nothing";

/// Parts with a plus between them, or `nothing`.
pub fn without(text: &str) -> Result<Ablations, String> {
    if text == NOTHING {
        return Ok(Ablations::default());
    }
    text.split('+').try_fold(Ablations::default(), |ablations, name| {
        match PARTS.iter().find(|(part, _)| *part == name) {
            Some((_, without)) => Ok(without(ablations)),
            None => Err(
                "nothing, or of dedupe, shared-commands, shared-doorbells and written-rows those with a plus between"
                    .to_owned(),
            ),
        }
    })
}

/// How it is written; `None` of a whole look-up.
pub(super) fn name(ablations: Ablations) -> Option<String> {
    let is_out = |(_, without): &&Part| without(ablations) == ablations;
    let parts: Vec<&str> = PARTS.iter().filter(is_out).map(|(name, _)| *name).collect();
    (!parts.is_empty()).then(|| parts.join("+"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        assert_eq!((without("nothing"), name(Ablations::default())), (Ok(Ablations::default()), None));
        for text in [
            "dedupe",
            "shared-doorbells",
            "dedupe+shared-commands",
            "dedupe+shared-commands+shared-doorbells",
            "written-rows",
        ] {
            assert_eq!(name(without(text).unwrap()).as_deref(), Some(text));
        }
        assert!(["", "dedupe+", "nothing+dedupe", "merging"].into_iter().all(|text| without(text).is_err()));
    }
}
