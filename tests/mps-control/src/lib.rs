//! Stand-in for NVIDIA's MPS control daemon on machines without a driver: the same command line and the same commands on
//! standard input, for what gpunode uses of them. It gives no GPU time to anybody; it says which limits a client would get.
//!
//! What the real program does beyond that is not claimed: nothing here was compared with one.

pub mod daemon;
pub mod limits;
pub mod wire;
