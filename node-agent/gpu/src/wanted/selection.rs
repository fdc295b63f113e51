//! Which devices a selector selects.
