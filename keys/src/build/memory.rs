//! Memory that may be refused.

use crate::error::IndexBuildError;

/// `length` default values, zeros for numbers; `what` they are for stands in the error.
pub(super) fn zeroed<T: Default + Clone>(length: u64, what: &'static str) -> Result<Vec<T>, IndexBuildError> {
    let refused = || IndexBuildError::Memory { what, bytes: length.saturating_mul(size_of::<T>() as u64) };
    let length = usize::try_from(length).map_err(|_| refused())?;
    let mut all = Vec::new();
    all.try_reserve_exact(length).map_err(|_| refused())?;
    all.resize(length, T::default());
    Ok(all)
}
