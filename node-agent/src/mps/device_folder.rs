//! Paths of a device's daemon, below a folder that has the same path in every pod and on the host.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Most characters of a UUID, as in the GpuNode API.
const MAX_UUID: usize = 64;
const ANSWERED: &str = "answered";

/// Returns the path of a device's folder. Drivers before 470 name a MIG device `MIG-GPU-.../1/0`.
pub fn folder_path(mps_dir: &Path, uuid: &str) -> PathBuf {
    mps_dir.join(uuid.replace('/', "_"))
}

/// Folder of one device. Containers that hold the device see only `pipe` and `shm` of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFolder {
    uuid: String,
    path: PathBuf,
}

impl DeviceFolder {
    /// Returns the folder of a device; `None` if `uuid` is not the UUID of a GPU or MIG device, because a privileged process
    /// uses the path.
    pub fn of(mps_dir: &Path, uuid: &str) -> Option<Self> {
        let (kind, rest) = uuid.split_once('-')?;
        let parts: Vec<&str> = rest.split('/').collect();
        let known = matches!((kind, parts.len()), ("GPU" | "MIG", 1) | ("MIG", 3)) && uuid.len() <= MAX_UUID;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let plain = parts.iter().all(|part| !part.is_empty() && part.bytes().all(is_plain));
        (known && plain).then(|| Self {
            uuid: uuid.to_owned(),
            path: folder_path(mps_dir, uuid),
        })
    }

    /// Lists the folders on disk.
    pub fn all(mps_dir: &Path) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(mps_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut folders = Vec::new();
        for entry in entries {
            let uuid = entry?.file_name().to_str().map(|name| name.replace('_', "/"));
            folders.extend(uuid.and_then(|uuid| Self::of(mps_dir, &uuid)));
        }
        Ok(folders)
    }

    /// UUID of the device.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Returns true for a MIG device.
    pub fn is_mig(&self) -> bool {
        self.uuid.starts_with("MIG-")
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the daemon's sockets. Clients mount it, so it is not replaced while the daemon is desired.
    pub fn pipe(&self) -> PathBuf {
        self.path.join("pipe")
    }

    /// Folder of the daemon's logs.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Folder that the daemon and its clients see as `/dev/shm`.
    pub fn shm(&self) -> PathBuf {
        self.path.join("shm")
    }

    /// File with the saved compute mode of the GPU.
    pub fn compute_mode(&self) -> PathBuf {
        self.path.join("compute-mode")
    }

    /// File with the time of the daemon's last answer.
    pub fn answered(&self) -> PathBuf {
        self.path.join(ANSWERED)
    }

    /// Reads the time of the daemon's last answer, since boot; `None` without an answer.
    pub fn read_answered(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.answered()).ok()?;
        text.trim().parse().ok().map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uuids_of_devices_become_paths() {
        let root = Path::new("/run/gpunode/mps");
        let good = "GPU-8dcd427e-483b-b48f-d7e5-75fb19a52b76";
        assert_eq!(
            DeviceFolder::of(root, good).unwrap().pipe(),
            root.join(good).join("pipe")
        );
        assert!(
            DeviceFolder::of(root, "MIG-c7384736-a75d-5afc-978f-d2f1294409fd")
                .unwrap()
                .is_mig()
        );
        let long = format!("GPU-{}", "a".repeat(61));
        for bad in [
            "",
            "GPU",
            "GPU-",
            "GPU-../..",
            "GPU-a/b",
            "../GPU-1",
            "MIG-GPU-1/1",
            "MIG-GPU-1/1/",
            "MIG-GPU-1/../0",
            "GPU-1_1",
            "gpu-1",
            "GPU-a b",
            "GPU-\0",
            &long,
        ] {
            assert_eq!(DeviceFolder::of(root, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn other_files_are_not_folders_of_devices() {
        let root = tempfile::tempdir().unwrap();
        assert!(DeviceFolder::all(&root.path().join("missing")).unwrap().is_empty());
        fs::create_dir(root.path().join("GPU-1")).unwrap();
        fs::write(root.path().join("lock"), "").unwrap();
        assert_eq!(
            DeviceFolder::all(root.path()).unwrap(),
            [DeviceFolder::of(root.path(), "GPU-1").unwrap()]
        );
    }

    #[test]
    fn a_mig_device_named_by_its_place_has_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = DeviceFolder::of(root.path(), "MIG-GPU-8dcd427e/1/0").unwrap();
        assert_eq!(folder.path(), root.path().join("MIG-GPU-8dcd427e_1_0"));
        fs::create_dir(folder.path()).unwrap();
        assert_eq!(DeviceFolder::all(root.path()).unwrap(), [folder]);
    }
}
