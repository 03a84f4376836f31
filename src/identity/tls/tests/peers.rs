//! Who is let in, who is believed, and with what a process starts.

use super::*;

#[test]
fn peers_of_one_authority_know_each_other_by_name() {
    let ca = Authority::new("root");
    let spiffe = ["fraud", "orders"].map(|name| Peer::new(&ca.spiffe(name), &ca.pem()));
    let dns = ["fraud", "orders"].map(|name| {
        let leaf = ca.dns(&[name, "host.example"]);
        Peer::new(&leaf, &ca.pem())
    });
    for [caller, callee] in [spiffe, dns] {
        assert_eq!(&*caller.tls.name(), "fraud");
        let shaken = call(&caller, "orders", &callee).unwrap();
        assert_eq!(&*shaken.caller().unwrap(), "fraud");
        assert_eq!(&*shaken.callee().unwrap(), "orders");
        assert_eq!(caller.tls.doubts(), Vec::<String>::new());
    }
}

#[test]
fn protocols_are_agreed_upon() {
    let ca = Authority::new("root");
    let peer = Peer::new(&ca.spiffe("fraud"), &ca.pem());
    for (alpn, expected) in [(Alpn::Any, b"h2".as_slice()), (Alpn::Http1, b"http/1.1")] {
        let server = peer.tls.server(Clients::Required);
        let shaken = shake(peer.tls.client(alpn), "fraud", server).unwrap();
        assert_eq!(shaken.server.alpn_protocol(), Some(expected));
        assert_eq!(shaken.client.alpn_protocol(), Some(expected));
        let version = shaken.client.protocol_version();
        assert_eq!(version, Some(ProtocolVersion::TLSv1_3));
    }
}

#[test]
fn tls_1_2_serves_and_resumes() {
    let ca = Authority::new("root");
    let callee = Peer::new(&ca.dns(&["orders"]), &ca.pem());
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap();
    roots.add(root).unwrap();
    let client = ClientConfig::builder_with_provider(callee.tls.provider.clone())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified(
            &ca.dns(&["fraud"]),
        ))));
    let client = Arc::new(client);
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let server = callee.tls.server(Clients::Required);
        let shaken = shake(client.clone(), "orders", server).unwrap();
        let version = shaken.server.protocol_version();
        assert_eq!(version, Some(ProtocolVersion::TLSv1_2));
        assert_eq!(shaken.server.handshake_kind(), Some(kind));
        assert_eq!(&*shaken.caller().unwrap(), "fraud");
    }
}

#[test]
fn a_caller_that_is_not_of_us_is_refused() {
    let (ca, other) = (Authority::new("root"), Authority::new("other"));
    let callee = Peer::new(&ca.spiffe("orders"), &ca.pem());
    let now = SystemTime::now();
    let id = "spiffe://hermes.test/svc/fraud";
    let cases = [
        (other.spiffe("fraud"), "UnknownIssuer"),
        (
            ca.issue(Order::spiffe("fraud").valid(now - 2 * HOUR, now - HOUR)),
            "Expired",
        ),
        (
            ca.issue(Order::spiffe("fraud").valid(now + HOUR, now + 2 * HOUR)),
            "NotValidYet",
        ),
        (
            ca.issue(Order::spiffe("fraud").authority()),
            "CaUsedAsEndEntity",
        ),
        (
            ca.issue(Order::spiffe("fraud").only(ExtendedKeyUsagePurpose::ServerAuth)),
            "InvalidPurpose",
        ),
        (ca.issue(Order::nameless()), "neither a URI nor a DNS name"),
        (ca.issue(Order::spiffe("fraud").uri(id)), "has 2 URI names"),
        (
            ca.issue(Order::dns(&["fraud"]).uri("https://x/svc/fraud")),
            "has not the form spiffe:",
        ),
        (
            ca.issue(Order::nameless().uri("spiffe://evil.test/svc/fraud")),
            "not of our trust domain",
        ),
        (ca.dns(&["fraud"]), "has no trust domain"),
        (ca.dns(&["fraud.example"]), "no application name"),
        (ca.spiffe("fraud"), "accepted"),
    ];
    for (leaf, expected) in cases {
        for clients in [Clients::Required, Clients::Optional] {
            let server = callee.tls.server(clients);
            let said = why(shake(stranger(&leaf, &ca), "orders", server));
            assert!(said.contains(expected), "{expected}: {said}");
        }
    }
}

#[test]
fn a_caller_without_certificate_is_let_in_only_where_it_may_lack_one() {
    let ca = Authority::new("root");
    let callee = Peer::new(&ca.spiffe("orders"), &ca.pem());
    let mut config = (*callee.tls.client(Alpn::Any)).clone();
    config.client_auth_cert_resolver = Arc::new(NoCertificate);
    let config = Arc::new(config);
    let required = callee.tls.server(Clients::Required);
    let said = why(shake(config.clone(), "orders", required));
    assert!(said.contains("NoCertificatesPresented"), "{said}");
    let shaken = shake(config, "orders", callee.tls.server(Clients::Optional)).unwrap();
    assert_eq!(shaken.caller(), Err(NameError::NoCertificate));
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[test]
fn one_who_answers_for_another_is_refused() {
    let (ca, other) = (Authority::new("root"), Authority::new("other"));
    let caller = Peer::new(&ca.spiffe("fraud"), &ca.pem());
    let now = SystemTime::now();
    let good = "spiffe://hermes.test/svc/orders";
    let address = "10.0.0.5".parse().unwrap();
    let cases = [
        ("orders", ca.spiffe("orders"), "accepted"),
        ("orders", ca.spiffe("risk"), "was looked for"),
        ("orders", other.spiffe("orders"), "UnknownIssuer"),
        (
            "orders",
            ca.issue(Order::spiffe("orders").uri(good)),
            "has 2 URI names",
        ),
        (
            "orders",
            ca.issue(Order::nameless().uri("spiffe://evil.test/svc/orders")),
            "not of our trust domain",
        ),
        (
            "orders",
            ca.issue(Order::spiffe("orders").authority()),
            "CaUsedAsEndEntity",
        ),
        (
            "orders",
            ca.issue(Order::spiffe("orders").valid(now - 2 * HOUR, now - HOUR)),
            "Expired",
        ),
        (
            "orders",
            ca.issue(Order::spiffe("orders").only(ExtendedKeyUsagePurpose::ClientAuth)),
            "InvalidPurpose",
        ),
        (
            "orders",
            ca.issue(Order::nameless()),
            "neither a URI nor a DNS name",
        ),
        // A DNS name beside the URI does not make it one of that name.
        (
            "orders",
            ca.issue(Order::dns(&["orders"]).uri("spiffe://hermes.test/svc/risk")),
            "was looked for",
        ),
        // The place dialled is nobody's name.
        (
            "10.0.0.5",
            ca.issue(Order::spiffe("orders").address(address)),
            "NotValidForName",
        ),
    ];
    for (asked, leaf, expected) in cases {
        let client = caller.tls.client(Alpn::Any);
        let said = why(shake(client, asked, impostor(&leaf, &ca)));
        assert!(said.contains(expected), "{asked} {expected}: {said}");
    }
}

#[test]
fn a_collector_is_known_by_its_name_or_by_the_host_of_its_url() {
    let ca = Authority::new("root");
    let reporter = Peer::new(&ca.spiffe("fraud"), &ca.pem());
    let address = "127.0.0.1".parse().unwrap();
    let hosted = ca.issue(Order::dns(&["hosted", "collector.example"]).address(address));
    let named = ca.spiffe("hermes-collector");
    let other = ca.spiffe("orders");
    for (found, asked, leaf, is_accepted) in [
        (Found::ByUrl, "collector.example", &hosted, true),
        (Found::ByUrl, "127.0.0.1", &hosted, true),
        (Found::ByUrl, "elsewhere.example", &hosted, false),
        (Found::ByUrl, "elsewhere.example", &named, true),
        (Found::ByUrl, "orders", &other, false),
        (Found::ByLookup, "127.0.0.1", &named, true),
        (Found::ByLookup, "127.0.0.1", &hosted, false),
        (Found::ByLookup, "127.0.0.1", &other, false),
    ] {
        let shaken = shake(reporter.tls.reporter(found), asked, impostor(leaf, &ca));
        assert_eq!(shaken.is_ok(), is_accepted, "{found:?} {asked}");
    }
}

#[test]
fn server_names_on_the_wire_have_no_dot_at_the_end_and_are_no_addresses() {
    let ca = Authority::new("root");
    let peer = Peer::new(&ca.spiffe("fraud"), &ca.pem());
    for (asked, sent) in [
        ("orders.internal.", Some("orders.internal")),
        ("orders", Some("orders")),
        ("10.0.0.5", None),
        ("2001:db8::1", None),
    ] {
        let name = ServerName::try_from(asked.to_owned()).unwrap();
        let client = peer.tls.reporter(Found::ByUrl);
        let mut client = ClientConnection::new(client, name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut hello.as_slice()).unwrap();
        let accepted = acceptor.accept().unwrap().unwrap();
        assert_eq!(accepted.client_hello().server_name(), sent, "{asked}");
    }
}

#[test]
fn any_valid_root_of_a_bundle_serves() {
    let now = SystemTime::now();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let gone = Authority::valid("gone", now - 2 * HOUR, now - HOUR);
    let leaf = old.spiffe("risk");
    let broken = "-----BEGIN CERTIFICATE-----\nnonsense!\n-----END CERTIFICATE-----\n";
    let all = [
        broken,
        &gone.pem(),
        &leaf.chain,
        &old.pem(),
        "some remark\n",
        &new.pem(),
    ];
    let fraud = Peer::new(&old.spiffe("fraud"), &all.concat());
    let orders = Peer::new(&new.spiffe("orders"), &all.concat());
    call(&fraud, "orders", &orders).unwrap();
    call(&orders, "fraud", &fraud).unwrap();
    let doubts = fraud.tls.doubts();
    assert_eq!(doubts.len(), 3, "{doubts:?}");
    for (doubt, part) in doubts.iter().zip(["entry 1", "entry 2", "entry 3"]) {
        assert!(doubt.contains(part), "{doubts:?}");
    }
    // Whoever is skipped is not trusted either.
    let client = stranger(&gone.spiffe("fraud"), &new);
    let said = why(shake(
        client,
        "orders",
        orders.tls.server(Clients::Required),
    ));
    assert!(said.contains("UnknownIssuer"), "{said}");
}

#[test]
fn any_valid_path_serves() {
    let now = SystemTime::now();
    let (ca, inner) = (Authority::new("root"), Authority::new("inner"));
    let expired = ca.intermediate("expired", now - 2 * HOUR, now - HOUR);
    let good = ca.intermediate("good", now - HOUR, now + HOUR);
    let leaf = good.spiffe("fraud").through(&expired).through(&inner);
    let caller = Peer::new(&leaf.through(&good), &ca.pem());
    let callee = Peer::new(&ca.spiffe("orders"), &ca.pem());
    call(&caller, "orders", &callee).unwrap();
    let caller = Peer::new(&expired.spiffe("fraud").through(&expired), &ca.pem());
    let said = why(call(&caller, "orders", &callee));
    assert!(said.contains("Expired"), "{said}");
    let doubts = caller.tls.doubts();
    assert!(doubts[0].contains("would refuse"), "{doubts:?}");
}

#[test]
fn what_cannot_work_is_refused_at_the_start() {
    let (ca, now) = (Authority::new("root"), SystemTime::now());
    let good = ca.spiffe("fraud");
    let with = |chain: &str, key: &str| Leaf {
        chain: chain.to_owned(),
        key: key.to_owned(),
    };
    let mixed = with(&good.chain, &ca.spiffe("fraud").key);
    let past = Order::spiffe("fraud").valid(now - 2 * HOUR, now - HOUR);
    let gone = Authority::valid("gone", now - 2 * HOUR, now - HOUR);
    let cases = [
        (good.clone(), ca.pem(), None),
        (mixed, ca.pem(), Some("do not belong together")),
        (with("", &good.key), ca.pem(), Some("holds no certificate")),
        (with(&good.chain, ""), ca.pem(), Some("no private key")),
        (
            with(&good.key, &good.chain),
            ca.pem(),
            Some("no certificate"),
        ),
        (ca.issue(past), ca.pem(), Some("holds from")),
        (
            ca.issue(Order::spiffe("fraud").authority()),
            ca.pem(),
            Some("issue others"),
        ),
        (ca.issue(Order::nameless()), ca.pem(), Some("name")),
        (ca.dns(&["a.b"]), ca.pem(), Some("no application name")),
        (ca.spiffe("7401"), ca.pem(), Some("digits")),
        (good.clone(), String::new(), Some("no certificate")),
        (good.clone(), gone.pem(), Some("none of the bundle's 1")),
    ];
    for (leaf, bundle, expected) in cases {
        let said = Peer::open(&leaf, &bundle).err().map(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let root = std::error::Error::source(&error).and_then(std::error::Error::source);
            format!(
                "{error}: {cause:?} {root:?} {}",
                root.map_or(String::new(), |e| e.to_string())
            )
        });
        match (said, expected) {
            (None, None) => {}
            (Some(said), Some(expected)) => assert!(said.contains(expected), "{expected}: {said}"),
            (said, expected) => panic!("{expected:?}: {said:?}"),
        }
    }
    let missing = Config {
        cert: "/nowhere/cert.pem".into(),
        key: "/nowhere/key.pem".into(),
        ca: "/nowhere/ca.pem".into(),
    };
    let error = Tls::open(missing).err().unwrap().to_string();
    assert_eq!(error, "tls.cert: read /nowhere/cert.pem");
}
