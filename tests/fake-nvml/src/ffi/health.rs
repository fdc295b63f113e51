//! ECC, retired pages, remapped rows, field values.

use std::ffi::{c_int, c_uint, c_ulonglong};

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlReturn_t, nvmlRowRemapperHistogramValues_t, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
};

use super::{
    on_gpu,
    pointer::{Out, OutArray},
};
use crate::{handle::DeviceHandle, health};

/// ECC is on, as boards of data centres come.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEccMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetEccMode", device, |_| {
        current.require()?;
        pending.set(1)?;
        current.set(1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: DeviceHandle,
    kind: c_uint,
    counter: c_uint,
    count: Out<c_ulonglong>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetTotalEccErrors", device, |gpu| {
        count.set(health::ecc_errors(gpu, kind, counter)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRetiredPages(
    device: DeviceHandle,
    cause: c_uint,
    count: Out<c_uint>,
    addresses: OutArray<c_ulonglong>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetRetiredPages", device, |gpu| {
        addresses.set_counted(&count, &health::retired_pages(gpu, cause)?)
    })
}

/// The times at which pages were retired are all 0, which is what the driver says of old ones.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: DeviceHandle,
    cause: c_uint,
    count: Out<c_uint>,
    addresses: OutArray<c_ulonglong>,
    timestamps: OutArray<c_ulonglong>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetRetiredPages_v2", device, |gpu| {
        let pages = health::retired_pages(gpu, cause)?;
        addresses.set_counted(&count, &pages)?;
        if pages.is_empty() {
            return Ok(());
        }
        timestamps.set(pages.len(), &vec![0; pages.len()])
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRetiredPagesPendingStatus(device: DeviceHandle, pending: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetRetiredPagesPendingStatus", device, |gpu| {
        pending.set(u32::from(health::retired_pages_pending(gpu)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRemappedRows(
    device: DeviceHandle,
    correctable: Out<c_uint>,
    uncorrectable: Out<c_uint>,
    pending: Out<c_uint>,
    failed: Out<c_uint>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetRemappedRows", device, |gpu| {
        let rows = health::remapped_rows(gpu)?;
        let places = [&correctable, &uncorrectable, &pending, &failed];
        for place in places {
            place.require()?;
        }
        for (place, value) in places.into_iter().zip(rows) {
            place.set(value)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRowRemapperHistogram(
    device: DeviceHandle,
    values: Out<nvmlRowRemapperHistogramValues_t>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetRowRemapperHistogram", device, |gpu| {
        values.set(health::remap_histogram(gpu)?)
    })
}

/// Each field has a return code of its own; the call itself succeeds.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(
    device: DeviceHandle,
    count: c_int,
    values: OutArray<nvmlFieldValue_t>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetFieldValues", device, |gpu| {
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count > 0)
            .ok_or(ReturnCode::InvalidArgument)?;
        for index in 0..count {
            let place = values.at(index)?;
            let mut field = place.get()?;
            field.valueType = UNSIGNED_INT;
            match health::field(gpu, field.fieldId) {
                Ok(value) => {
                    field.nvmlReturn = ReturnCode::Success.code();
                    field.value = nvmlValue_t { uiVal: value };
                }
                Err(code) => field.nvmlReturn = code.code(),
            }
            place.set(field)?;
        }
        Ok(())
    })
}
