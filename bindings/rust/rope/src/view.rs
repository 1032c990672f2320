// SPDX-License-Identifier: Apache-2.0
use crate::error::check;
use crate::{sys, Error, Result};
use std::marker::PhantomData;
use std::os::raw::c_void;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Dtype {
    F32 = sys::ROPE_DTYPE_F32,
    F16 = sys::ROPE_DTYPE_F16,
    Bf16 = sys::ROPE_DTYPE_BF16,
    F64 = sys::ROPE_DTYPE_F64,
    /// Positions only.
    I32 = sys::ROPE_DTYPE_I32,
    /// Positions only.
    I64 = sys::ROPE_DTYPE_I64,
    /// Outputs and caches only, and written scales of [`Dtype::F4E2m1x2`]. The largest number is 448; there is NaN, but
    /// no infinity.
    F8E4m3 = sys::ROPE_DTYPE_F8_E4M3,
    /// Outputs and caches only. The largest number is 57344, which also replaces infinities; there is NaN.
    F8E5m2 = sys::ROPE_DTYPE_F8_E5M2,
    /// Written scales only: 2^(byte - 127), 255 is NaN.
    F8E8m0 = sys::ROPE_DTYPE_F8_E8M0,
    /// SwiGLU's output only. An element is a byte of two neighbouring channels, and shape and strides count bytes. The
    /// largest number is 6, which also replaces infinities and NaN.
    F4E2m1x2 = sys::ROPE_DTYPE_F4_E2M1X2,
}

/// The bits of an IEEE binary16 number, for slices of whatever half-precision type a program uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16 number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// The code of a number in OCP's E4M3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F8E4m3(pub u8);

/// The code of a number in OCP's E5M2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F8E5m2(pub u8);

/// The exponent of a power of two in OCP's E8M0, plus 127.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F8E8m0(pub u8);

/// The codes of two neighbouring channels in OCP's E2M1, that of the even channel in the low four bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F4E2m1x2(pub u8);

/// A type that slices of tensor elements may have.
///
/// # Safety
/// The type has the size, the alignment and the meaning of `DTYPE`, and every pattern of bits is a value of it.
pub unsafe trait Element: Copy {
    const DTYPE: Dtype;
}

// SAFETY: plain numbers of these formats.
unsafe impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
unsafe impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}
unsafe impl Element for F16 {
    const DTYPE: Dtype = Dtype::F16;
}
unsafe impl Element for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}
unsafe impl Element for F8E4m3 {
    const DTYPE: Dtype = Dtype::F8E4m3;
}
unsafe impl Element for F8E5m2 {
    const DTYPE: Dtype = Dtype::F8E5m2;
}
unsafe impl Element for F8E8m0 {
    const DTYPE: Dtype = Dtype::F8E8m0;
}
unsafe impl Element for F4E2m1x2 {
    const DTYPE: Dtype = Dtype::F4E2m1x2;
}
unsafe impl Element for i32 {
    const DTYPE: Dtype = Dtype::I32;
}
unsafe impl Element for i64 {
    const DTYPE: Dtype = Dtype::I64;
}

/// The largest number of axes of a view.
const MAX_RANK: usize = 4;

/// The C library's value for an absent operand.
pub(crate) const ABSENT: sys::rope_tensor_t = sys::rope_tensor_t {
    data: std::ptr::null_mut(),
    dtype: 0,
    ndim: 0,
    flags: 0,
    shape: [0; MAX_RANK],
    stride: [0; MAX_RANK],
};

/// A tensor that a call reads.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) raw: sys::rope_tensor_t,
    memory: PhantomData<&'a [u8]>,
}

/// A tensor that a call writes. No two of its elements share memory.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub(crate) raw: sys::rope_tensor_t,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: they stand for the borrows &[T] and &mut [T] of numbers. The maker of a raw view guarantees its memory.
unsafe impl Send for View<'_> {}
unsafe impl Sync for View<'_> {}
unsafe impl Send for ViewMut<'_> {}

fn compact_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut next = 1isize;
    for (stride, &length) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next = next.saturating_mul(length.max(1).try_into().unwrap_or(isize::MAX));
    }
    strides
}

fn raw_view(data: *mut c_void, dtype: Dtype, shape: &[usize], strides: &[isize]) -> Result<sys::rope_tensor_t> {
    if shape.is_empty() || shape.len() > MAX_RANK || strides.len() != shape.len() {
        return Err(Error::invalid(format!(
            "view: shape is {shape:?} and strides are {strides:?}: both must have 1 to {MAX_RANK} axes, and as many"
        )));
    }
    let mut raw = sys::rope_tensor_t {
        data,
        dtype: dtype as i32,
        ndim: shape.len() as u16,
        flags: sys::ROPE_TENSOR_STRIDED,
        ..ABSENT
    };
    for axis in 0..shape.len() {
        raw.shape[axis] = i64::try_from(shape[axis])
            .map_err(|_| Error::invalid(format!("view: shape is {shape:?}: an axis must fit 63 bits")))?;
        raw.stride[axis] = strides[axis] as i64;
    }
    Ok(raw)
}

/// The pointer to element `first` of a slice, if no element of the view lies outside the slice.
fn raw_view_of_slice<T: Element>(
    data: *const T,
    length: usize,
    first: usize,
    shape: &[usize],
    strides: &[isize],
) -> Result<sys::rope_tensor_t> {
    let mut raw = raw_view(data as *mut c_void, T::DTYPE, shape, strides)?;
    if shape.contains(&0) {
        return Ok(raw);
    }
    let (mut low, mut high) = (first as i128, first as i128);
    for (&length, &stride) in shape.iter().zip(strides) {
        let reach = (length as i128 - 1) * stride as i128;
        low = low.saturating_add(reach.min(0));
        high = high.saturating_add(reach.max(0));
    }
    if low < 0 || high >= length as i128 {
        return Err(Error::invalid(format!(
            "view: shape is {shape:?}, strides {strides:?} and the first element {first}: elements {low} to {high} \
             must lie within the slice's {length}"
        )));
    }
    // SAFETY: low <= first <= high, and these are inside the slice.
    raw.data = unsafe { data.add(first) } as *mut c_void;
    Ok(raw)
}

/// Whether no two indices share an element: ordered by size, each stride steps over all that the smaller ones reach.
fn check_elements_are_apart(shape: &[usize], strides: &[isize]) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let mut axes: Vec<_> = shape.iter().zip(strides).filter(|(&length, _)| length > 1).collect();
    axes.sort_by_key(|(_, stride)| stride.unsigned_abs());
    let mut reach = 0u128;
    for (&length, &stride) in axes {
        let stride = stride.unsigned_abs() as u128;
        if stride <= reach {
            return Err(Error::invalid(format!(
                "view: shape is {shape:?} and strides are {strides:?}: elements that are written must lie apart"
            )));
        }
        reach += stride * (length as u128 - 1);
    }
    Ok(())
}

fn narrow(raw: &sys::rope_tensor_t, axis: usize, start: usize, length: usize) -> Result<sys::rope_tensor_t> {
    let mut view = ABSENT;
    let [axis, start, length] = [axis, start, length].map(|value| i64::try_from(value).unwrap_or(i64::MAX));
    // SAFETY: the function reads and writes two structs.
    check(unsafe { sys::rope_tensor_narrow(raw, axis.try_into().unwrap_or(i32::MAX), start, length, &mut view) })?;
    Ok(view)
}

fn select(raw: &sys::rope_tensor_t, axis: usize, index: usize) -> Result<sys::rope_tensor_t> {
    let mut view = ABSENT;
    let [axis, index] = [axis, index].map(|value| i64::try_from(value).unwrap_or(i64::MAX));
    // SAFETY: the function reads and writes two structs.
    check(unsafe { sys::rope_tensor_select(raw, axis.try_into().unwrap_or(i32::MAX), index, &mut view) })?;
    Ok(view)
}

impl<'a> View<'a> {
    /// Views a slice in row-major order, for example as `[tokens, heads, channels]`.
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<View<'a>> {
        View::strided(data, 0, shape, &compact_strides(shape))
    }

    /// Views a slice with any strides, in elements, from the element at index `first` on. Stride 0 repeats.
    pub fn strided<T: Element>(data: &'a [T], first: usize, shape: &[usize], strides: &[isize]) -> Result<View<'a>> {
        let raw = raw_view_of_slice(data.as_ptr(), data.len(), first, shape, strides)?;
        Ok(View { raw, memory: PhantomData })
    }

    /// Views memory that Rust cannot check, for example on a device. Strides count elements.
    ///
    /// # Safety
    /// Every call with this view must find the following until it has finished, on the device if that is later: the
    /// elements lie in memory that the device of the call's descriptor can read (host memory for
    /// [`Device::Cpu`](crate::Device::Cpu)), `data` is aligned to `dtype`, and nothing writes the elements.
    pub unsafe fn from_raw(data: *const c_void, dtype: Dtype, shape: &[usize], strides: &[isize]) -> Result<View<'a>> {
        Ok(View { raw: raw_view(data as *mut c_void, dtype, shape, strides)?, memory: PhantomData })
    }

    /// The part with indices `start` to `start + length - 1` along an axis.
    pub fn narrow(&self, axis: usize, start: usize, length: usize) -> Result<View<'a>> {
        Ok(View { raw: narrow(&self.raw, axis, start, length)?, memory: PhantomData })
    }

    /// The slice at `index` along an axis, without that axis.
    pub fn select(&self, axis: usize, index: usize) -> Result<View<'a>> {
        Ok(View { raw: select(&self.raw, axis, index)?, memory: PhantomData })
    }
}

impl<'a> ViewMut<'a> {
    /// Views a slice in row-major order.
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<ViewMut<'a>> {
        ViewMut::strided(data, 0, shape, &compact_strides(shape))
    }

    /// Views a slice with any strides, in elements, with no element at two indices, from the element at index `first`
    /// on.
    pub fn strided<T: Element>(
        data: &'a mut [T],
        first: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<ViewMut<'a>> {
        let raw = raw_view_of_slice(data.as_mut_ptr(), data.len(), first, shape, strides)?;
        check_elements_are_apart(shape, strides)?;
        Ok(ViewMut { raw, memory: PhantomData })
    }

    /// Views memory that Rust cannot check, for example on a device. Strides count elements.
    ///
    /// # Safety
    /// Every call with this view must find the following until it has finished, on the device if that is later: the
    /// elements lie in memory that the device of the call's descriptor can read and write (host memory for
    /// [`Device::Cpu`](crate::Device::Cpu)), `data` is aligned to `dtype`, no two elements share memory, and nothing
    /// else reads or writes the elements.
    pub unsafe fn from_raw(data: *mut c_void, dtype: Dtype, shape: &[usize], strides: &[isize]) -> Result<ViewMut<'a>> {
        Ok(ViewMut { raw: raw_view(data, dtype, shape, strides)?, memory: PhantomData })
    }

    /// The part with indices `start` to `start + length - 1` along an axis.
    pub fn narrow(self, axis: usize, start: usize, length: usize) -> Result<ViewMut<'a>> {
        Ok(ViewMut { raw: narrow(&self.raw, axis, start, length)?, memory: PhantomData })
    }

    /// The slice at `index` along an axis, without that axis.
    pub fn select(self, axis: usize, index: usize) -> Result<ViewMut<'a>> {
        Ok(ViewMut { raw: select(&self.raw, axis, index)?, memory: PhantomData })
    }

    /// The part before `index` along an axis, and the part from `index` on: the q heads of a packed tensor, and the
    /// rest.
    pub fn split_at(self, axis: usize, index: usize) -> Result<(ViewMut<'a>, ViewMut<'a>)> {
        let length = if axis < self.raw.ndim as usize { self.raw.shape[axis] as usize } else { 0 };
        let first = narrow(&self.raw, axis, 0, index)?;
        let rest = narrow(&self.raw, axis, index, length.saturating_sub(index))?;
        // Different elements share no memory, so parts with different indices share none.
        Ok((ViewMut { raw: first, memory: PhantomData }, ViewMut { raw: rest, memory: PhantomData }))
    }

    /// The view for one call; it can be used again afterwards.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { raw: self.raw, memory: PhantomData }
    }

    /// The view, only to be read.
    pub fn as_view(&self) -> View<'_> {
        View { raw: self.raw, memory: PhantomData }
    }
}
