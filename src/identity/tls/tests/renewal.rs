//! Files that change under a running process.

use super::*;

/// A peer that notes what it is told.
fn noted(leaf: &Leaf, ca: &str) -> (Peer, Arc<Mutex<Vec<Event>>>) {
    let peer = Peer::new(leaf, ca);
    let events = Arc::new(Mutex::new(Vec::new()));
    let note = events.clone();
    peer.tls.observe(Box::new(move |event| {
        if !matches!(event, Event::InUse(_)) {
            note.lock().unwrap().push(event);
        }
    }));
    (peer, events)
}

#[test]
fn a_renewed_pair_serves_from_the_next_handshake_on() {
    let ca = Authority::new("root");
    let (peer, events) = noted(&ca.spiffe("fraud"), &ca.pem());
    let first = call(&peer, "fraud", &peer).unwrap();
    let changed = peer.tls.changed();
    peer.look();
    assert!(!changed.has_changed().unwrap(), "nothing is new");
    peer.files.renew(&ca.spiffe("fraud"));
    peer.look();
    assert!(changed.has_changed().unwrap());
    let second = call(&peer, "fraud", &peer).unwrap();
    assert_ne!(
        first.client.peer_certificates(),
        second.client.peer_certificates()
    );
    assert_ne!(
        first.server.peer_certificates(),
        second.server.peer_certificates()
    );
    assert_eq!(*events.lock().unwrap(), [Event::Taken(Part::Own)]);
}

#[test]
fn a_broken_pair_leaves_the_last_good_one_and_is_told_once() {
    let ca = Authority::new("root");
    let now = SystemTime::now();
    let (peer, events) = noted(&ca.spiffe("fraud"), &ca.pem());
    let renewed = ca.spiffe("fraud");
    let broken = [
        ("another's name", ca.spiffe("orders")),
        (
            "expired",
            ca.issue(Order::spiffe("fraud").valid(now - 2 * HOUR, now - HOUR)),
        ),
        (
            "key first",
            Leaf {
                chain: ca.spiffe("fraud").chain,
                key: renewed.key.clone(),
            },
        ),
        (
            "cut",
            Leaf {
                chain: renewed.chain[..200].to_owned(),
                key: renewed.key.clone(),
            },
        ),
    ];
    for (what, leaf) in &broken {
        peer.files.renew(leaf);
        peer.look();
        peer.look();
        call(&peer, "fraud", &peer).expect(what);
        let told = std::mem::take(&mut *events.lock().unwrap());
        assert_eq!(told, [Event::Refused(Part::Own)], "{what}");
    }
    std::fs::remove_file(&peer.files.cert).unwrap();
    peer.look();
    call(&peer, "fraud", &peer).unwrap();
    peer.files.renew(&renewed);
    peer.look();
    let told = std::mem::take(&mut *events.lock().unwrap());
    assert_eq!(told, [Event::Refused(Part::Own), Event::Taken(Part::Own)]);
}

#[test]
fn a_pair_that_does_not_hold_yet_is_taken_when_it_does() {
    let ca = Authority::new("root");
    let (peer, events) = noted(&ca.spiffe("fraud"), &ca.pem());
    let now = SystemTime::now();
    let order = Order::spiffe("fraud").valid(now + HOUR, now + 2 * HOUR);
    peer.files.renew(&ca.issue(order));
    peer.look();
    let later = Timestamp::now().plus(HOUR + Duration::from_secs(1));
    peer.tls.renew(&Files::read(&peer.tls.config), later);
    assert_eq!(
        *events.lock().unwrap(),
        [Event::Refused(Part::Own), Event::Taken(Part::Own)]
    );
}

#[test]
fn a_bundle_is_exchanged_alone_and_an_unusable_one_is_not_taken() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (peer, events) = noted(&old.spiffe("orders"), &old.pem());
    let after = Peer::new(&new.spiffe("fraud"), &(old.pem() + &new.pem()));
    let before = Peer::new(&old.spiffe("fraud"), &(old.pem() + &new.pem()));
    assert!(call(&after, "orders", &peer).is_err());
    replace(&peer.files.ca, &(old.pem() + &new.pem()));
    peer.look();
    call(&after, "orders", &peer).unwrap();
    call(&before, "orders", &peer).unwrap();
    for unusable in ["", "nonsense", &peer_key(&old)] {
        replace(&peer.files.ca, unusable);
        peer.look();
        peer.look();
        call(&before, "orders", &peer).unwrap();
    }
    std::fs::remove_file(&peer.files.ca).unwrap();
    peer.look();
    call(&before, "orders", &peer).unwrap();
    // The old root goes: whoever was let in by it is refused from the next handshake on.
    replace(&peer.files.ca, &new.pem());
    peer.look();
    let said = why(call(&before, "orders", &peer));
    assert!(said.contains("UnknownIssuer"), "{said}");
    call(&after, "orders", &peer).unwrap();
    let (taken, refused) = (Event::Taken(Part::Ca), Event::Refused(Part::Ca));
    assert_eq!(
        *events.lock().unwrap(),
        [taken, refused, refused, refused, refused, taken]
    );
}

fn peer_key(ca: &Authority) -> String {
    ca.spiffe("x").key
}

#[test]
fn a_broken_pair_does_not_hold_up_a_new_bundle() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (peer, events) = noted(&old.spiffe("orders"), &old.pem());
    replace(&peer.files.key, &peer_key(&old));
    replace(&peer.files.ca, &(old.pem() + &new.pem()));
    peer.look();
    let caller = Peer::new(&new.spiffe("fraud"), &(old.pem() + &new.pem()));
    call(&caller, "orders", &peer).unwrap();
    assert_eq!(
        *events.lock().unwrap(),
        [Event::Refused(Part::Own), Event::Taken(Part::Ca)]
    );
}

#[test]
fn sessions_are_resumed_but_never_over_a_change() {
    let ca = Authority::new("root");
    let (caller, callee) = (
        Peer::new(&ca.spiffe("fraud"), &ca.pem()),
        Peer::new(&ca.spiffe("orders"), &ca.pem()),
    );
    let kind = || {
        let shaken = call(&caller, "orders", &callee).unwrap();
        assert_eq!(&*shaken.caller().unwrap(), "fraud", "also when resumed");
        shaken.server.handshake_kind()
    };
    assert_eq!(kind(), Some(HandshakeKind::Full));
    assert_eq!(kind(), Some(HandshakeKind::Resumed));
    // Only the callee's roots change: the caller still offers its session.
    replace(
        &callee.files.ca,
        &(Authority::new("more").pem() + &ca.pem()),
    );
    callee.look();
    assert_eq!(kind(), Some(HandshakeKind::Full));
    assert_eq!(kind(), Some(HandshakeKind::Resumed));
    caller.files.renew(&ca.spiffe("fraud"));
    caller.look();
    assert_eq!(kind(), Some(HandshakeKind::Full));
}

#[test]
fn a_root_is_dropped_when_it_expires() {
    let now = SystemTime::now();
    let (long, short) = (
        Authority::new("long"),
        Authority::valid("short", now - HOUR, now + HOUR),
    );
    let (peer, events) = noted(&long.spiffe("orders"), &(long.pem() + &short.pem()));
    let expiry = peer.tls.expiry();
    let seconds = expiry.ca.age(Timestamp::now()).as_secs();
    assert_eq!(seconds, 0, "{expiry:?}");
    let later = Timestamp::now().plus(HOUR + Duration::from_secs(1));
    peer.tls.renew(&Files::read(&peer.tls.config), later);
    assert!(peer.tls.expiry().ca > later);
    let caller = Peer::new(&short.spiffe("fraud"), &(long.pem() + &short.pem()));
    let said = why(call(&caller, "orders", &peer));
    assert!(said.contains("UnknownIssuer"), "{said}");
    assert_eq!(*events.lock().unwrap(), [Event::Taken(Part::Ca)]);
}

#[test]
fn past_the_last_root_nobody_is_trusted() {
    let now = SystemTime::now();
    let ca = Authority::valid("root", now - HOUR, now + Duration::from_secs(1));
    let year = Order::spiffe("fraud");
    let (peer, events) = noted(&ca.issue(year), &ca.pem());
    call(&peer, "fraud", &peer).unwrap();
    while SystemTime::now() < now + Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(20));
    }
    peer.look();
    peer.look();
    // A fresh set of sessions: what was resumed would not be verified.
    let fresh = Parties::build(
        &peer.tls.in_use.load().pair,
        &peer.tls.in_use.load().roots,
        &peer.tls.provider,
    );
    let fresh = fresh.unwrap();
    let said = why(shake(
        fresh.client(Alpn::Any).clone(),
        "fraud",
        fresh.server(Clients::Required).clone(),
    ));
    assert!(said.contains("every root has expired"), "{said}");
    assert_eq!(*events.lock().unwrap(), [Event::Refused(Part::Ca)]);
}

#[tokio::test(start_paused = true)]
async fn files_are_watched_however_they_are_replaced() {
    let ca = Authority::new("root");
    let directory = TempDir::new().unwrap();
    let (first, second) = (directory.path().join("1"), directory.path().join("2"));
    for folder in [&first, &second] {
        std::fs::create_dir(folder).unwrap();
        TlsFiles::write(folder, &ca.spiffe("fraud"), &ca.pem());
    }
    let current = directory.path().join("current");
    symlink(&first, &current).unwrap();
    let files = TlsFiles {
        cert: current.join("cert.pem"),
        key: current.join("key.pem"),
        ca: current.join("ca.pem"),
    };
    let tls = Tls::open(config(&files)).unwrap();
    let mut changed = tls.changed();
    let watching = tls.clone().watch();
    let change = async {
        switch(&current, &second);
        changed.changed().await.unwrap();
        let leaf = ca.spiffe("fraud");
        // In place, which keeps the inode.
        std::fs::write(second.join("key.pem"), &leaf.key).unwrap();
        std::fs::write(second.join("cert.pem"), &leaf.chain).unwrap();
        changed.changed().await.unwrap();
        files.renew(&ca.spiffe("fraud"));
        changed.changed().await.unwrap();
        replace(&files.ca, &(ca.pem() + &Authority::new("more").pem()));
        changed.changed().await.unwrap();
    };
    tokio::select! {
        () = watching => unreachable!("it never ends"),
        () = change => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("a change was not seen"),
    }
}

/// Switches a symbolic link as Kubernetes does.
fn switch(link: &Path, to: &Path) {
    let fresh = link.with_extension("fresh");
    symlink(to, &fresh).unwrap();
    std::fs::rename(fresh, link).unwrap();
}

#[test]
fn a_key_that_all_may_read_is_doubted() {
    use std::os::unix::fs::PermissionsExt;
    let ca = Authority::new("root");
    let peer = Peer::new(&ca.spiffe("fraud"), &ca.pem());
    assert_eq!(peer.tls.doubts(), Vec::<String>::new());
    let key = peer.directory.path().join("key.pem");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let doubts = peer.tls.doubts();
    assert!(doubts[0].contains("every user"), "{doubts:?}");
}
