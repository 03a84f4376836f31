//! Files that commands read whole: contracts, documents, keys.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::exit::Failure;

/// Far beyond the 256 KiB a contract may have, which the linter itself reports.
const MAX_BYTES: u64 = 4 << 20;

/// Reads files, each with the name it was given.
pub(super) fn read_all(paths: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let named = |path: &PathBuf| Ok((path.display().to_string(), read(path)?));
    paths.iter().map(named).collect()
}

/// Reads one file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    whole(path, MAX_BYTES).map_err(|source| Failure::Read {
        path: path.to_owned(),
        source,
    })
}

fn whole(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    let length = std::fs::File::open(path)?
        .take(most + 1)
        .read_to_end(&mut body)?;
    if length as u64 > most {
        let message = format!("it is longer than {most} bytes; give a smaller file");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [b'x'; 10]).unwrap();
        assert_eq!(whole(&path, 10).unwrap().len(), 10);
        let refused = whole(&path, 9).unwrap_err().to_string();
        assert!(refused.contains("longer than 9 bytes"), "{refused}");
    }
}
