//! What is read of Thrift's compact protocol.

/// Gives `each` the number and the type of every field of a struct; it reads, or reads past, what is in it. Without `SPELT_OUT` a field whose
/// number is spelt out ends it: writers do so only where fields are many, or do not come in their order.
pub(super) fn fields<const SPELT_OUT: bool>(
    rest: &mut &[u8],
    mut each: impl FnMut(usize, u8, &mut &[u8]) -> Option<()>,
) -> Option<()> {
    let mut field = 0usize;
    loop {
        let head = *rest.split_off_first()?;
        if head == 0 {
            return Some(());
        }
        field = match usize::from(head >> 4) {
            0 if SPELT_OUT => usize::try_from(varint(rest)? >> 1).ok()?,
            0 => return None,
            step => field.checked_add(step)?,
        };
        each(field, head & 15, rest)?;
    }
}

/// A number as it stands; signed ones are zigzag, so that a non-negative one is half of it.
pub(super) fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
