//! Pointers that C callers pass, as parameter types of the exported functions.
//!
//! No safe code makes one of them from an address: they come from C callers alone, who promise in
//! `nvml.h`'s terms that a pointer is NULL or good for what the function says. All accesses are
//! unaligned, so that packed structures of other languages do no harm.

use std::ffi::{CStr, c_char};

use gpunode_scenario::ReturnCode;

use crate::library::Answer;

/// Pointer to one value of the caller, or to a structure with a version word at its start.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes the value.
    pub(super) fn set(&self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL, so the caller has room for a T there.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Reads what the caller left there.
    pub(super) fn get(&self) -> Answer<T> {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL, so the caller has put a T there: nvml.h says for each function that
        // reads such a pointer that the caller sets it first.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Answers an error for NULL, before anything else is done.
    pub(super) fn require(&self) -> Answer {
        if self.0.is_null() {
            Err(ReturnCode::InvalidArgument)
        } else {
            Ok(())
        }
    }

    /// The version word at the start of a versioned structure. The structure may be that of
    /// another version, so nothing behind the word may be read.
    pub(super) fn version(&self) -> Answer<u32> {
        Out::<u32>(self.0.cast()).get()
    }

    /// Checks the version word against `NVML_STRUCT_VERSION(T, version)`, and returns it.
    pub(super) fn require_version(&self, version: u32) -> Answer<u32> {
        let word = self.version()?;
        if word == struct_version::<T>(version) {
            Ok(word)
        } else {
            Err(ReturnCode::ArgumentVersionMismatch)
        }
    }

    /// The same place, as that of another version of the structure.
    pub(super) fn as_version<V: Copy>(&self) -> Out<V> {
        Out(self.0.cast())
    }
}

/// `NVML_STRUCT_VERSION(T, version)`: the size, and the version in the highest byte.
pub(super) fn struct_version<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or_default() | version << 24
}

/// Pointer to the caller's buffer for a text with a NUL at its end.
#[repr(transparent)]
pub(super) struct OutText(*mut c_char);

impl OutText {
    /// Writes `text` into `length` bytes.
    pub(super) fn set(&self, length: u32, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        let room = usize::try_from(length).unwrap_or(usize::MAX);
        if text.len() >= room {
            return Err(ReturnCode::InsufficientSize);
        }
        let to = self.0.cast::<u8>();
        // SAFETY: not NULL, so the caller has `length` bytes there, more than the text is long;
        // they are not ours, so they do not overlap it.
        unsafe {
            to.copy_from_nonoverlapping(text.as_ptr(), text.len());
            to.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// Pointer to several values, which the caller reads or has written.
#[repr(transparent)]
pub(super) struct OutArray<T>(*mut T);

impl<T: Copy> OutArray<T> {
    /// Writes `values`, for which the caller has told to have `room`.
    pub(super) fn set(&self, room: usize, values: &[T]) -> Answer {
        if values.len() > room {
            return Err(ReturnCode::InsufficientSize);
        }
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL, so the caller has `room` values there, at least as many as there are;
        // bytes, because the place may be unaligned.
        unsafe {
            self.0
                .cast::<u8>()
                .copy_from_nonoverlapping(values.as_ptr().cast(), size_of_val(values));
        }
        Ok(())
    }

    /// Returns true if the caller wants nothing written.
    pub(super) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The place of the value at `index`, of which the caller has told that there are more.
    pub(super) fn at(&self, index: usize) -> Answer<Out<T>> {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        Ok(Out(self.0.wrapping_add(index)))
    }

    /// Writes as `nvml.h` describes for lists whose length the caller does not know: `count` is the
    /// room and becomes the length; too little room is an error that tells the length.
    pub(super) fn set_counted(&self, count: &Out<u32>, values: &[T]) -> Answer {
        let room = count.get()?;
        count.set(u32::try_from(values.len()).map_err(|_| ReturnCode::Unknown)?)?;
        if values.is_empty() {
            return Ok(());
        }
        self.set(usize::try_from(room).unwrap_or(usize::MAX), values)
    }
}

/// Text that the caller passes.
#[repr(transparent)]
pub(super) struct InText(*const c_char);

impl InText {
    /// The text. No name that NVML knows is anything but ASCII.
    pub(super) fn get(&self) -> Answer<String> {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL, so the caller has put text with a NUL at its end there, and leaves it
        // alone during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str()
            .map(str::to_owned)
            .map_err(|_| ReturnCode::InvalidArgument)
    }
}
