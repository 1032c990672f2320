// SPDX-License-Identifier: Apache-2.0
use crate::sys;
use std::ffi::CStr;
use std::fmt;
use std::os::raw::c_char;

/// The kind of an error; `rope_status_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The request is wrong on any machine.
    InvalidArgument,
    /// The request is well formed, but this version, build or device does not serve it.
    NotSupported,
    /// The host is out of memory.
    OutOfMemory,
    /// There is no such device: no driver, none visible, or none that this code runs on.
    NoDevice,
    /// The CUDA runtime refused; the message contains its text.
    CudaError,
    /// A bug in librope: please report the message.
    InternalError,
    /// A status of a later librope.
    Unknown(i32),
}

/// The error of a refused call: the status, and a text with function, field, value and rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn status(&self) -> Status {
        self.status
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn invalid(message: String) -> Error {
        Error { status: Status::InvalidArgument, message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.status, self.message)
    }
}

impl std::error::Error for Error {}

/// The last error of this thread. The failing call and this function run on one thread, because neither yields.
pub(crate) fn last_message() -> String {
    // SAFETY: the text is never NULL, ends with 0, and stays until this thread's next failure.
    unsafe { CStr::from_ptr(sys::rope_last_error()) }.to_string_lossy().into_owned()
}

/// Returns the text that a function writes to a buffer, with a 0 at its end.
pub(crate) fn explanation(call: impl FnOnce(*mut c_char, usize) -> sys::rope_status_t) -> Result<String> {
    let mut text = [0u8; 512];
    check(call(text.as_mut_ptr().cast(), text.len()))?;
    let length = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

pub(crate) fn check(status: sys::rope_status_t) -> Result<()> {
    let status = match status {
        sys::ROPE_STATUS_SUCCESS => return Ok(()),
        sys::ROPE_STATUS_INVALID_ARGUMENT => Status::InvalidArgument,
        sys::ROPE_STATUS_NOT_SUPPORTED => Status::NotSupported,
        sys::ROPE_STATUS_OUT_OF_MEMORY => Status::OutOfMemory,
        sys::ROPE_STATUS_NO_DEVICE => Status::NoDevice,
        sys::ROPE_STATUS_CUDA_ERROR => Status::CudaError,
        sys::ROPE_STATUS_INTERNAL_ERROR => Status::InternalError,
        other => Status::Unknown(other),
    };
    Err(Error { status, message: last_message() })
}
