//! The signals that mean the command, not us.

use crate::app::Error;
use rustix::process::{Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind, signal};

/// Listens for the signals that are passed on as they come; SIGTERM and SIGINT stop us as well
/// and so are passed on in the order of the stop.
pub struct Passed(Vec<(Signal, unix::Signal)>);

impl Passed {
    pub fn listen() -> Result<Self, Error> {
        let listen = |(passed, kind)| Ok((passed, signal(kind)?));
        let all = [
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
        ];
        let all = all.into_iter().map(listen).collect::<std::io::Result<_>>();
        Ok(Self(all.map_err(Error::Signals)?))
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            let mut all = self.0.iter_mut();
            let came = all.find_map(|(signal, stream)| {
                let has_come = stream.poll_recv(context).is_ready();
                has_come.then_some(*signal)
            });
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Says whether a terminal sends `signal` to us and the command alike: both are in its foreground
/// group then, and a signal passed on would come twice.
pub fn came_from_the_keyboard(signal: Signal) -> bool {
    let is_key = signal == Signal::INT || signal == Signal::QUIT;
    is_key && tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == getpgrp())
}
