//! Whose context headers are believed, by network or by certificate, and who may call a contract.

use std::net::IpAddr;
use std::str::FromStr;

/// Peers whose `Hermes-*` fields are taken over; from others they are removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Trust {
    #[default]
    Any,
    /// Those whose certificate was verified.
    Mtls,
    Networks(Vec<Network>),
}

/// The calling applications that a contract is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Allow {
    #[default]
    All,
    Named(Vec<String>),
}

impl Allow {
    /// Says whether the application of that name, proven by its certificate, may call.
    pub fn admits(&self, name: Option<&str>) -> bool {
        match (self, name) {
            (Allow::All, _) => true,
            (Allow::Named(names), Some(name)) => names.iter().any(|allowed| allowed == name),
            (Allow::Named(_), None) => false,
        }
    }
}

/// A network in CIDR form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: u128,
    mask: u128,
    is_v4: bool,
}

/// A text that is no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a network is written 10.0.0.0/8 or 192.0.2.7")]
pub struct NotANetwork;

impl Trust {
    /// Says whether the context of the peer at an address is believed; `is_proven` where its
    /// certificate was verified.
    pub fn believes(&self, peer: IpAddr, is_proven: bool) -> bool {
        match self {
            Trust::Any => true,
            Trust::Mtls => is_proven,
            Trust::Networks(networks) => networks.iter().any(|network| network.holds(peer)),
        }
    }
}

impl Network {
    fn holds(&self, peer: IpAddr) -> bool {
        let (bits, is_v4) = bits(peer.to_canonical());
        is_v4 == self.is_v4 && bits & self.mask == self.address
    }
}

/// Lines an address up at the upper end of 128 bits.
fn bits(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, true),
        IpAddr::V6(v6) => (v6.to_bits(), false),
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().or(Err(NotANetwork))?;
        let (bits, is_v4) = bits(address);
        let longest = if is_v4 { 32 } else { 128 };
        // A bare address is the network of itself alone.
        let length = length
            .map_or(Ok(longest), str::parse)
            .or(Err(NotANetwork))?;
        if length > longest {
            return Err(NotANetwork);
        }
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        Ok(Self {
            address: bits & mask,
            mask,
            is_v4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses_only() {
        for (network, peer, held) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8::1", true),
            ("::/0", "2001:db8::1", true),
            ("127.0.0.1/32", "127.0.0.2", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
        ] {
            let trust = Trust::Networks(vec![network.parse().unwrap()]);
            assert_eq!(
                trust.believes(peer.parse().unwrap(), false),
                held,
                "{network} {peer}"
            );
        }
    }

    #[test]
    fn only_proven_names_are_believed_and_let_in() {
        let peer = IpAddr::from([127, 0, 0, 1]);
        assert!(Trust::Mtls.believes(peer, true));
        assert!(!Trust::Mtls.believes(peer, false));
        let allow = Allow::Named(vec!["shop".to_owned(), "till".to_owned()]);
        for (name, admitted) in [
            (Some("shop"), true),
            (Some("till"), true),
            (Some("sho"), false),
            (Some("*"), false),
            (None, false),
        ] {
            assert_eq!(allow.admits(name), admitted, "{name:?}");
            assert!(Allow::All.admits(name));
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "10.0.0.0/", "10.0.0.0/33", "x/8", "::/129", "host"] {
            assert_eq!(text.parse::<Network>(), Err(NotANetwork), "{text}");
        }
    }
}
