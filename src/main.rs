//! The entrance: everything happens in `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    hermes_sidecar::cli::main()
}
