// SPDX-License-Identifier: Apache-2.0
use crate::error::check;
use crate::{sys, Error, Result};
use std::mem::size_of;
use std::ptr::null;

/// A published method for longer contexts; `rope_scaling_type_t` in `<rope/rope.h>` has the formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ScalingType {
    None = sys::ROPE_SCALING_NONE,
    Linear = sys::ROPE_SCALING_LINEAR,
    DynamicNtk = sys::ROPE_SCALING_DYNAMIC_NTK,
    DynamicNtkFixed = sys::ROPE_SCALING_DYNAMIC_NTK_FIXED,
    NtkAlpha = sys::ROPE_SCALING_NTK_ALPHA,
    NtkFixed = sys::ROPE_SCALING_NTK_FIXED,
    NtkMixed = sys::ROPE_SCALING_NTK_MIXED,
    Yarn = sys::ROPE_SCALING_YARN,
    YarnLog = sys::ROPE_SCALING_YARN_LOG,
    Llama3 = sys::ROPE_SCALING_LLAMA3,
    Longrope = sys::ROPE_SCALING_LONGROPE,
    Proportional = sys::ROPE_SCALING_PROPORTIONAL,
    Factors = sys::ROPE_SCALING_FACTORS,
}

/// A recipe and its parameters; `rope_scaling_t`. A parameter that the recipe does not use must be 0 or empty: `Scaling
/// { factor: 4.0, original_max_position: 32768, ..Scaling::new(ScalingType::Yarn) }`.
#[derive(Clone, Debug)]
pub struct Scaling<'a> {
    pub recipe: ScalingType,
    pub factor: f64,
    pub original_max_position: i64,
    pub sequence_length: i64,
    pub alpha: f64,
    pub mixed_b: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub attention_factor: f64,
    pub mscale: f64,
    pub mscale_all_dim: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub partial_rotary_factor: f64,
    pub short_factor: &'a [f64],
    pub long_factor: &'a [f64],
    pub pair_factors: &'a [f64],
    /// `ROPE_SCALING_FLAG_NO_TRUNCATE`
    pub no_truncate: bool,
}

impl Scaling<'_> {
    pub fn new(recipe: ScalingType) -> Self {
        Scaling {
            recipe,
            factor: 0.0,
            original_max_position: 0,
            sequence_length: 0,
            alpha: 0.0,
            mixed_b: 0.0,
            beta_fast: 0.0,
            beta_slow: 0.0,
            attention_factor: 0.0,
            mscale: 0.0,
            mscale_all_dim: 0.0,
            low_freq_factor: 0.0,
            high_freq_factor: 0.0,
            partial_rotary_factor: 0.0,
            short_factor: &[],
            long_factor: &[],
            pair_factors: &[],
            no_truncate: false,
        }
    }
}

/// Values for [`DescBuilder`](crate::DescBuilder)'s setters with these names.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledFrequencies {
    pub inv_freq: Vec<f64>,
    pub attention_scale: f64,
}

/// Values for [`DescBuilder`](crate::DescBuilder)'s setters with these names.
#[derive(Clone, Debug, PartialEq)]
pub struct SectionAxes {
    pub pair_axis: Vec<i32>,
    pub inv_freq: Vec<f64>,
}

/// The number of pairs in a buffer. The library refuses a rotary_dim out of range before it writes.
fn pairs_of(rotary_dim: i32) -> usize {
    (rotary_dim / 2).max(0) as usize
}

fn pointer(slice: &[f64]) -> *const f64 {
    if slice.is_empty() {
        null()
    } else {
        slice.as_ptr()
    }
}

/// `rope_scaled_frequencies`: the frequencies of a recipe, and its factor of cos and sin.
pub fn scaled_frequencies(rotary_dim: i32, theta: f64, scaling: &Scaling<'_>) -> Result<ScaledFrequencies> {
    let mut num_factors = 0;
    for slice in [scaling.short_factor, scaling.long_factor, scaling.pair_factors] {
        if num_factors != 0 && !slice.is_empty() && slice.len() != num_factors {
            return Err(Error::invalid(format!(
                "rope_scaled_frequencies: one array has {num_factors} factors and another {}: they must have as many",
                slice.len()
            )));
        }
        num_factors = num_factors.max(slice.len());
    }
    let raw = sys::rope_scaling_t {
        struct_size: size_of::<sys::rope_scaling_t>() as u32,
        flags: if scaling.no_truncate { sys::ROPE_SCALING_FLAG_NO_TRUNCATE } else { 0 },
        r#type: scaling.recipe as i32,
        num_factors: num_factors.try_into().unwrap_or(i32::MAX),
        factor: scaling.factor,
        original_max_position: scaling.original_max_position,
        sequence_length: scaling.sequence_length,
        alpha: scaling.alpha,
        mixed_b: scaling.mixed_b,
        beta_fast: scaling.beta_fast,
        beta_slow: scaling.beta_slow,
        attention_factor: scaling.attention_factor,
        mscale: scaling.mscale,
        mscale_all_dim: scaling.mscale_all_dim,
        low_freq_factor: scaling.low_freq_factor,
        high_freq_factor: scaling.high_freq_factor,
        partial_rotary_factor: scaling.partial_rotary_factor,
        short_factor: pointer(scaling.short_factor),
        long_factor: pointer(scaling.long_factor),
        pair_factors: pointer(scaling.pair_factors),
    };
    let mut found = ScaledFrequencies { inv_freq: vec![0.0; pairs_of(rotary_dim)], attention_scale: 0.0 };
    // SAFETY: the arrays have the lengths that the struct and rotary_dim state.
    check(unsafe {
        let ScaledFrequencies { inv_freq, attention_scale } = &mut found;
        sys::rope_scaled_frequencies(rotary_dim, theta, &raw, inv_freq.as_mut_ptr(), attention_scale)
    })?;
    Ok(found)
}

/// The meaning of the section lists of multi-axis models; `rope_sections_type_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum SectionsType {
    Chunked = sys::ROPE_SECTIONS_CHUNKED,
    Interleaved = sys::ROPE_SECTIONS_INTERLEAVED,
    Imrope = sys::ROPE_SECTIONS_IMROPE,
    Ernie = sys::ROPE_SECTIONS_ERNIE,
    Restarted = sys::ROPE_SECTIONS_RESTARTED,
    Vision = sys::ROPE_SECTIONS_VISION,
}

/// `rope_section_axes`: the position axis that turns each pair, and the pairs' frequencies.
pub fn section_axes(rotary_dim: i32, theta: f64, sections_type: SectionsType, sections: &[i32]) -> Result<SectionAxes> {
    let mut raw = sys::rope_sections_t {
        struct_size: size_of::<sys::rope_sections_t>() as u32,
        flags: 0,
        r#type: sections_type as i32,
        num_sections: sections.len().try_into().unwrap_or(i32::MAX), // the library refuses too many
        section: [0; sys::ROPE_MAX_POSITION_AXES],
    };
    for (entry, &section) in raw.section.iter_mut().zip(sections) {
        *entry = section;
    }
    let pairs = pairs_of(rotary_dim);
    let mut found = SectionAxes { pair_axis: vec![0; pairs], inv_freq: vec![0.0; pairs] };
    // SAFETY: the arrays have the lengths that rotary_dim implies.
    check(unsafe {
        let SectionAxes { pair_axis, inv_freq } = &mut found;
        sys::rope_section_axes(rotary_dim, theta, &raw, pair_axis.as_mut_ptr(), inv_freq.as_mut_ptr())
    })?;
    Ok(found)
}
