//! `contract publish`, `list` and `get`: what is published in Consul.

mod get;
mod list;
mod publish;

pub(super) use get::{GetArgs, get};
pub(super) use list::{ListArgs, list};
pub(super) use publish::{PublishArgs, publish};

use std::sync::Arc;

use clap::Args;

use crate::admission::publication;
use crate::app;
use crate::config::Registry;
use crate::consul::{self, Client, ErrorKind};
use crate::telemetry::log::Chain;

use super::ConfigArgs;
use super::exit::{Exit, Failure};

/// Where Consul is and who we are to it.
#[derive(Debug, Args)]
struct Place {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address of the Consul agent; default: as settings and Consul's own variables say.
    #[arg(long, value_name = "URL")]
    consul: Option<String>,
}

impl Place {
    fn registry(self) -> Result<(Registry, Client), Failure> {
        let mut source = self.config.source();
        let address = self.consul.map(|url| ("consul.address".to_owned(), url));
        source.flags.extend(address);
        let registry = Registry::load(&source)?;
        let config = app::consul_config(&registry.consul);
        let client = Client::new(config, Arc::new(|_, _, _| {})).map_err(refused)?;
        Ok((registry, client))
    }
}

/// Says what publishing came to grief over.
fn failed(error: publication::Error) -> Failure {
    match error {
        publication::Error::Consul(error) => refused(error),
        other => Failure::Answer(Chain(&other).to_string()),
    }
}

fn refused(error: consul::Error) -> Failure {
    let told = Chain(&error).to_string();
    let (text, exit) = match error.kind() {
        ErrorKind::Denied => (
            format!(
                "{told}\nthe token may not do this (or there is none: CONSUL_HTTP_TOKEN, \
                 CONSUL_HTTP_TOKEN_FILE, consul.token_file); publishing ID takes the right to write \
                 KV below PREFIX/contracts/ID/ and PREFIX/index/ID, as in consul/policy-publisher.hcl"
            ),
            Exit::Negative,
        ),
        ErrorKind::Timeout => (told, Exit::Timeout),
        ErrorKind::Invalid => (told, Exit::Usage),
        _ => (told, Exit::Unreachable),
    };
    Failure::Registry { text, exit }
}
