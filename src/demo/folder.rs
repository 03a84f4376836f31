//! A folder for the demo's files that goes with its value.

use super::Error;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder; dropping it removes it with all that is in it.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes an empty one that only we may enter, where temporary files belong.
    pub fn make() -> Result<Self, Error> {
        let name = format!("hermes-demo-{:016x}", fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(Error::Folder)?;
        Ok(Self(path))
    }

    /// Writes a file into it and returns where it is.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.0.join(name);
        match std::fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(source) => Err(Error::Write { path, source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            let folder = self.0.display();
            tracing::warn!(%folder, %error, "the demo's files could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_its_value() {
        let folder = Folder::make().unwrap();
        let file = folder.write("a.json", "{}").unwrap();
        assert!(file.starts_with(folder.path()) && file.is_file());
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
