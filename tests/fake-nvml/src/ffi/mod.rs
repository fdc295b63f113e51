//! The C interface: the only module with unsafe code.
//!
//! Every exported function takes its pointers as the wrappers of `pointer`, which check for NULL,
//! and answers through `answer`, out of which no panic comes. Functions are grouped as in
//! `nvml.h`; what none of them defines is a stub (`build.rs`).

#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the names are nvml.h's")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::{
    handle::DeviceHandle,
    library::{self, Answer, Device},
    node::{GpuCall, MigCall},
};

pub(crate) use gpu_marks::GpuMarks;
pub(crate) use writable_view::WritableView;

mod events;
mod gpu_marks;
mod health;
mod identity;
mod lookup;
mod mig;
mod mig_changes;
mod mig_profiles;
mod own_folder;
mod pointer;
mod processes;
mod system;
mod topology;
mod usage;
mod writable_view;

/// Turns what `body` finds into a return code.
fn answer(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    // A panic must not run into C; that it does not poison anything is `library`'s business.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ReturnCode::Success.code(),
        Ok(Err(code)) => code.code(),
        Err(_) => ReturnCode::Unknown.code(),
    }
}

/// A call of `function` on a GPU: `body` runs unless the state makes the call fail.
fn on_gpu(function: &str, device: DeviceHandle, body: impl FnOnce(&GpuCall) -> Answer) -> nvmlReturn_t {
    answer(|| body(&library::gpu(function, device)?))
}

/// A call of `function` that is made on GPUs and on MIG devices.
fn on_device(function: &str, device: DeviceHandle, body: impl FnOnce(&Device) -> Answer) -> nvmlReturn_t {
    answer(|| body(&library::device(function, device)?))
}

/// A call of `function` on a MIG device; whole GPUs do not answer it.
fn on_mig(function: &str, device: DeviceHandle, body: impl FnOnce(&MigCall) -> Answer) -> nvmlReturn_t {
    on_device(function, device, |device| match device {
        Device::Mig(mig) => body(mig),
        Device::Gpu(_) => Err(ReturnCode::NotSupported),
    })
}

/// Answers for a function that is not simulated. Most take a GPU first, which may be lost; any other first argument is no
/// handle and makes no difference.
fn not_simulated(function: &str, maybe_device: DeviceHandle) -> nvmlReturn_t {
    answer(|| {
        library::node()?;
        match library::gpu(function, maybe_device) {
            Err(code) if code != ReturnCode::InvalidArgument => Err(code),
            _ => Err(ReturnCode::NotSupported),
        }
    })
}

macro_rules! stub {
    ($name:ident) => {
        // The caller passes more arguments than are read here, which C's calling conventions allow.
        #[unsafe(no_mangle)]
        extern "C" fn $name(maybe_device: crate::handle::DeviceHandle) -> u32 {
            super::not_simulated(stringify!($name), maybe_device)
        }
    };
}

/// Written by `build.rs`.
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}
