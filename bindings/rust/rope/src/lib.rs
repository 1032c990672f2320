// SPDX-License-Identifier: Apache-2.0
//! Rotary position embedding (RoPE) and SwiGLU, forward and backward, on CPUs and NVIDIA GPUs: librope from Rust.
//!
//! A [`Desc`] or [`Swiglu`] holds what selects code and never changes; any number of threads may use one at once. A
//! call takes views of your tensors, [`View`] and [`ViewMut`]; nothing is copied, and packed tensors are several views.
//! `<rope/rope.h>` is the manual of every field. This page has only what Rust adds:
//!
//! - Views of slices are checked against the slice, and borrow it. Calls on them are safe and need a descriptor for the
//!   CPU.
//! - Device memory is passed as raw pointers ([`View::from_raw`], [`ViewMut::from_raw`]), and `enqueue_…` calls take a
//!   stream. Both are `unsafe` and document their requirements.
//! - The setters take 0 for "not given" wherever the C library does; there are no other defaults.
//!
//! `examples/decode_step.rs` is a complete program.
//!
//! # Finding librope.so
//!
//! The crate is built against the library in the folder `ROPE_LIB_DIR`, or the one that pkg-config finds. If the
//! system's loader does not find the library, set `LD_LIBRARY_PATH`, or an rpath in the program's own build script:
//!
//! ```no_run
//! fn main() {
//!     if let Ok(folder) = std::env::var("DEP_ROPE_RS_LIB_DIR") {
//!         println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
//!     }
//! }
//! ```

mod descriptor;
mod error;
mod frequencies;
mod groups;
mod rotary;
mod swiglu;
mod view;

pub use descriptor::{
    build_info, device_count, version, Activation, Device, Layout, LimitRule, NormExtent, NormOrder, NormType,
    ScaleLayout, Style, TableRows, ACCUMULATE, NORM_K, NORM_Q, NORM_ROUND_AFTER_WEIGHT, NORM_ROUND_BEFORE_WEIGHT,
    NORM_V, PRODUCT_ROUND_ACTIVATION, PROGRAMMATIC_LAUNCH, QUANT_ROUND_FIRST, ROTATION_ROUND_EACH, UNROTATED,
    V_UNROTATED,
};
pub use error::{Error, Result, Status};
pub use frequencies::{
    scaled_frequencies, section_axes, ScaledFrequencies, Scaling, ScalingType, SectionAxes, SectionsType,
};
pub use groups::{Cache, Input, Norm, Quant, SwigluColumn, SwigluQuant};
pub use rope_sys as sys;
pub use rotary::{Args, Desc, DescBuilder, Operand};
pub use swiglu::{Swiglu, SwigluArgs, SwigluBuilder};
pub use view::{Bf16, Dtype, Element, F4E2m1x2, F8E4m3, F8E5m2, F8E8m0, View, ViewMut, F16};
