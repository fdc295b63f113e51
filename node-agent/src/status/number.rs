//! Numbers in the API's type.

/// Converts a number to `i32`, at most [`i32::MAX`].
pub fn number<T: TryInto<i32>>(value: T) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}
