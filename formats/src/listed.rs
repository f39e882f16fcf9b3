//! Files of a folder that a file in it lists (an index, a head), or that are known by the names that a dump's files
//! have. The user named only the folder, and whoever made the folder chose these files; so they must lie in the folder.

use std::path::Path;

use crate::error::{FileError, FileErrorKind};

/// Refuses a file, or a folder, listed in `folder` that is a symbolic link out of it.
///
/// In a cache of Hugging Face's hub, the files of a snapshot are links to files that all snapshots of the repository
/// share, `snapshots/REVISION/FILE` → `../../blobs/HASH`. These are allowed.
pub(crate) fn refuse_elsewhere(folder: &Path, listed: &Path) -> Result<(), FileError> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // What is not there is left to whoever opens it.
    let (Ok(target), Ok(within)) = (listed.canonicalize(), folder.canonicalize()) else { return Ok(()) };
    let snapshot =
        within.ancestors().find(|ancestor| ancestor.parent().is_some_and(|above| above.ends_with("snapshots")));
    let repository = snapshot.and_then(|snapshot| snapshot.parent()?.parent());
    let is_blob = |repository: &Path| target.starts_with(repository.join("blobs"));
    if target.starts_with(&within) || repository.is_some_and(is_blob) {
        return Ok(());
    }
    let what = format!("is a symbolic link to {}, which is not in {}", target.display(), within.display());
    let remedy =
        "if you mean that file, give it by its own path, or put it, or a hard link to it, in place of the link";
    Err(FileError::new(FileErrorKind::Elsewhere, listed, what, remedy))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_out_of_no_folder_but_a_snapshot_s_to_its_blobs() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["m/snapshots/r/sub", "m/blobs", "other/blobs", "plain/sub", "blobs"] {
            std::fs::create_dir_all(path(folder)).unwrap();
        }
        for file in ["m/blobs/h", "other/blobs/h", "plain/sub/file", "plain/file", "blobs/h", "secret"] {
            std::fs::write(path(file), "").unwrap();
        }
        let listed = |folder: &str, target: &str| {
            let link = path(folder).join("link");
            let _ = std::fs::remove_file(&link);
            symlink(target, &link).unwrap();
            refuse_elsewhere(&path(folder), &link).map_err(|error| error.kind)
        };
        assert_eq!(listed("plain", "file"), Ok(()));
        assert_eq!(listed("plain", "sub/file"), Ok(()));
        assert_eq!(listed("plain", "../plain/./file"), Ok(()));
        assert_eq!(listed("m/snapshots/r", "../../blobs/h"), Ok(()));
        assert_eq!(listed("m/snapshots/r/sub", "../../../blobs/h"), Ok(()));
        for (folder, target) in [
            ("plain", "../secret"),
            ("plain", "../blobs/h"),
            ("plain/sub", "../file"),
            ("m/snapshots/r", "../../../secret"),
            ("m/snapshots/r", "../../../other/blobs/h"),
            ("m/snapshots/r", "../../../blobs/h"),
        ] {
            assert_eq!(listed(folder, target), Err(FileErrorKind::Elsewhere), "{folder} {target}");
        }
        assert_eq!(listed("plain", "absent"), Ok(()), "whoever opens it says so");
        assert!(refuse_elsewhere(&path("plain"), &path("plain/file")).is_ok());
        // A folder of blobs that leads elsewhere is none of the cache.
        std::fs::remove_dir_all(path("m/blobs")).unwrap();
        symlink("../other/blobs", path("m/blobs")).unwrap();
        assert_eq!(listed("m/snapshots/r", "../../blobs/h"), Err(FileErrorKind::Elsewhere));
    }
}
