//! Names MIG profiles by the rule of NVIDIA's go-nvlib.

use gpunode_gpu::MigSlices;

const MIB: u128 = 1 << 20;
const GIB: u128 = 1 << 30;

/// Returns the profile of a MIG device, such as `1c.3g.40gb` or `1g.10gb+me`. `gpu_memory` is that of the whole GPU in
/// bytes, `kind` the `NVML_GPU_INSTANCE_PROFILE_*` of the GPU instance. An unknown kind adds nothing to the name.
pub fn name(slices: MigSlices, memory_mib: u64, gpu_memory: u64, kind: Option<u32>) -> String {
    let part = if slices.compute_instance == slices.gpu_instance {
        String::new()
    } else {
        format!("{}c.", slices.compute_instance)
    };
    let gb = gigabytes(memory_mib.into(), gpu_memory.into());
    format!("{part}{}g.{gb}gb{}", slices.gpu_instance, kind.map_or("", suffix))
}

/// Returns eighths of the GPU's memory, rounded up, times its size in GiB, also rounded up. This hides the memory that the
/// driver keeps for itself.
fn gigabytes(memory_mib: u128, gpu_memory: u128) -> u128 {
    if gpu_memory == 0 {
        return memory_mib.div_ceil(1024);
    }
    let eighths = (memory_mib * MIB * 8).div_ceil(gpu_memory);
    // Half a gigabyte is rounded up.
    (eighths * gpu_memory.div_ceil(GIB) + 4) / 8
}

/// Returns the suffix that distinguishes kinds with the same slices. The numbers are those of `nvml.h`; nvml-wrapper-sys
/// 0.10 lacks the last.
fn suffix(kind: u32) -> &'static str {
    match kind {
        7 | 8 => "+me",
        10..=12 | 17 => "+gfx",
        13 | 14 => "-me",
        15 | 16 => "+me.all",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(slices: (u32, u32), memory_mib: u64, gpu_mib: u64, kind: u32) -> String {
        let slices = MigSlices {
            compute_instance: slices.0,
            gpu_instance: slices.1,
        };
        name(slices, memory_mib, gpu_mib << 20, Some(kind))
    }

    #[test]
    fn names_are_those_of_nvidias_tables() {
        assert_eq!(named((1, 1), 4864, 40960, 0), "1g.5gb");
        assert_eq!(named((1, 1), 9856, 40960, 9), "1g.10gb");
        assert_eq!(named((1, 3), 40192, 81920, 2), "1c.3g.40gb");
        assert_eq!(named((7, 7), 81152, 81559, 4), "7g.80gb");
        assert_eq!(named((1, 1), 16384, 143_771, 0), "1g.18gb");
        assert_eq!(named((3, 3), 71168, 143_771, 2), "3g.71gb");
        assert_eq!(named((1, 1), 20480, 183_359, 0), "1g.23gb");
        assert_eq!(named((2, 2), 11968, 24576, 1), "2g.12gb");
    }

    #[test]
    fn kinds_show_after_the_size_and_unknown_ones_do_not() {
        assert_eq!(named((1, 1), 9984, 81559, 7), "1g.10gb+me");
        assert_eq!(named((1, 1), 24064, 97887, 10), "1g.24gb+gfx");
        assert_eq!(named((1, 1), 24064, 97887, 13), "1g.24gb-me");
        assert_eq!(named((1, 1), 24064, 97887, 15), "1g.24gb+me.all");
        assert_eq!(named((3, 3), 72000, 97887, 17), "3g.72gb+gfx");
        assert_eq!(named((1, 1), 9984, 81559, 99), "1g.10gb");
    }

    #[test]
    fn a_gpu_that_does_not_tell_its_memory_is_no_reason_to_fail() {
        assert_eq!(named((1, 1), 9984, 0, 0), "1g.10gb");
    }
}
