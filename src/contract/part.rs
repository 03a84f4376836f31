//! Parts of a text, found where they were borrowed from, and replaced there.

use std::ops::Range;

/// Finds a part in the whole that it was borrowed from.
pub fn place(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (whole.get(start..end)? == part).then_some(start..end)
}

/// Writes the whole with something else at that place.
pub fn replaced(whole: &[u8], place: Range<usize>, by: &[u8]) -> Vec<u8> {
    [&whole[..place.start], by, &whole[place.end..]].concat()
}
