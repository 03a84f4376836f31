//! A TCP relay that can be cut: the network between two processes.

use std::net::SocketAddr;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Relays connections to one address until it is cut; ends with its value.
pub struct Link {
    address: SocketAddr,
    whole: watch::Sender<bool>,
    _worker: JoinSet<()>,
}

impl Link {
    /// Opens a relay to `target`, for example `"127.0.0.1:8500"`.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (whole, state) = watch::channel(true);
        let mut worker = JoinSet::new();
        worker.spawn(relay(listener, target.to_owned(), state));
        Self {
            address,
            whole,
            _worker: worker,
        }
    }

    /// Returns the address to give to the one side.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts it: open connections end now, new ones are closed at once.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Lets new connections through again.
    pub fn restore(&self) {
        self.whole.send_replace(true);
    }
}

async fn relay(listener: TcpListener, target: String, state: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((mut near, _)) = listener.accept().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let (target, mut state) = (target.clone(), state.clone());
        connections.spawn(async move {
            if !*state.borrow_and_update() {
                return;
            }
            let Ok(mut far) = TcpStream::connect(&target).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                _ = state.wait_for(|whole| !whole) => {}
            }
        });
    }
}
