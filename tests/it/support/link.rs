//! A TCP relay that can be cut, muted or slowed: the network between two processes.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Relays connections to one address until it is cut; ends with its value.
pub struct Link {
    address: SocketAddr,
    state: watch::Sender<State>,
    /// How often open connections were ended.
    hung_up: watch::Sender<u64>,
    _worker: JoinSet<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    /// What the target says comes this much later.
    Slow(Duration),
    Mute,
    Cut,
}

impl Link {
    /// Opens a relay to `target`, for example `"127.0.0.1:8500"`.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, seen) = watch::channel(State::Whole);
        let (hung_up, hangs_up) = watch::channel(0);
        let mut worker = JoinSet::new();
        worker.spawn(relay(listener, target.to_owned(), seen, hangs_up));
        Self {
            address,
            state,
            hung_up,
            _worker: worker,
        }
    }

    /// Returns the address to give to the one side.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts it: open connections end now, new ones are closed at once.
    pub fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Ends the connections that are open now; new ones are as good as ever.
    pub fn hang_up(&self) {
        self.hung_up.send_modify(|count| *count += 1);
    }

    /// Mutes it: what the target says is lost, what is said to it still arrives.
    pub fn mute(&self) {
        self.state.send_replace(State::Mute);
    }

    /// Slows it: what the target says arrives `by` later.
    pub fn delay(&self, by: Duration) {
        self.state.send_replace(State::Slow(by));
    }

    /// Lets everything through again, at once.
    pub fn restore(&self) {
        self.state.send_replace(State::Whole);
    }
}

async fn relay(
    listener: TcpListener,
    target: String,
    state: watch::Receiver<State>,
    hangs_up: watch::Receiver<u64>,
) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((near, _)) = listener.accept().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let (target, mut state) = (target.clone(), state.clone());
        let mut hangs_up = hangs_up.clone();
        hangs_up.mark_unchanged();
        connections.spawn(async move {
            if *state.borrow_and_update() == State::Cut {
                return;
            }
            let Ok(far) = TcpStream::connect(&target).await else {
                return;
            };
            let (mut near_read, near_write) = near.into_split();
            let (far_read, mut far_write) = far.into_split();
            let said = async {
                copy(&mut near_read, &mut far_write).await.ok();
                far_write.shutdown().await.ok();
            };
            let heard = hear(far_read, near_write, state.clone());
            tokio::select! {
                ((), ()) = async { tokio::join!(said, heard) } => {}
                _ = state.wait_for(|state| *state == State::Cut) => {}
                _ = hangs_up.changed() => {}
            }
        });
    }
}

/// Passes on what the target says, unless it is muted just then; a delay holds up what comes after
/// it too, which is enough for exchanges of one piece.
async fn hear(mut far: OwnedReadHalf, mut near: OwnedWriteHalf, state: watch::Receiver<State>) {
    let mut chunk = [0; 16 * 1024];
    while let Ok(length @ 1..) = far.read(&mut chunk).await {
        let state = *state.borrow();
        if let State::Slow(by) = state {
            tokio::time::sleep(by).await;
        }
        let muted = state == State::Mute;
        if !muted && near.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
    near.shutdown().await.ok();
}
