//! Stand-in for NVIDIA's MPS control daemon on machines without a driver: the same command line and the same commands on
//! standard input, for what gpunode uses of them. It gives no GPU time to anybody; it says which limits a client would get.
//!
//! It claims nothing beyond that: nothing here was compared with the real program.

pub mod daemon;
pub mod limits;
pub mod wire;
