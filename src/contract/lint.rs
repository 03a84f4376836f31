//! The linter.
