//! What tests speak with: a plain HTTP client, and bare sockets for what no client would send.

use super::authority::{Authority, Leaf};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for any one reply in a test.
const REPLY_WITHIN: Duration = Duration::from_secs(30);

/// Returns a client that uses no proxy of the machine, follows no redirect and never waits for ever.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(REPLY_WITHIN)
        .build()
        .unwrap()
}

/// Returns a client that trusts `ca` alone and shows `leaf`, if there is one.
pub fn secure_client(ca: &Authority, leaf: Option<&Leaf>) -> reqwest::ClientBuilder {
    let root = reqwest::Certificate::from_pem(ca.pem().as_bytes()).unwrap();
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(REPLY_WITHIN)
        .tls_certs_only([root]);
    match leaf {
        Some(leaf) => {
            let pem = format!("{}\n{}", leaf.chain, leaf.key);
            builder.identity(reqwest::Identity::from_pem(pem.as_bytes()).unwrap())
        }
        None => builder,
    }
}

/// Returns a client for replies that take long: only silence ends its patience.
pub fn streaming_client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .read_timeout(REPLY_WITHIN)
        .build()
        .unwrap()
}

/// Returns the text that a GET of `url` is answered with.
pub async fn get_text(url: &str) -> String {
    let reply = client().get(url).send().await.unwrap();
    reply.text().await.unwrap()
}

/// Says whether a GET of `url` is answered with a success.
pub async fn succeeds(client: &reqwest::Client, url: &str) -> bool {
    client
        .get(url)
        .send()
        .await
        .is_ok_and(|reply| reply.status().is_success())
}

/// Sends `bytes` as they are and returns all that comes back until the other side closes
/// or has been silent for `quiet`.
pub async fn exchange(address: SocketAddr, bytes: &[u8], quiet: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server may refuse and close before it has read everything; its answer still counts.
    stream.write_all(bytes).await.ok();
    let mut received = Vec::new();
    let mut chunk = [0; 16 * 1024];
    while let Ok(Ok(length @ 1..)) = timeout(quiet, stream.read(&mut chunk)).await {
        received.extend_from_slice(&chunk[..length]);
    }
    received
}
