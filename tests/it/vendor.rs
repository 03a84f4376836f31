//! Somebody else's API behind https becomes an agent, with credentials that callers never see.

use crate::support::authority::Authority;
use crate::support::client::{client, get_text};
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::road::{ROUTE, patient_contract};
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

const WITHIN: Duration = Duration::from_secs(10);
const KEY: &str = "Bearer top-secret-7";

/// An API that answers only those who know its key.
struct Vendor {
    port: u16,
    seen: Arc<Mutex<Vec<HeaderMap>>>,
    _worker: JoinSet<()>,
}

impl Vendor {
    async fn start(authority: &Authority) -> Self {
        let leaf = authority.dns(&["localhost"]);
        let chain = CertificateDer::pem_slice_iter(leaf.chain.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = seen.clone();
        let mut worker = JoinSet::new();
        worker.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), shared.clone());
                connections.spawn(async move {
                    // Who does not believe the certificate goes away.
                    let Ok(tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    let service = service_fn(move |request| answer(request, seen.clone()));
                    let io = TokioIo::new(tls);
                    drop(http1::Builder::new().serve_connection(io, service).await);
                });
            }
        });
        Self {
            port,
            seen,
            _worker: worker,
        }
    }

    fn seen(&self) -> Vec<HeaderMap> {
        self.seen.lock().unwrap().clone()
    }
}

async fn answer(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<HeaderMap>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let head = request.headers().clone();
    let knows_key = head.get("authorization").is_some_and(|key| key == KEY);
    seen.lock().unwrap().push(head);
    request.into_body().collect().await.ok();
    let mut reply = Response::new(Full::from(contract::fraud_output().to_string()));
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    if !knows_key {
        *reply.status_mut() = StatusCode::UNAUTHORIZED;
    }
    Ok(reply)
}

/// A sidecar beside the vendor's API, with the files it needs in `folder`.
fn beside(vendor: &Vendor, folder: &Path, roots: &str, consul: &Consul) -> Setup {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("headers"), format!("Authorization: {KEY}\n")).unwrap();
    std::fs::write(path("roots.pem"), roots).unwrap();
    Sidecar::named("vendor")
        .application(&format!("https://localhost:{}", vendor.port))
        .set("application.upstream_headers_file", path("headers"))
        .set("application.upstream_ca", path("roots.pem"))
        .contract(patient_contract(), "POST", ROUTE)
        .consul(&consul.address())
}

#[tokio::test]
async fn a_vendors_api_is_called_with_the_key_from_the_file_and_hears_nothing_of_the_task() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("vendor root"));
    let (vendor, consul) = tokio::join!(Vendor::start(&authority), Consul::start());
    let setup = beside(&vendor, folder.path(), &authority.pem(), &consul);
    let sidecar = setup.start().await;
    let reply = client()
        .post(format!("{}{ROUTE}", sidecar.inbound_url()))
        .header("hermes-task-id", "order-1")
        .header("authorization", "Bearer the-callers-own")
        .json(&contract::fraud_input())
        .send()
        .await
        .unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.headers()["hermes-task-id"], "order-1");
    let seen = vendor.seen();
    let call = seen.last().unwrap();
    assert_eq!(call["authorization"], KEY);
    assert_eq!(call["host"], format!("localhost:{}", vendor.port));
    for name in ["forwarded", "x-forwarded-for", "x-forwarded-proto"] {
        assert!(!call.contains_key(name), "{name} tells who calls");
    }
    let told: Vec<_> = call
        .keys()
        .filter(|name| name.as_str().starts_with("hermes"))
        .collect();
    assert!(told.is_empty(), "{told:?}");
    assert!(
        !sidecar.log().contains("top-secret"),
        "the key is in the log"
    );
}

#[tokio::test]
async fn a_vendors_api_is_tried_with_the_key_and_told_only_that_it_is_a_trial() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("vendor root"));
    let (vendor, consul) = tokio::join!(Vendor::start(&authority), Consul::start());
    let setup = beside(&vendor, folder.path(), &authority.pem(), &consul);
    let mut tried = patient_contract();
    tried["id"] = "vendor-v1.0".into();
    tried["probe"] = json!({"input": contract::fraud_input(), "calls": 2});
    let _sidecar = setup.contract(tried, "POST", "/tried").start().await;
    let seen = vendor.seen();
    let trials: Vec<_> = seen
        .iter()
        .filter(|head| head.contains_key("hermes-sandbox"))
        .collect();
    assert_eq!(trials.len(), 2);
    for head in trials {
        assert_eq!(head["authorization"], KEY);
        let told = head.keys().map(|name| name.as_str());
        let told: Vec<_> = told.filter(|name| name.starts_with("hermes")).collect();
        assert_eq!(told, ["hermes-sandbox"]);
    }
}

#[tokio::test]
async fn a_vendor_whose_certificate_is_not_trusted_is_not_called() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("vendor root"));
    let (vendor, consul) = tokio::join!(Vendor::start(&authority), Consul::start());
    let foreign = Authority::new("foreign root").pem();
    let setup = beside(&vendor, folder.path(), &foreign, &consul);
    let sidecar = setup.start_unready().await;
    wait_until(WITHIN, "reason why it is not ready", async || {
        let checks = get_text(&format!("{}/ready", sidecar.admin_url())).await;
        checks.contains("certificate")
    })
    .await;
    assert!(vendor.seen().is_empty());
}
