//! Symbolic links that containers need beside the driver's libraries.
//!
//! `ldconfig` makes those of each `soname` in the container. But programs open others by name: `libcuda.so` without a number,
//! or modules below a library's folder. The list is that of nvidia-container-toolkit (`getLinksForMount` and
//! `getDotSoSymlinks` of `internal/discover/symlinks.go`, `graphicsDriverLibraries` of `internal/discover/graphics.go`).

use crate::{DriverContent, DriverLibrary, SymbolicLink};
use std::collections::BTreeSet;

/// Returns the links for the files of a driver, each path once.
pub fn links(content: &DriverContent) -> Vec<SymbolicLink> {
    let libraries = content.libraries.iter().flat_map(|library| {
        let path = library.file.container.as_str();
        expected_link(path).into_iter().chain(host_links(path, library))
    });
    let modules = content.files.iter().filter_map(|file| expected_link(&file.container));
    let mut paths = BTreeSet::new();
    libraries
        .chain(modules)
        .filter(|link| paths.insert(link.path.clone()))
        .collect()
}

/// Returns the link that programs expect beside the library at `path`, though no package has it or `ldconfig` does not make
/// it.
fn expected_link(path: &str) -> Option<SymbolicLink> {
    let (folder, name) = path.rsplit_once('/')?;
    let (library, version) = name.split_once(".so.")?;
    if !version.contains('.') {
        return None;
    }
    let (target, link) = match library {
        "libcuda" => ("libcuda.so.1", "libcuda.so"),
        "libGLX_nvidia" => (name, "libGLX_indirect.so.0"),
        "libnvidia-opticalflow" => ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
        "libnvidia-allocator" => ("../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"),
        "libnvidia-vulkan-producer" => (name, "libnvidia-vulkan-producer.so"),
        "libglxserver_nvidia" => (name, "libglxserver_nvidia.so"),
        _ => return None,
    };
    Some(SymbolicLink {
        target: target.to_owned(),
        path: format!("{folder}/{link}"),
    })
}

/// Returns the links that the library at `path` has on the host: its `soname`, and its name without a number.
fn host_links(path: &str, library: &DriverLibrary) -> Vec<SymbolicLink> {
    let Some((folder, name)) = path.rsplit_once('/') else {
        return Vec::new();
    };
    let soname = library.soname.as_deref().unwrap_or(name);
    let plain = soname.split_once(".so.").map(|(library, _)| format!("{library}.so"));
    let pairs = [(name, Some(soname.to_owned())), (soname, plain)];
    pairs
        .into_iter()
        .filter_map(|(target, link)| Some((target, link?)))
        .filter(|(target, link)| target != link && library.links.contains(link))
        .map(|(target, link)| SymbolicLink {
            target: target.to_owned(),
            path: format!("{folder}/{link}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostFile;

    fn file(path: &str) -> HostFile {
        HostFile {
            host: path.to_owned(),
            container: path.to_owned(),
        }
    }

    fn library(name: &str, soname: &str, links: &[&str]) -> DriverLibrary {
        DriverLibrary {
            file: file(&format!("/usr/lib64/{name}")),
            soname: (!soname.is_empty()).then(|| soname.to_owned()),
            links: links.iter().map(|link| (*link).to_owned()).collect(),
        }
    }

    fn texts(libraries: Vec<DriverLibrary>, files: &[&str]) -> Vec<String> {
        let content = DriverContent {
            libraries,
            files: files.iter().map(|path| file(path)).collect(),
            ..DriverContent::default()
        };
        let texts = links(&content).into_iter();
        texts.map(|link| format!("{} -> {}", link.path, link.target)).collect()
    }

    #[test]
    fn libraries_get_the_links_of_the_host_and_those_that_programs_expect() {
        let version = "580.95.05";
        let cuda = library(
            &format!("libcuda.so.{version}"),
            "libcuda.so.1",
            &["libcuda.so.1", "libcuda.so"],
        );
        assert_eq!(
            texts(vec![cuda.clone(), cuda], &[]),
            [
                "/usr/lib64/libcuda.so -> libcuda.so.1",
                "/usr/lib64/libcuda.so.1 -> libcuda.so.580.95.05"
            ]
        );
        let bare = library(&format!("libcuda.so.{version}"), "libcuda.so.1", &[]);
        assert_eq!(texts(vec![bare], &[]), ["/usr/lib64/libcuda.so -> libcuda.so.1"]);
    }

    #[test]
    fn graphics_libraries_and_modules_get_the_links_of_their_loaders() {
        let libraries = ["libGLX_nvidia", "libnvidia-allocator", "libnvidia-glcore"]
            .map(|name| library(&format!("{name}.so.580.95.05"), "", &[]));
        assert_eq!(
            texts(
                libraries.into(),
                &["/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.580.95.05"]
            ),
            [
                "/usr/lib64/libGLX_indirect.so.0 -> libGLX_nvidia.so.580.95.05",
                "/usr/lib64/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1",
                "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so -> libglxserver_nvidia.so.580.95.05"
            ]
        );
    }

    #[test]
    fn a_library_whose_soname_is_its_file_name_gets_no_link_to_itself() {
        let name = "libnvidia-glcore.so.580.95.05";
        assert_eq!(texts(vec![library(name, name, &[name])], &[]), Vec::<String>::new());
        let plain = library(name, name, &["libnvidia-glcore.so"]);
        assert_eq!(
            texts(vec![plain], &[]),
            ["/usr/lib64/libnvidia-glcore.so -> libnvidia-glcore.so.580.95.05"]
        );
    }
}
