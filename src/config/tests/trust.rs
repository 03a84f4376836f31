//! `[trust]`: modes, keys and the files they are in.

use super::*;
use crate::contract::trust::Mode;
use crate::identity::key::KeyPair;

fn world(trust: &str) -> World {
    let world = World::with(&format!("[application]\nname = 'shop'\n{trust}"));
    KeyPair::generate()
        .unwrap()
        .create(&world.path("finance"))
        .unwrap();
    world
}

#[test]
fn keys_are_read_with_their_names_and_ids() {
    for (word, mode) in [
        ("pinned", Mode::Pinned),
        ("tofu", Mode::Tofu),
        ("off", Mode::Off),
    ] {
        let world = world(&format!(
            "[trust]\nmode = '{word}'\n[[trust.key]]\nfile = 'finance.pub'\nkid = 'finance-1'\n\
             ids = ['fraud-*', 'risk-v1.0']\n[[trust.key]]\nfile = 'finance.pub'\nids = ['*']\n"
        ));
        let trust = world.load().trust;
        assert_eq!(trust.mode, mode);
        let [named, unnamed] = trust.keys.as_slice() else {
            panic!("{:?}", trust.keys)
        };
        assert_eq!(named.kid, "finance-1");
        assert_eq!(unnamed.kid, unnamed.key.thumbprint());
        assert!(named.is_for("fraud-detection-v1.0") && named.is_for("risk-v1.0"));
        assert!(!named.is_for("risk-v1.1") && unnamed.is_for("risk-v1.1"));
    }
    let trust = World::with("[application]\nname = 'shop'\n").load().trust;
    assert_eq!((trust.mode, trust.keys.len()), (Mode::Tofu, 0));
}

#[test]
fn every_fault_of_every_key_is_told_with_its_line() {
    let world = world(
        "[[trust.key]]\nkid = ''\n[[trust.key]]\nfile = 'finance'\nids = ['Fraud', 'fraud-*', 'a b']\n\
         [[trust.key]]\nfile = 'nowhere.pub'\nids = []\n[[trust.key]]\nfile = 'fraud.json'\n\
         ids = ['*']\n",
    );
    let told = world.problems(Role::Sidecar);
    for (problem, part) in told.iter().zip([
        "3 trust.key[0].file: is required: a public key",
        "3 trust.key[0].ids: is required: ids of contracts",
        "6 trust.key[1].file: ",
        "7 trust.key[1].ids: \"Fraud\" matches no contract id",
        "7 trust.key[1].ids: \"a b\" matches no contract id",
        "9 trust.key[2].file: ",
        "10 trust.key[2].ids: is required",
        "12 trust.key[3].file: ",
    ]) {
        assert!(problem.starts_with(part), "{problem} is not {part}");
    }
    assert_eq!(told.len(), 8, "{told:#?}");
    assert!(told[2].contains("private key"), "{}", told[2]);
    assert!(told[7].contains("JWK"), "{}", told[7]);
}
