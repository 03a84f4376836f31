//! The token that calls show, from the settings or from a file that may change.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use reqwest::header::HeaderValue;

use crate::identity::Secret;

use super::error::Error;
use super::transport::{Config, read};

const MAX_TOKEN_BYTES: u64 = 4096;

/// The token for the next call.
pub(super) enum TokenSource {
    Fixed(Option<HeaderValue>),
    File {
        path: PathBuf,
        seen: Mutex<TokenFile>,
    },
}

#[derive(Clone)]
pub(super) struct TokenFile {
    stamp: Option<(SystemTime, u64)>,
    header: Option<HeaderValue>,
}

impl TokenSource {
    /// Takes the token as it is configured; a file must be readable now, and each call looks at it.
    pub(super) fn new(config: &Config) -> Result<TokenSource, Error> {
        let Some(path) = config.token_file.clone() else {
            let fixed = config.token.as_ref().map(header).transpose()?;
            return Ok(TokenSource::Fixed(fixed.flatten()));
        };
        let text = read("token file", &path)?;
        let header = token_of(&text)?;
        // No stamp yet: the first call looks again, so nothing written in between is missed.
        let seen = Mutex::new(TokenFile {
            stamp: None,
            header,
        });
        Ok(TokenSource::File { path, seen })
    }

    /// Gives the present token; a file that cannot be read leaves the last one in use, since a
    /// rotation may replace it by unlinking first.
    pub(super) async fn current(&self) -> Result<Option<HeaderValue>, Error> {
        let (path, seen) = match self {
            TokenSource::Fixed(header) => return Ok(header.clone()),
            TokenSource::File { path, seen } => (path, seen),
        };
        let last = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Ok(stat) = tokio::fs::metadata(path).await else {
            return Ok(last.header);
        };
        let stamp = stat.modified().ok().map(|modified| (modified, stat.len()));
        if stamp == last.stamp || stat.len() > MAX_TOKEN_BYTES {
            return Ok(last.header);
        }
        let Ok(text) = tokio::fs::read(path).await else {
            return Ok(last.header);
        };
        let header = token_of(&text)?;
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = TokenFile {
            stamp,
            header: header.clone(),
        };
        Ok(header)
    }
}

fn token_of(text: &[u8]) -> Result<Option<HeaderValue>, Error> {
    header(&Secret::new(String::from_utf8_lossy(text)))
}

/// Returns the token as a header shows it, or nothing where it is empty.
fn header(token: &Secret) -> Result<Option<HeaderValue>, Error> {
    let text = token.reveal().trim();
    if text.is_empty() {
        return Ok(None);
    }
    let mut value = HeaderValue::from_str(text).map_err(|_error| Error::Invalid {
        what: "the token".to_owned(),
        problems: vec!["it holds characters that a header cannot carry".to_owned()],
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}
