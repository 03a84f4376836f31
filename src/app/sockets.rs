//! Binding a sidecar's listeners before anything else is done.

use super::Error;
use crate::config::Settings;
use crate::socket::{Address, Listener};

/// Where a sidecar's listeners are bound.
#[derive(Debug, Clone)]
pub struct Addresses {
    pub inbound: Option<Address>,
    pub outbound: Address,
    pub admin: Address,
    pub public: Option<Address>,
}

/// The bound sockets of a sidecar.
pub struct Sockets {
    pub inbound: Option<Listener>,
    pub outbound: Listener,
    pub admin: Listener,
    pub public: Option<Listener>,
}

impl Sockets {
    /// Binds all; a port that is taken ends the start.
    pub async fn bind(settings: &Settings) -> Result<Self, Error> {
        let serves = settings.application.upstream.is_some();
        let inbound = match serves {
            true => Some(bind("inbound.listen", &settings.inbound.listen).await?),
            false => None,
        };
        let public = match &settings.admin.public_listen {
            Some(address) => Some(bind("admin.public_listen", address).await?),
            None => None,
        };
        Ok(Self {
            inbound,
            outbound: bind("outbound.listen", &settings.outbound.listen).await?,
            admin: bind("admin.listen", &settings.admin.listen).await?,
            public,
        })
    }

    /// Returns where they are, which matters where port 0 was asked for.
    pub fn addresses(&self) -> Result<Addresses, Error> {
        Ok(Addresses {
            inbound: self.inbound.as_ref().map(address).transpose()?,
            outbound: address(&self.outbound)?,
            admin: address(&self.admin)?,
            public: self.public.as_ref().map(address).transpose()?,
        })
    }
}

/// Binds a listener; the error names the key to change.
pub async fn bind(key: &'static str, address: &Address) -> Result<Listener, Error> {
    let bound = Listener::bind(address).await;
    bound.map_err(|source| Error::Bind {
        key,
        address: address.clone(),
        source,
    })
}

/// Returns where a listener is bound.
pub fn address(listener: &Listener) -> Result<Address, Error> {
    listener.address().map_err(Error::Unbound)
}
