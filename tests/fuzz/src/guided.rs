//! A property under libFuzzer.
#![allow(unsafe_code, reason = "libFuzzer is a C library, which calls the property")]

use arbitrary::{Result, Unstructured};
use std::{
    cell::RefCell,
    env,
    ffi::{CString, c_char, c_int},
    ptr, slice,
};

/// Variable with the arguments of libFuzzer, separated by spaces.
const ARGUMENTS: &str = "GPUNODE_FUZZ_ARGUMENTS";

type Property<'a> = &'a mut dyn FnMut(&mut Unstructured<'_>) -> Result<()>;

thread_local! {
    /// The property, which libFuzzer calls on the thread that runs it.
    static PROPERTY: RefCell<Option<Property<'static>>> = const { RefCell::new(None) };
}

// Links the library.
use libfuzzer_sys as _;

unsafe extern "C" {
    /// `FuzzerDriver.cpp` of LLVM: takes the arguments of `main`. Ends the process once it has run long enough.
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        on_input: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// Runs the property until libFuzzer's arguments say that it is enough; never returns then. A property that does not hold ends the
/// process, and libFuzzer saves its input.
pub fn run(mut property: impl FnMut(&mut Unstructured<'_>) -> Result<()>) {
    let property: Property<'_> = &mut property;
    // SAFETY: the reference outlives the call of the driver below, after which nothing calls the property any more.
    let property: Property<'static> = unsafe { std::mem::transmute(property) };
    PROPERTY.set(Some(property));
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        std::process::abort();
    }));
    let arguments = env::var(ARGUMENTS).unwrap_or_default();
    let arguments = ["fuzz"].into_iter().chain(arguments.split_whitespace());
    let arguments: Vec<CString> = arguments.filter_map(|argument| CString::new(argument).ok()).collect();
    let mut pointers: Vec<*mut c_char> = arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
    let mut count = c_int::try_from(pointers.len()).unwrap_or_default();
    pointers.push(ptr::null_mut());
    let mut argv = pointers.as_mut_ptr();
    // SAFETY: argc and argv are those of a C program: `count` strings that live until the end of this function, and a null.
    unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut argv, on_input) };
    PROPERTY.take();
}

extern "C" fn on_input(data: *const u8, length: usize) -> c_int {
    // libFuzzer passes a null pointer for the empty input.
    let bytes = if data.is_null() {
        &[]
    } else {
        // SAFETY: libFuzzer passes the address and the length of its input.
        unsafe { slice::from_raw_parts(data, length) }
    };
    one_input(bytes)
}

fn one_input(bytes: &[u8]) -> i32 {
    let is_whole = PROPERTY.with_borrow_mut(|property| {
        let mut input = Unstructured::new(bytes);
        property.as_mut().is_some_and(|property| property(&mut input).is_ok())
    });
    // An input that is too short is not kept (`FuzzerLoop.cpp`).
    if is_whole { 0 } else { -1 }
}

/// The function that libfuzzer-sys links; the driver calls [`on_input`] instead.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[allow(improper_ctypes_definitions, reason = "Rust is on both sides")]
extern "C" fn rust_fuzzer_test_input(bytes: &[u8]) -> i32 {
    one_input(bytes)
}
