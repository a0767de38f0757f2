//! `ioctl`: what the request's number says about its argument.
//!
//! Most requests carry the size of their structure in the number (`_IOC_SIZE`). The old ones do not; for those, and as
//! a floor for all, the page at the pointer is brought in, and the guard brings in more when the kernel still answers
//! EFAULT. Requests listed here are the ones that lead to further buffers, or that give memory to a device for good.

use super::Dir::{In, InOut, Out};
use super::visit::{Kind, ReadMemory, Visit};
use linux_raw_sys::ioctl as i;

/// `KVM_SET_USER_MEMORY_REGION` and its successor: guest memory.
const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
const KVM_SET_USER_MEMORY_REGION2: u32 = 0x40a0_ae49;
/// `IOMMU_IOAS_MAP`: memory for devices.
const IOMMU_IOAS_MAP: u32 = 0x3b85;
/// `SG_IO`: a SCSI command.
const SG_IO: u32 = 0x2285;
/// Requests of network devices: `ifreq` with a pointer at byte 16.
const SIOCDEVPRIVATE_LAST: u32 = i::SIOCDEVPRIVATE + 15;
const SIOCBONDENSLAVE: u32 = 0x8990;
const SIOCGHWTSTAMP: u32 = 0x89b1;
const SIOCETHTOOL: u32 = 0x8946;
/// Wireless requests: `iwreq` with a pointer at byte 16.
const SIOCIWFIRST: u32 = 0x8b00;
const SIOCIWLAST: u32 = 0x8bff;
/// Bytes of an `ifreq`.
const IFREQ_BYTES: u64 = 40;
/// The largest size that a request's number can carry.
const IOC_BYTES_MAX: u64 = 0x3fff;
/// Entries of an array inside a request that are looked at.
const ENTRIES_MAX: u64 = 1 << 16;

/// Emits what `ioctl(_, request, arg)` touches.
pub(super) fn visit<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(super::visit::Buffer),
{
    if arg == 0 || !v.mem.may_be_managed(arg, IOC_BYTES_MAX) && !leads_on(request) {
        // A number, or a structure on the stack without pointers of a known form.
        return;
    }
    match request {
        i::FIONREAD | i::FIONBIO | i::FIOASYNC | i::TIOCOUTQ => v.pin(arg, 4, InOut),
        i::TCGETS | i::TCSETS | i::TCSETSW | i::TCSETSF => v.pin(arg, 36, InOut),
        i::TIOCGWINSZ | i::TIOCSWINSZ => v.pin(arg, 8, InOut),
        i::FIOCLEX | i::FIONCLEX => {}
        i::SIOCGIFCONF => {
            // struct ifconf: int length, pointer.
            v.pin(arg, 16, InOut);
            if let Some([len, buffer]) = v.words(arg) {
                v.pin(buffer, (len as u32 as i32).max(0) as u64, Out);
            }
        }
        SIOCETHTOOL
        | SIOCBONDENSLAVE..=SIOCGHWTSTAMP
        | SIOCIWFIRST..=SIOCIWLAST
        | i::SIOCDEVPRIVATE..=SIOCDEVPRIVATE_LAST => {
            v.pin(arg, IFREQ_BYTES, InOut);
            if let Some([_, _, data]) = v.words(arg) {
                v.probe(data);
            }
        }
        SG_IO => {
            v.pin(arg, 88, InOut);
            let Some([_, sizes, data, command, sense]) = v.words(arg) else { return };
            // Second word: cmd_len, mx_sb_len (bytes), iovec_count (16 bits), dxfer_len (32 bits).
            let (vectors, bytes) = ((sizes >> 16) & 0xffff, sizes >> 32);
            v.pin(command, sizes & 0xff, In);
            v.pin(sense, (sizes >> 8) & 0xff, Out);
            if vectors > 0 { v.iovec(data, vectors, InOut, Kind::Pin) } else { v.pin(data, bytes, InOut) }
        }
        i::FS_IOC_FIEMAP => {
            // struct fiemap: 32 bytes, the number of 56-byte extents at byte 24.
            let extents = v.word32(arg.wrapping_add(24)).unwrap_or(0) as u64;
            v.pin(arg, 32 + extents.min(ENTRIES_MAX) * 56, InOut);
        }
        i::FIDEDUPERANGE => {
            // struct file_dedupe_range: 24 bytes, the number of 32-byte targets at byte 16.
            let targets = v.word32(arg.wrapping_add(16)).unwrap_or(0) as u64 & 0xffff;
            v.pin(arg, 24 + targets * 32, InOut);
        }
        KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2 => {
            sized(v, request, arg);
            // slot and flags, guest address, size, our address.
            if let Some([_, _, size, ours]) = v.words(arg) {
                v.emit(ours, size, InOut, Kind::Exclude);
            }
        }
        i::VFIO_IOMMU_MAP_DMA => {
            // argsz and flags, our address, device address, size.
            v.pin(arg, 32, In);
            if let Some([_, ours, _, size]) = v.words(arg) {
                v.emit(ours, size, InOut, Kind::Exclude);
            }
        }
        IOMMU_IOAS_MAP => {
            // size and flags, object and padding, our address, length, device address.
            v.pin(arg, 40, InOut);
            if let Some([_, _, ours, size]) = v.words(arg) {
                v.emit(ours, size, InOut, Kind::Exclude);
            }
        }
        i::VHOST_SET_MEM_TABLE => {
            // nregions and padding, then per region: guest address, size, our address, padding.
            let regions = v.word32(arg).unwrap_or(0).min(512) as u64;
            v.pin(arg, 8 + regions * 32, In);
            for n in 0..regions {
                let Some([_, size, ours]) = v.words(arg.wrapping_add(8 + n * 32)) else { return };
                v.emit(ours, size, InOut, Kind::Exclude);
            }
        }
        _ => sized(v, request, arg),
    }
}

/// By the size in the request's number, and at least the page at the pointer: arrays often follow a sized header.
fn sized<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(super::visit::Buffer),
{
    let size = (request >> 16) & 0x3fff;
    v.probe_len(arg, size as u64);
}

/// True for requests whose structure leads to further buffers in a known way.
const fn leads_on(request: u32) -> bool {
    matches!(
        request,
        i::SIOCGIFCONF
            | SIOCETHTOOL
            | SIOCBONDENSLAVE..=SIOCGHWTSTAMP
            | SIOCIWFIRST..=SIOCIWLAST
            | i::SIOCDEVPRIVATE..=SIOCDEVPRIVATE_LAST
            | SG_IO
            | KVM_SET_USER_MEMORY_REGION
            | KVM_SET_USER_MEMORY_REGION2
            | i::VFIO_IOMMU_MAP_DMA
            | IOMMU_IOAS_MAP
            | i::VHOST_SET_MEM_TABLE
    )
}
