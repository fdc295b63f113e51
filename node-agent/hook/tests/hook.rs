//! The program as a container runtime starts it: state on standard input, another's environment, a root that an image filled.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "hook/elf.rs"]
mod elf;

use std::{
    env, fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A bundle as containerd makes one, and a folder of the host beside it.
struct Bundle {
    folder: tempfile::TempDir,
}

impl Bundle {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("rootfs/usr/lib")).unwrap();
        fs::create_dir_all(folder.path().join("host")).unwrap();
        fs::write(
            folder.path().join("config.json"),
            r#"{"ociVersion":"1.2.0","process":{"env":["LD_PRELOAD=/evil.so"]},"root":{"path":"rootfs"}}"#,
        )
        .unwrap();
        Self { folder }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("rootfs")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(self.root());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.finish(&mut self.command(arguments))
    }

    fn finish(&self, command: &mut Command) -> Output {
        let bundle = self.folder.path().display();
        let state = format!(r#"{{"ociVersion":"1.2.0","id":"a","status":"creating","pid":1,"bundle":"{bundle}"}}"#);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A hook that is not known ends before it reads.
        let _ = child.stdin.take().unwrap().write_all(state.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn succeed(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }

    fn put(&self, path: &str, content: &[u8]) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns the libraries in the cache of the container, as Debian's `ldconfig` prints them.
    fn cache(&self) -> Vec<String> {
        let output = Command::new("/sbin/ldconfig")
            .arg("-p")
            .arg("-C")
            .arg(self.root().join("etc/ld.so.cache"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .filter(|line| line.contains("=>"))
            .map(|line| line.trim().to_owned())
            .collect()
    }
}

/// The program, statically linked as it is in the image.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // A test program is TARGET/PROFILE/deps/NAME.
        let test = env::current_exe().unwrap();
        let target = test.ancestors().nth(3).unwrap().join("hook");
        let status = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh"))
            .arg(&target)
            // Set by `tests/timed.sh`; it would make another build of everything.
            .env_remove("RUSTC_BOOTSTRAP")
            .status()
            .unwrap();
        assert!(status.success(), "node-agent/hook/build.sh failed: {status}");
        target.join("debug/gpunode-hook")
    })
}

const FLAGS: &str = if cfg!(target_arch = "x86_64") {
    "libc6,x86-64"
} else {
    "libc6,AArch64"
};

#[test]
fn a_container_finds_the_libraries_of_the_driver() {
    let bundle = Bundle::new();
    bundle.put("usr/lib/libcuda.so.580.1", &elf::library("libcuda.so.1"));
    bundle.put("usr/lib/libnvidia-ml.so.580.1", &elf::library("libnvidia-ml.so.1"));
    bundle.put("opt/driver/libnvoptix.so.580.1", &elf::library("libnvoptix.so.1"));
    bundle.put("opt/image/libcuda.so.1", &elf::library("libcuda.so.1"));
    bundle.put("etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n");
    bundle.put("etc/ld.so.conf.d/image.conf", b"/opt/image\n");
    bundle.succeed(&[
        "create-symlinks",
        "--link",
        "libcuda.so.580.1::/usr/lib/libcuda.so.1",
        "--link",
        "libcuda.so.1::/usr/lib/libcuda.so",
        "--link",
        "../lib/libcuda.so.1::/usr/lib64/nested/libcuda.so",
    ]);
    bundle.succeed(&["update-ldcache", "--folder", "/usr/lib", "--folder", "/opt/driver"]);
    let link = |path: &str| fs::read_link(bundle.root().join(path)).unwrap();
    assert_eq!(link("usr/lib/libcuda.so.1"), Path::new("libcuda.so.580.1"));
    assert_eq!(link("usr/lib64/nested/libcuda.so"), Path::new("../lib/libcuda.so.1"));
    // These links were in no argument.
    assert_eq!(link("usr/lib/libnvidia-ml.so.1"), Path::new("libnvidia-ml.so.580.1"));
    assert_eq!(link("opt/driver/libnvoptix.so.1"), Path::new("libnvoptix.so.580.1"));
    assert_eq!(
        bundle.cache(),
        [
            format!("libnvoptix.so.1 ({FLAGS}) => /opt/driver/libnvoptix.so.1"),
            format!("libnvidia-ml.so.1 ({FLAGS}) => /usr/lib/libnvidia-ml.so.1"),
            format!("libcuda.so.1 ({FLAGS}) => /opt/image/libcuda.so.1"),
            format!("libcuda.so.1 ({FLAGS}) => /usr/lib/libcuda.so.1"),
            format!("libcuda.so ({FLAGS}) => /usr/lib/libcuda.so"),
        ]
    );
    // A restart of the container finds everything done.
    let before = bundle.cache();
    bundle.succeed(&["update-ldcache", "--folder", "/usr/lib", "--folder", "/opt/driver"]);
    assert_eq!(bundle.cache(), before);
}

#[test]
fn the_cache_is_that_of_ldconfig() {
    let bundle = Bundle::new();
    let put = |path: &str, soname: &str| bundle.put(path, &elf::library(soname));
    let link = |target: &str, path: &str| symlink(target, bundle.root().join(path)).unwrap();
    // As most distributions have it.
    link("usr/lib", "lib");
    put("usr/lib/liba.so.1.2", "liba.so.1");
    link("liba.so.1.2", "usr/lib/liba.so.1");
    link("liba.so.1", "usr/lib/liba.so");
    put("usr/lib/glibc-hwcaps/x86-64-v3/liba.so.1.3", "liba.so.1");
    put("usr/lib/libb.so.2", "libb.so.2");
    link("libb.so.2", "usr/lib/libother.so");
    put("usr/lib/libb-2.so", "libc2.so.7");
    bundle.put("usr/lib/libscript.so", b"INPUT(libb.so.2)");
    put("opt/y/liba.so.1.9", "liba.so.1");
    put("opt/y/liba.so.1.10", "liba.so.1");
    put("opt/z/liba.so.1", "liba.so.1");
    bundle.put("etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n/opt/z\n");
    bundle.put("etc/ld.so.conf.d/y.conf", b"/opt/y\n");
    bundle.succeed(&["update-ldcache", "--folder", "/usr/lib", "--folder", "/opt/y"]);
    let own = bundle.cache();
    assert_eq!(own.len(), 7, "{own:?}");
    let link = |path: &str| fs::read_link(bundle.root().join(path)).unwrap();
    assert_eq!(link("usr/lib/libc2.so.7"), Path::new("libb-2.so"));
    assert_eq!(link("opt/y/liba.so.1"), Path::new("liba.so.1.10"));
    let status = Command::new("/sbin/ldconfig")
        .arg("-r")
        .arg(bundle.root())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(own, bundle.cache());
}

/// A host of another distribution has the driver in a folder that the image's own `ldconfig` does not search.
#[test]
fn ldconfig_in_the_container_keeps_the_libraries_of_the_driver() {
    let bundle = Bundle::new();
    bundle.put("etc/debian_version", b"12.12\n");
    bundle.put("usr/lib64/libcuda.so.580.1", &elf::library("libcuda.so.1"));
    bundle.succeed(&["update-ldcache", "--folder", "/usr/lib64"]);
    let expected = [format!("libcuda.so.1 ({FLAGS}) => /usr/lib64/libcuda.so.1")];
    assert_eq!(bundle.cache(), expected);
    let status = Command::new("/sbin/ldconfig")
        .arg("-r")
        .arg(bundle.root())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(bundle.cache(), expected);
}

#[test]
fn newer_libraries_of_an_image_come_first() {
    let bundle = Bundle::new();
    bundle.put(
        "usr/local/cuda-13/compat/libcuda.so.590.1.2",
        &elf::library("libcuda.so.1"),
    );
    symlink(
        "libcuda.so.590.1.2",
        bundle.root().join("usr/local/cuda-13/compat/libcuda.so.1"),
    )
    .unwrap();
    symlink("/usr/local/cuda-13", bundle.root().join("usr/local/cuda")).unwrap();
    bundle.put("usr/lib/libcuda.so.1", &elf::library("libcuda.so.1"));
    bundle.put("etc/ld.so.conf", b"include ld.so.conf.d/*.conf\n");
    bundle.succeed(&["enable-cuda-compat", "--host-driver-version=580.95.05"]);
    bundle.succeed(&["update-ldcache", "--folder", "/usr/lib"]);
    assert_eq!(
        bundle.cache(),
        [
            format!("libcuda.so.1 ({FLAGS}) => /usr/local/cuda/compat/libcuda.so.1"),
            format!("libcuda.so.1 ({FLAGS}) => /usr/lib/libcuda.so.1"),
        ]
    );
}

/// The loader itself, in a root file system in which a program's library is in a folder that only the cache names.
#[test]
#[ignore = "needs root for chroot"]
fn the_loader_of_a_container_uses_the_cache() {
    let bundle = Bundle::new();
    let output = Command::new("ldd").arg("/bin/true").output().unwrap();
    let needed = String::from_utf8(output.stdout).unwrap();
    let paths = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for path in paths {
        let is_loader = path.contains("/ld-");
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        let place = if is_loader {
            path[1..].to_owned()
        } else {
            format!("opt/driver/{name}")
        };
        bundle.put(&place, &fs::read(path).unwrap());
        fs::set_permissions(bundle.root().join(place), fs::Permissions::from_mode(0o755)).unwrap();
    }
    bundle.put("bin/true", b"");
    fs::copy("/bin/true", bundle.root().join("bin/true")).unwrap();
    let starts = || {
        let mut command = Command::new("chroot");
        command.arg(bundle.root()).arg("/bin/true");
        command.output().unwrap().status.success()
    };
    assert!(!starts(), "a program without its library");
    bundle.succeed(&["update-ldcache", "--folder", "/opt/driver"]);
    assert!(starts());
}

#[test]
#[ignore = "needs root for a mount namespace"]
fn a_container_gets_links_in_the_dev_that_the_runtime_made() {
    let bundle = Bundle::new();
    fs::create_dir(bundle.root().join("dev")).unwrap();
    fs::write(
        bundle.folder.path().join("config.json"),
        r#"{"root":{"path":"rootfs"},"mounts":[{"destination":"/dev","type":"tmpfs","source":"tmpfs"}]}"#,
    )
    .unwrap();
    let script = r#"mount -t tmpfs none dev &&
        "$0" create-symlinks --link ../card1::/dev/dri/by-path/card &&
        readlink dev/dri/by-path/card"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(program());
    let output = bundle.finish(command.current_dir(bundle.root()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "../card1\n");
}

/// CVE-2024-0132, CVE-2025-23359: links of an image that lead to the host.
#[test]
fn links_of_an_image_change_nothing_on_the_host() {
    let bundle = Bundle::new();
    let host = bundle.folder.path().join("host");
    let up = PathBuf::from("../".repeat(20)).join(host.strip_prefix("/").unwrap());
    let assert_untouched = || assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
    for (place, target) in [("etc", host.clone()), ("opt", up), ("srv", PathBuf::from("../host"))] {
        symlink(target, bundle.root().join(place)).unwrap();
        let link = format!("libcuda.so.1::/{place}/libcuda.so");
        let output = bundle.run(&["create-symlinks", "--link", &link]);
        assert!(!output.status.success(), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(&format!("/{place}/libcuda.so")),
            "{output:?}"
        );
        assert_untouched();
    }
    // The loader's files are below `etc`.
    assert!(!bundle.run(&["update-ldcache", "--folder", "/usr/lib"]).status.success());
    bundle.put("usr/local/cuda/compat/libcuda.so.590.1", b"");
    assert!(
        !bundle
            .run(&["enable-cuda-compat", "--host-driver-version=580.1"])
            .status
            .success()
    );
    assert_untouched();
    // A link at the very place is replaced, and not followed.
    fs::remove_file(bundle.root().join("etc")).unwrap();
    fs::create_dir(bundle.root().join("etc")).unwrap();
    symlink(host.join("cache"), bundle.root().join("etc/ld.so.cache")).unwrap();
    bundle.succeed(&["update-ldcache", "--folder", "/usr/lib"]);
    assert_untouched();
    assert!(bundle.cache().is_empty());
}

/// CVE-2025-23266: variables of an image in the environment of a hook, which runs in the folder of the image.
#[test]
fn variables_of_an_image_have_no_effect() {
    let bundle = Bundle::new();
    let variables = [
        ("LD_PRELOAD", "./evil.so"),
        ("LD_AUDIT", "./evil.so"),
        ("LD_LIBRARY_PATH", "."),
        ("LD_DEBUG", "all"),
        ("GCONV_PATH", "."),
        ("TMPDIR", "."),
        ("RUST_BACKTRACE", "full"),
        ("PATH", "."),
    ];
    // The same variables make a program that is linked dynamically complain or more.
    let output = Command::new("/bin/true").envs(variables).output().unwrap();
    assert!(!output.stderr.is_empty(), "{output:?}");
    let mut command = bundle.command(&["create-symlinks", "--link", "a::/usr/lib/b"]);
    let output = bundle.finish(command.envs(variables));
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(fs::read_link(bundle.root().join("usr/lib/b")).unwrap(), Path::new("a"));
}

#[test]
fn the_program_needs_no_loader() {
    let program = fs::read(program()).unwrap();
    assert!(!elf::needs_loader(&program));
    assert!(elf::needs_loader(&fs::read("/bin/true").unwrap()));
}

#[test]
fn a_hook_that_is_not_known_does_not_stop_the_container() {
    let bundle = Bundle::new();
    let output = bundle.run(&["update-application-profile", "--all"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("update-application-profile"), "{text}");
    assert!(!bundle.run(&["update-ldcache", "--unknown"]).status.success());
}

#[test]
fn a_root_that_is_missing_is_an_error_with_its_path() {
    let bundle = Bundle::new();
    fs::remove_dir_all(bundle.root()).unwrap();
    let output = bundle.finish(Command::new(program()).args(["update-ldcache", "--folder", "/usr/lib"]));
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&bundle.root().display().to_string()), "{text}");
}

/// Figure: the hooks of a container in an image with many libraries, the time of the runtime left out.
#[test]
#[ignore = "measures"]
fn measure_the_hooks_of_one_container() {
    let bundle = Bundle::new();
    for number in 0..500 {
        let library = elf::library(&format!("libimage{number}.so.1"));
        bundle.put(&format!("usr/lib/libimage{number}.so.1.2"), &library);
        symlink(
            format!("libimage{number}.so.1.2"),
            bundle.root().join(format!("usr/lib/libimage{number}.so.1")),
        )
        .unwrap();
    }
    program();
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let start = Instant::now();
            bundle.succeed(&["create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"]);
            bundle.succeed(&["enable-cuda-compat", "--host-driver-version=580.1"]);
            bundle.succeed(&["update-ldcache", "--folder", "/usr/lib"]);
            bundle.succeed(&["disable-device-node-modification"]);
            start.elapsed()
        })
        .collect();
    times.sort();
    println!(
        "hooks of a container with 500 libraries: median {:?}, most {:?}",
        times[10], times[19]
    );
}
