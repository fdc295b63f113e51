//! Memory errors and what the driver asks for: ECC counts, retired pages, remapped rows, fields.

use gpunode_scenario::{Gpu, ReturnCode};
use nvml_wrapper_sys::bindings::{
    field_id, nvmlEccCounterType_enum_NVML_AGGREGATE_ECC as AGGREGATE,
    nvmlEccCounterType_enum_NVML_VOLATILE_ECC as VOLATILE,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED as CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED as UNCORRECTED,
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR as DOUBLE_BIT,
    nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS as SINGLE_BIT,
    nvmlRowRemapperHistogramValues_t,
};

use crate::{library::Answer, node::GpuCall};

/// Drivers before r570 do not know the recovery action.
const RECOVERY_ACTION_SINCE: u32 = 570;
/// Banks of memory in the histogram of row remaps: as many as an A100-SXM4-40GB shows.
const MEMORY_BANKS: u32 = 640;

/// ECC errors of a kind since the driver was loaded or in the board's life.
pub(crate) fn ecc_errors(call: &GpuCall, kind: u32, counter: u32) -> Answer<u64> {
    let counts = match counter {
        VOLATILE => call.state().ecc_volatile,
        AGGREGATE => call.state().ecc_aggregate,
        _ => return Err(ReturnCode::InvalidArgument),
    };
    match kind {
        CORRECTED => Ok(counts.corrected),
        UNCORRECTED => Ok(counts.uncorrected),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// Addresses of retired pages by cause.
pub(crate) fn retired_pages(call: &GpuCall, cause: u32) -> Answer<Vec<u64>> {
    retires_pages(call.hardware()?)?;
    let pages = &call.state().retired_pages;
    match cause {
        SINGLE_BIT => Ok(pages.single_bit.clone()),
        DOUBLE_BIT => Ok(pages.double_bit.clone()),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// Returns true if a page waits for its retirement.
pub(crate) fn retired_pages_pending(call: &GpuCall) -> Answer<bool> {
    retires_pages(call.hardware()?)?;
    Ok(call.state().retired_pages.pending)
}

fn retires_pages(gpu: &Gpu) -> Answer {
    if gpu.board.remaps_rows() {
        Err(ReturnCode::NotSupported)
    } else {
        Ok(())
    }
}

/// Row remaps: correctable, uncorrectable, pending, failed.
pub(crate) fn remapped_rows(call: &GpuCall) -> Answer<[u32; 4]> {
    remaps_rows(call.hardware()?)?;
    let rows = call.state().row_remap;
    Ok([
        rows.correctable,
        rows.uncorrectable,
        u32::from(rows.pending),
        u32::from(rows.failed),
    ])
}

/// Returns the numbers of banks by their spare rows: each remapped row is in a bank of its own.
pub(crate) fn remap_histogram(call: &GpuCall) -> Answer<nvmlRowRemapperHistogramValues_t> {
    let [correctable, uncorrectable, ..] = remapped_rows(call)?;
    let touched = correctable.saturating_add(uncorrectable).min(MEMORY_BANKS);
    Ok(nvmlRowRemapperHistogramValues_t {
        max: MEMORY_BANKS - touched,
        high: touched,
        partial: 0,
        low: 0,
        none: 0,
    })
}

fn remaps_rows(gpu: &Gpu) -> Answer {
    if gpu.board.remaps_rows() {
        Ok(())
    } else {
        Err(ReturnCode::NotSupported)
    }
}

/// An unsigned field of `nvmlDeviceGetFieldValues`.
pub(crate) fn field(call: &GpuCall, id: u32) -> Answer<u32> {
    use field_id as field;
    let count = |number: usize| u32::try_from(number).map_err(|_| ReturnCode::Unknown);
    match id {
        field::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION if call.node().driver_major() >= RECOVERY_ACTION_SINCE => {
            Ok(call.state().recovery_action as u32)
        }
        field::NVML_FI_DEV_NVLINK_LINK_COUNT => Ok(call.hardware()?.board.nvlink.map_or(0, |ports| ports.links)),
        field::NVML_FI_DEV_RETIRED_SBE => count(retired_pages(call, SINGLE_BIT)?.len()),
        field::NVML_FI_DEV_RETIRED_DBE => count(retired_pages(call, DOUBLE_BIT)?.len()),
        field::NVML_FI_DEV_RETIRED_PENDING => retired_pages_pending(call).map(u32::from),
        field::NVML_FI_DEV_RETIRED_PENDING_DBE => {
            let is_pending = retired_pages_pending(call)?;
            Ok(u32::from(is_pending && call.state().retired_pages.pending_double_bit))
        }
        field::NVML_FI_DEV_REMAPPED_COR => remapped_rows(call).map(|[rows, ..]| rows),
        field::NVML_FI_DEV_REMAPPED_UNC => remapped_rows(call).map(|[_, rows, ..]| rows),
        field::NVML_FI_DEV_REMAPPED_PENDING => remapped_rows(call).map(|[.., pending, _]| pending),
        field::NVML_FI_DEV_REMAPPED_FAILURE => remapped_rows(call).map(|[.., failed]| failed),
        _ => Err(ReturnCode::NotSupported),
    }
}
