//! Folder that this library was loaded from.

use std::{
    ffi::{CStr, OsStr},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use gpunode_scenario::ReturnCode;

use crate::library::Answer;

/// The folder of the file by whose name the library was loaded; links in it are not followed, so
/// that a link to the library can stand beside a scenario of its own.
pub(super) fn own_folder() -> Answer<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    let own_code: fn() -> Answer<PathBuf> = own_folder;
    // SAFETY: the address is only looked up, and there is room for what is found.
    let found = unsafe { libc::dladdr(own_code as *const libc::c_void, info.as_mut_ptr()) };
    if found == 0 {
        return Err(ReturnCode::LibraryNotFound);
    }
    // SAFETY: dladdr has filled it, as it found something.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return Err(ReturnCode::LibraryNotFound);
    }
    // SAFETY: the loader's own name of the library, which lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(OsStr::from_bytes(name.to_bytes()))
        .parent()
        .map(Path::to_owned)
        .ok_or(ReturnCode::LibraryNotFound)
}
