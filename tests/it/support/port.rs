//! Free ports for programs that must be told theirs beforehand.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

/// Below the kernel's range for outgoing connections, which would otherwise take a port
/// between our look and the program's bind.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Returns the first of `count` loopback ports in a row, as `free_port` returns one.
pub fn free_ports(count: u16) -> u16 {
    loop {
        let first = free_port();
        let mut rest = first + 1..first + count;
        if rest.all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
}

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
