//! The program's memory as the agent sees it: every access may find an evicted page, or none at all.
//!
//! An evicted page comes in as it does for the program itself, through SIGBUS. A page that does not exist ends the
//! access with [`Fault`], which becomes EFAULT as in the kernel.

use crate::base::copy;
use core::mem::{MaybeUninit, size_of};

/// The address is not accessible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

/// Values that may hold any bytes.
///
/// # Safety
/// Every bit pattern must be a valid value, and there must be no padding.
pub unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: arrays of plain values.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: integers only, `repr(C)`, no padding.
unsafe impl Plain for crate::base::frame::AltStack {}
// SAFETY: as above.
unsafe impl Plain for crate::base::frame::SigInfo {}
// SAFETY: as above.
unsafe impl Plain for crate::base::frame::Context {}
// SAFETY: as above.
unsafe impl Plain for crate::base::frame::Frame {}
// SAFETY: as above.
unsafe impl Plain for crate::base::action::Action {}

/// Reads a value.
pub fn read<T: Plain>(from: u64) -> Result<T, Fault> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the agent's side is `value`.
    if unsafe { copy::copy(value.as_mut_ptr() as u64, from, size_of::<T>()) } {
        // SAFETY: all bytes were copied, and any bytes are a value.
        Ok(unsafe { value.assume_init() })
    } else {
        Err(Fault)
    }
}

/// Writes a value where the program asked for it.
pub fn write<T: Plain>(to: u64, value: &T) -> Result<(), Fault> {
    // SAFETY: the agent's side is `value`; the program named the other side as output.
    if unsafe { copy::copy(to, core::ptr::from_ref(value) as u64, size_of::<T>()) } { Ok(()) } else { Err(Fault) }
}

/// Reads `out.len()` bytes.
pub fn read_bytes(from: u64, out: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: the agent's side is `out`.
    if unsafe { copy::copy(out.as_mut_ptr() as u64, from, out.len()) } { Ok(()) } else { Err(Fault) }
}

/// Reads a NUL-terminated string into `out`. Returns its length without the NUL, or `None` when it does not end within `out`.
pub fn read_str(from: u64, out: &mut [u8]) -> Result<Option<usize>, Fault> {
    let mut done = 0;
    while done < out.len() {
        // Read up to the end of a page only: the next page may not exist.
        let at = from.wrapping_add(done as u64);
        let step = (4096 - (at % 4096) as usize).min(out.len() - done);
        read_bytes(at, &mut out[done..done + step])?;
        if let Some(nul) = out[done..done + step].iter().position(|&b| b == 0) {
            return Ok(Some(done + nul));
        }
        done += step;
    }
    Ok(None)
}
