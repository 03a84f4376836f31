//! Getting our contracts admitted, and keeping Consul's record of them true.

mod standing;

pub use standing::{Reader, Standing};
