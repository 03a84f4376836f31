//! Free ports for programs that must be told theirs beforehand.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

/// Below the kernel's range for outgoing connections, which would otherwise take a port
/// between our look and the program's bind.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Returns a loopback port that nobody listens on and that this process never gave out.
/// Another process may still take it: who starts a program on it starts again on new ones.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut guard = GIVEN.lock().unwrap();
    let given = guard.get_or_insert_with(HashSet::new);
    loop {
        let port = fastrand::u16(RANGE);
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.insert(port);
            return port;
        }
    }
}
