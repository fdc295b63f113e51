//! Initialisation, versions, error texts.

use std::ffi::{c_char, c_int, c_uint};

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::{
    answer,
    own_folder::own_folder,
    pointer::{Out, OutText},
};
use crate::library;

fn init() -> nvmlReturn_t {
    answer(|| library::init(&own_folder()?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> nvmlReturn_t {
    init()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    init()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    init()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    answer(library::shutdown)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    ReturnCode::from(code).message().as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: OutText, length: c_uint) -> nvmlReturn_t {
    answer(|| version.set(length, library::node()?.driver_version()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetNVMLVersion(version: OutText, length: c_uint) -> nvmlReturn_t {
    answer(|| version.set(length, &library::node()?.nvml_version()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> nvmlReturn_t {
    answer(|| version.set(library::node()?.cuda_driver_version()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> nvmlReturn_t {
    answer(|| version.set(library::node()?.cuda_driver_version()))
}
