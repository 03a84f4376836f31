//! The two data-path listeners.

mod body;
mod headers;
mod listen;
mod target;
mod upstream;
