//! The hook `create-symlinks`: links that the driver's packages make on a host, such as `libcuda.so`.

use crate::{
    command_line::ContainerLink,
    container_root::{ContainerRoot, DEV},
    hook_error::{HookError, say},
};

/// Makes `links`, with the folders that they are in.
pub fn create(root: &ContainerRoot, links: &[ContainerLink]) -> Result<(), HookError> {
    links
        .iter()
        .try_for_each(|link| match root.link(&link.target, &link.link) {
            // A pod that brings a volume for `/dev` brings its device nodes, and the links to them.
            Err(HookError::InVolume { path, .. }) if path.starts_with(DEV) => {
                say(&format!("no link {}: it would be in a volume", path.display()));
                Ok(())
            }
            made => made,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{container_root::tests::in_mount_namespace, container_state::ContainerMount};
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use std::{fs, os::unix::fs::symlink, path::Path};

    #[test]
    #[ignore = "needs root for a mount namespace"]
    fn links_below_dev_are_made_where_it_is_the_containers_own() {
        let name = "create_symlinks::tests::links_below_dev_are_made_where_it_is_the_containers_own";
        in_mount_namespace(name, link_below_dev);
    }

    fn link_below_dev() {
        let container = tempfile::tempdir().unwrap();
        let (dev, volume) = (container.path().join("dev"), container.path().join("volume"));
        for folder in [&dev, &volume] {
            fs::create_dir(folder).unwrap();
            mount("none", folder.as_path(), "tmpfs", MountFlags::empty(), c"").unwrap();
        }
        symlink("/dev", container.path().join("data")).unwrap();
        let made = |link: &str, mounts: &[(&str, &str)]| {
            let mounts = mounts.iter().map(|(destination, kind)| ContainerMount {
                destination: destination.into(),
                kind: (*kind).to_owned(),
            });
            let root = ContainerRoot::open(container.path()).unwrap();
            let link = ContainerLink {
                target: "../card1".into(),
                link: link.into(),
            };
            create(&root.with_mounts(mounts.collect()), &[link]).map_err(|error| error.to_string())
        };
        let own = ("/dev", "tmpfs");
        let card = "/dev/dri/by-path/pci-0000:07:00.0-card";
        // Without a description, with a volume, and with a volume that a link of the image leads there.
        let others: [&[(&str, &str)]; 4] = [
            &[],
            &[("/dev", "bind")],
            &[own, ("/dev/", "bind")],
            &[own, ("/data", "bind")],
        ];
        for mounts in others {
            made(card, mounts).unwrap();
            assert_eq!(fs::read_dir(&dev).unwrap().count(), 0, "{mounts:?}");
        }
        for _ in 0..2 {
            made(card, &[own, ("/volume", "bind"), ("/none", "bind")]).unwrap();
            let link = fs::read_link(dev.join("dri/by-path/pci-0000:07:00.0-card")).unwrap();
            assert_eq!(link, Path::new("../card1"));
        }
        // No way leads from there into a volume, and elsewhere a volume is an error.
        symlink("../volume", dev.join("up")).unwrap();
        made("/dev/up/link", &[own]).unwrap_err();
        fs::create_dir(dev.join("shm")).unwrap();
        mount("none", dev.join("shm"), "tmpfs", MountFlags::empty(), c"").unwrap();
        made("/dev/shm/link", &[own]).unwrap();
        assert!(made("/volume/link", &[own]).unwrap_err().contains("it is in a volume"));
        for folder in [dev.join("shm"), volume, dev] {
            assert!(!folder.join("link").exists());
            unmount(folder, UnmountFlags::DETACH).unwrap();
        }
    }
}
