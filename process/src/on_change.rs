//! Keeps an error that repeats from being logged again and again.

use std::fmt::Display;

/// Remembers the last error that was logged.
#[derive(Debug, Default)]
pub struct OnChange {
    last: Option<String>,
}

impl OnChange {
    /// Returns the text of `error` if it differs from the last one, for the caller to log.
    pub fn changed(&mut self, error: impl Display) -> Option<&str> {
        self.set(Some(error.to_string()))
    }

    /// Remembers the error of an attempt, or that it succeeded. Returns an error that differs from the last one.
    pub fn set(&mut self, error: Option<String>) -> Option<&str> {
        let is_new = self.last != error;
        self.last = error;
        self.last.as_deref().filter(|_| is_new)
    }

    /// Forgets the error, so that the same one is logged when it returns. Returns true if there was one.
    pub fn clear(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_logged_when_it_differs_from_the_last_one() {
        let mut on_change = OnChange::default();
        assert_eq!(on_change.changed("refused"), Some("refused"));
        assert_eq!(on_change.changed("refused"), None);
        assert_eq!(on_change.changed("timeout"), Some("timeout"));
        assert!(on_change.clear());
        assert!(!on_change.clear());
        assert_eq!(on_change.set(None), None);
        assert_eq!(on_change.changed("timeout"), Some("timeout"));
    }
}
