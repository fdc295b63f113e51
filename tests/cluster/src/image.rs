//! The images that every node has: pause for the kubelet, busybox for tests.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::{files, run};

/// Image of the container that holds a pod's namespaces.
pub(crate) const PAUSE: &str = "gpunode.test/pause:1";
/// Image for pods of tests: busybox with all its commands.
pub const BUSYBOX: &str = "gpunode.test/busybox:1";
/// Image that stands for a CUDA workload: [`BUSYBOX`] under a second name, both with an `nvidia-smi`.
pub const CUDA: &str = "gpunode.test/cuda:1";
/// [`CUDA`] under the name that the pods of `manifests/samples` use, so that they run as they are and nothing is pulled.
const SAMPLES: &str = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04";

/// Says which GPUs the container was given.
const NVIDIA_SMI: &str = "#!/bin/sh\necho \"$NVIDIA_VISIBLE_DEVICES\"\n";

/// Prints the loader's cache; linked statically on Debian.
const LDCONFIG: &str = "/sbin/ldconfig";

enum Entry {
    File(Vec<u8>),
    Link(&'static str),
    /// Everybody may write into it.
    Folder,
}

/// Writes the archives that are not there in this form yet and returns all.
pub(crate) fn build(bin: &Path, images: &Path) -> Result<Vec<PathBuf>> {
    let read = |name: &str| {
        let path = bin.join(name);
        fs::read(&path).with_context(|| format!("read {}", path.display()))
    };
    let pause = vec![("pause".to_owned(), Entry::File(read("pause")?))];
    let ldconfig = fs::read(LDCONFIG).with_context(|| format!("read {LDCONFIG}"))?;
    let mut busybox = vec![
        ("bin/busybox".to_owned(), Entry::File(read("busybox")?)),
        ("tmp/".to_owned(), Entry::Folder),
        ("usr/bin/nvidia-smi".to_owned(), Entry::File(NVIDIA_SMI.into())),
        // As images of distributions have it: a loader's cache that hooks write anew, and the static program that prints it.
        ("etc/ld.so.cache".to_owned(), Entry::File(Vec::new())),
        ("sbin/ldconfig".to_owned(), Entry::File(ldconfig)),
        (
            "etc/passwd".to_owned(),
            Entry::File("root:x:0:0:root:/root:/bin/sh\n".into()),
        ),
    ];
    let applets = run::output(Command::new(bin.join("busybox")).arg("--list"))?;
    for applet in applets.lines().filter(|name| *name != "busybox") {
        busybox.push((format!("bin/{applet}"), Entry::Link("busybox")));
    }
    fs::create_dir_all(images).with_context(|| format!("create {}", images.display()))?;
    [
        ("pause.tar", &pause, json!(["/pause"]), vec![PAUSE]),
        (
            "busybox.tar",
            &busybox,
            json!(["/bin/sh"]),
            vec![BUSYBOX, CUDA, SAMPLES],
        ),
    ]
    .into_iter()
    .map(|(file, entries, command, tags)| {
        let path = images.join(file);
        let archive = archive(entries, &command, &tags).with_context(|| format!("pack {}", path.display()))?;
        // Clusters that start at the same time share the file: it is replaced only when it differs.
        if fs::read(&path).ok().as_ref() != Some(&archive) {
            files::replace(&path, &archive)?;
        }
        Ok(path)
    })
    .collect()
}

/// An archive of the kind that `docker save` writes, with one layer.
fn archive(entries: &[(String, Entry)], command: &serde_json::Value, tags: &[&str]) -> io::Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for (path, entry) in entries {
        match entry {
            Entry::File(content) => append(&mut layer, path, content, 0o755)?,
            Entry::Folder => {
                let mut header = header(EntryType::Directory, 0, 0o1777);
                layer.append_data(&mut header, path, io::empty())?;
            }
            Entry::Link(target) => {
                let mut header = header(EntryType::Symlink, 0, 0o777);
                layer.append_link(&mut header, path, target)?;
            }
        }
    }
    let layer = layer.into_inner()?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))]},
    })
    .to_string();
    let name = format!("{}.json", hex(config.as_bytes()));
    let manifest = json!([{"Config": name, "RepoTags": tags, "Layers": ["layer.tar"]}]).to_string();

    let mut archive = Builder::new(Vec::new());
    append(&mut archive, "layer.tar", &layer, 0o644)?;
    append(&mut archive, &name, config.as_bytes(), 0o644)?;
    append(&mut archive, "manifest.json", manifest.as_bytes(), 0o644)?;
    archive.into_inner()
}

fn append(archive: &mut Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32) -> io::Result<()> {
    let length = u64::try_from(content.len()).map_err(io::Error::other)?;
    archive.append_data(&mut header(EntryType::Regular, length, mode), path, content)
}

/// No times and owners: the same content makes the same archive.
fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn hex(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the images that the manifests in a folder and the folders below it name.
    fn images(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                images(&path, found);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let named = text.lines().filter_map(|line| line.trim().strip_prefix("image: "));
            found.extend(named.map(str::to_owned));
        }
    }

    #[test]
    fn nodes_have_the_image_of_every_sample_pod() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/samples");
        let mut found = Vec::new();
        images(&samples, &mut found);
        assert!(found.len() >= 7, "{found:?}");
        // A kubelet reads a name without a registry as one of docker.io.
        let missing: Vec<_> = found
            .iter()
            .filter(|name| format!("docker.io/{name}") != SAMPLES)
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn an_archive_names_its_tags_and_is_always_the_same() {
        let entries = [
            ("a".to_owned(), Entry::File(b"x".to_vec())),
            ("b".to_owned(), Entry::Link("a")),
        ];
        let pack = || archive(&entries, &json!(["/a"]), &["x/y:1", "x/z:1"]).unwrap();
        let packed = pack();
        assert_eq!(packed, pack());
        let mut archive = tar::Archive::new(packed.as_slice());
        let manifest = archive
            .entries()
            .unwrap()
            .map(Result::unwrap)
            .find(|entry| entry.path().unwrap().ends_with("manifest.json"))
            .unwrap();
        let manifest: serde_json::Value = serde_json::from_reader(manifest).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["x/y:1", "x/z:1"]));
    }
}
