//! `ioctl`: what the request's number says about its argument.
//!
//! Most requests carry the size of their structure in the number (`_IOC_SIZE`); the old ones do not. The requests and
//! types listed here point to further buffers, give memory to a device or a guest for good, or are known to do neither.
//! The structure of any other request is searched for addresses (`scan`) before the first try. A driver may have had an
//! effect by the time it meets a page that is out, so no request is made twice except those of [`may_repeat`].
//!
//! An unknown driver may also pin what it is given for as long as it likes. Such a request emits [`Kind::Driver`].

use super::Dir::{In, InOut, Out};
use super::scan::{self, WINDOW_BYTES};
use super::visit::{Buffer, Kind, ReadMemory, Visit};
use linux_raw_sys::ioctl as i;

/// `KVM_SET_USER_MEMORY_REGION` and its successor: memory of a guest.
const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
const KVM_SET_USER_MEMORY_REGION2: u32 = 0x40a0_ae49;
/// Which pages of a slot were written. The first reads them, and the kernel forgets what it reports. The second has the
/// kernel forget those that it names.
const KVM_GET_DIRTY_LOG: u32 = 0x4010_ae42;
const KVM_CLEAR_DIRTY_LOG: u32 = 0xc018_aec0;
/// Memory of an encrypted guest, which is pinned.
const KVM_MEMORY_ENCRYPT_REG_REGION: u32 = 0x8010_aebb;
/// `IOMMU_IOAS_MAP`: memory for devices.
const IOMMU_IOAS_MAP: u32 = 0x3b85;
/// `TEE_IOC_SHM_REGISTER`: memory for a trusted environment.
const TEE_IOC_SHM_REGISTER: u32 = 0xc018_a409;
/// `IOCTL_VMCI_QUEUEPAIR_SETVA`: queues between guests, held by plain references.
const VMCI_QUEUEPAIR_SETVA: u32 = 0x07a4;
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
/// USB devices (usbfs).
const USBDEVFS_CONTROL: u32 = 0xc018_5500;
const USBDEVFS_BULK: u32 = 0xc018_5502;
const USBDEVFS_SUBMITURB: u32 = 0x8038_550a;
const USBDEVFS_REAPURB: u32 = 0x4008_550c;
const USBDEVFS_REAPURBNDELAY: u32 = 0x4008_550d;
const USBDEVFS_IOCTL: u32 = 0xc010_5512;
/// Commands passed through to an NVMe device.
const NVME_ADMIN_CMD: u32 = 0xc048_4e41;
const NVME_IO_CMD: u32 = 0xc048_4e43;
const NVME_ADMIN64_CMD: u32 = 0xc050_4e47;
const NVME_IO64_CMD: u32 = 0xc050_4e48;
const NVME_IO64_CMD_VEC: u32 = 0xc050_4e49;
const NVME_SUBMIT_IO: u32 = 0x4030_4e42;
/// Sound: frames to be played or recorded, in one buffer or one for each channel.
const PCM_WRITEI: u32 = 0x4018_4150;
const PCM_READI: u32 = 0x8018_4151;
const PCM_WRITEN: u32 = 0x4018_4152;
const PCM_READN: u32 = 0x8018_4153;
/// Video: buffers, and controls.
const VIDIOC_QUERYBUF: u32 = 0xc058_5609;
const VIDIOC_QBUF: u32 = 0xc058_560f;
const VIDIOC_DQBUF: u32 = 0xc058_5611;
const VIDIOC_PREPARE_BUF: u32 = 0xc058_565d;
const VIDIOC_G_EXT_CTRLS: u32 = 0xc020_5647;
const VIDIOC_S_EXT_CTRLS: u32 = 0xc020_5648;
const VIDIOC_TRY_EXT_CTRLS: u32 = 0xc020_5649;
/// User memory for graphics: of amdgpu, radeon, i915 and etnaviv. All begin with address and size.
const AMDGPU_GEM_USERPTR: u32 = 0xc018_6451;
const RADEON_GEM_USERPTR: u32 = 0xc018_646d;
const I915_GEM_USERPTR: u32 = 0xc018_6473;
const ETNAVIV_GEM_USERPTR: u32 = 0xc018_6448;
/// `RDMA_VERBS_IOCTL`: a header that holds its own length, and attributes.
const RDMA_VERBS: u32 = 0xc018_1b01;

/// Bytes of an `ifreq`.
const IFREQ_BYTES: u64 = 40;
/// The largest size that a request's number can carry. An array of up to as many bytes may follow a structure.
const IOC_BYTES_MAX: u64 = 0x3fff;
/// Bytes of a structure whose size is not in the number.
const UNSIZED_BYTES: u64 = 256;
/// Entries of an array inside a request that are looked at.
const ENTRIES_MAX: u64 = 1 << 16;
/// Bytes that are assumed for a frame of sound, eight channels of 32 bits; and the most channels.
const FRAME_BYTES: u64 = 32;
const CHANNELS_MAX: u64 = 64;
/// Bytes of a dirty log if no guest's memory was seen: enough for 32 GiB.
const DIRTY_LOG_BYTES: u64 = 1 << 20;
/// Bytes of guest memory that one byte of a dirty log covers.
const LOGGED_BYTES: u64 = 8 * 4096;

/// What is known of a request that has no row of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// Its structure points to nothing, and nothing is kept.
    Plain,
    /// Its structure may hold addresses, which lead no further; nothing is kept.
    Points,
    /// Its structure may lead further; nothing is kept.
    Leads,
    /// Nothing is known. The kind of file may tell more.
    Unknown,
}

/// Classifies a request by the type in its number: see `Documentation/userspace-api/ioctl/ioctl-number.rst`.
const fn class_of(request: u32) -> Class {
    let is_sized = request >> 16 != 0;
    match (request >> 8 & 0xff) as u8 {
        // Terminals and pipes; sockets; block devices, disks, consoles, loops; maps of blocks.
        0x54 | 0x89 | 0x8b => Class::Plain,
        0x00 | 0x03 | 0x12 | 0x22 | 0x4b | 0x4c if !is_sized => Class::Plain,
        0x56 if !is_sized => Class::Plain,
        // Files: attributes, freezing, versions, FAT, btrfs. Block devices.
        b'f' | b'X' | b'v' | b'r' | 0x94 | 0x12 if is_sized => Class::Plain,
        // Input, random numbers; epoll, performance counters, namespaces, processes.
        b'E' | b'R' | 0x8a | b'$' | 0xb7 | 0xff if is_sized => Class::Plain,
        // Userfaultfd: reading what its requests point to may wait for the caller, so it must not be touched.
        0xaa => Class::Points,
        // Guests, device mapper; devices for guests. They keep only what the rows say.
        0xae | 0xfd | b';' => Class::Leads,
        _ => Class::Unknown,
    }
}

/// True if a request that failed with EFAULT has had no effect that another attempt would repeat or miss.
pub(super) const fn may_repeat(request: u32) -> bool {
    matches!(
        request,
        i::FIONREAD
            | i::FIONBIO
            | i::FIOASYNC
            | i::FIGETBSZ
            | i::FS_IOC_FIEMAP
            | i::FIDEDUPERANGE
            | i::SIOCGIFCONF
            | i::TCGETS
            | i::TIOCGPGRP
            | i::TIOCGSID
            | i::TIOCGWINSZ
            | i::TIOCOUTQ
    )
}

/// Emits what `ioctl(fd, request, arg)` touches.
pub(super) fn visit<M, F>(v: &mut Visit<'_, M, F>, fd: u64, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    if arg == 0 {
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
                // A command, and as much as its driver has to say: names, registers, counters.
                v.emit(data, WINDOW_BYTES, InOut, Kind::Probe);
            }
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
        SG_IO => {
            v.pin(arg, 88, InOut);
            let Some([_, sizes, data, command, sense]) = v.words(arg) else { return };
            // Second word: cmd_len, mx_sb_len (bytes), iovec_count (16 bits), dxfer_len (32 bits).
            let (vectors, bytes) = ((sizes >> 16) & 0xffff, sizes >> 32);
            v.pin(command, sizes & 0xff, In);
            v.pin(sense, (sizes >> 8) & 0xff, Out);
            if vectors > 0 { v.iovec(data, vectors, InOut, Kind::Pin) } else { v.pin(data, bytes, InOut) }
        }
        NVME_ADMIN_CMD | NVME_IO_CMD | NVME_ADMIN64_CMD | NVME_IO64_CMD | NVME_IO64_CMD_VEC | NVME_SUBMIT_IO => {
            nvme(v, request, arg)
        }
        USBDEVFS_CONTROL | USBDEVFS_BULK | USBDEVFS_SUBMITURB | USBDEVFS_IOCTL => usb(v, request, arg),
        // The kernel also writes to what SUBMITURB was given.
        USBDEVFS_REAPURB | USBDEVFS_REAPURBNDELAY => v.pin(arg, 8, Out),
        PCM_WRITEI | PCM_READI | PCM_WRITEN | PCM_READN => sound(v, request, arg),
        VIDIOC_QUERYBUF | VIDIOC_QBUF | VIDIOC_DQBUF | VIDIOC_PREPARE_BUF => video_buffer(v, arg),
        VIDIOC_G_EXT_CTRLS | VIDIOC_S_EXT_CTRLS | VIDIOC_TRY_EXT_CTRLS => {
            // struct v4l2_ext_controls: which, count, error index, request, reserved, controls. A control has 20 bytes:
            // number, size, reserved, value or pointer.
            v.pin(arg, 32, InOut);
            let Some([which, _, _, controls]) = v.words(arg) else { return };
            let count = (which >> 32).min(1024);
            v.pin(controls, count * 20, InOut);
            for n in 0..count {
                let at = controls.wrapping_add(n * 20);
                let size = v.word32(at.wrapping_add(4)).unwrap_or(0) as u64;
                if size > 0
                    && let Some([value]) = v.words(at.wrapping_add(12))
                {
                    v.pin(value, size, InOut);
                }
            }
        }
        KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2 => {
            structure(v, request, arg);
            // slot and flags, guest address, size, our address.
            if let Some([_, _, size, ours]) = v.words(arg) {
                v.mem.note_guest_memory(size);
                v.emit(ours, size, InOut, Kind::Register);
            }
        }
        KVM_GET_DIRTY_LOG => {
            // slot and padding, bitmap: a bit for each page of the slot, which the kernel alone knows.
            v.pin(arg, 16, In);
            if let Some([_, bitmap]) = v.words(arg) {
                let bytes = match v.mem.guest_memory_max() {
                    0 => DIRTY_LOG_BYTES,
                    bytes => (bytes.div_ceil(LOGGED_BYTES)).next_multiple_of(8),
                };
                v.emit(bitmap, bytes, Out, Kind::Probe);
            }
        }
        KVM_CLEAR_DIRTY_LOG => {
            // slot and number of pages, first page, bitmap.
            v.pin(arg, 24, In);
            if let Some([numbers, _, bitmap]) = v.words(arg) {
                v.pin(bitmap, (numbers >> 32).div_ceil(64) * 8, In);
            }
        }
        KVM_MEMORY_ENCRYPT_REG_REGION
        | TEE_IOC_SHM_REGISTER
        | AMDGPU_GEM_USERPTR
        | RADEON_GEM_USERPTR
        | I915_GEM_USERPTR
        | ETNAVIV_GEM_USERPTR => {
            // Our address, size. With another driver, the numbers of graphics drivers mean something else.
            structure(v, request, arg);
            if let Some([ours, size]) = v.words(arg) {
                v.emit(ours, size, InOut, Kind::Register);
            }
            if request >> 8 & 0xff == b'd' as u32 {
                unknown(v, fd, request, arg);
            }
        }
        RDMA_VERBS => rdma(v, arg),
        VMCI_QUEUEPAIR_SETVA => {
            // handle, our address, bytes of both queues.
            v.pin(arg, 40, In);
            if let Some([_, ours, produced, consumed]) = v.words(arg) {
                v.emit(ours, produced.saturating_add(consumed), InOut, Kind::Register);
            }
        }
        i::VFIO_IOMMU_MAP_DMA => {
            // argsz and flags, our address, device address, size.
            v.pin(arg, 32, In);
            if let Some([_, ours, _, size]) = v.words(arg) {
                v.emit(ours, size, InOut, Kind::Register);
            }
        }
        IOMMU_IOAS_MAP => {
            // size and flags, object and padding, our address, length, device address.
            v.pin(arg, 40, InOut);
            if let Some([_, _, ours, size]) = v.words(arg) {
                v.emit(ours, size, InOut, Kind::Register);
            }
        }
        i::VHOST_SET_MEM_TABLE => {
            // nregions and padding, then per region: guest address, size, our address, padding.
            let regions = v.word32(arg).unwrap_or(0).min(512) as u64;
            v.pin(arg, 8 + regions * 32, In);
            for n in 0..regions {
                let Some([_, size, ours]) = v.words(arg.wrapping_add(8 + n * 32)) else { return };
                v.emit(ours, size, InOut, Kind::Register);
            }
        }
        _ => match class_of(request) {
            Class::Plain => sized(v, request, arg),
            Class::Points => {
                structure(v, request, arg);
                scan::flat(v, arg, size_of(request), Kind::Probe);
            }
            Class::Leads => leads(v, request, arg, Kind::Probe),
            Class::Unknown => unknown(v, fd, request, arg),
        },
    }
}

/// Probes a structure by the size in the request's number, and at least to the end of its page: an array often follows
/// a sized header.
fn sized<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    if v.mem.may_be_managed(arg, IOC_BYTES_MAX) {
        v.probe_len(arg, size_of(request));
    }
}

/// Emits the structure, and as much after it as an array may take.
fn structure<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    v.emit(arg, size_of(request).max(IOC_BYTES_MAX), InOut, Kind::Probe);
}

/// Emits the structure, and what it leads to.
fn leads<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64, kind: Kind)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    structure(v, request, arg);
    // An argument without a size is most likely a number; if not, a buffer, or a structure whose size its driver knows.
    let len = if size_of(request) == 0 { UNSIZED_BYTES } else { size_of(request) };
    scan::structure(v, arg, len, kind);
}

/// Emits the structure of a request of which nothing is known, and what it leads to.
fn unknown<M, F>(v: &mut Visit<'_, M, F>, fd: u64, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    if !v.mem.is_driver(fd as i32) {
        return leads(v, request, arg, Kind::Probe);
    }
    // The driver may keep whatever the structure leads to. An argument without a size may itself be what the driver
    // keeps.
    let itself = if size_of(request) == 0 { arg } else { Buffer::NOWHERE };
    v.emit(itself, 1, InOut, Kind::Driver);
    leads(v, request, arg, Kind::Driver);
}

/// The size in a request's number; 0 if it has none.
const fn size_of(request: u32) -> u64 {
    (request >> 16 & 0x3fff) as u64
}

/// Commands for NVMe devices. They are done when the call is.
fn nvme<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    /// Bytes of the largest block, and of its metadata.
    const BLOCK_BYTES: u64 = 4096;
    const METADATA_BYTES: u64 = 256;
    v.pin(arg, size_of(request), InOut);
    if request == NVME_SUBMIT_IO {
        // opcode, flags, control, number of blocks less one, reserved; metadata; data.
        let Some([numbers, metadata, data]) = v.words(arg) else { return };
        let blocks = (numbers >> 32 & 0xffff) + 1;
        v.emit(data, blocks * BLOCK_BYTES, InOut, Kind::Probe);
        return v.emit(metadata, blocks * METADATA_BYTES, InOut, Kind::Probe);
    }
    // At byte 16: metadata, data, their lengths.
    let Some([metadata, data, lens]) = v.words(arg.wrapping_add(16)) else { return };
    v.pin(metadata, lens & 0xffff_ffff, InOut);
    if request == NVME_IO64_CMD_VEC {
        v.iovec(data, lens >> 32, InOut, Kind::Pin);
    } else {
        v.pin(data, lens >> 32, InOut);
    }
}

/// USB devices. Whoever learns that a request in flight is done causes a write to it, so what the request uses stays
/// resident for good.
fn usb<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let Some([first, second, third, fourth, fifth]) = v.words::<5>(arg) else { return };
    match request {
        USBDEVFS_CONTROL => {
            // type, request, value, index, length (16 bits each but for the first two); timeout; data.
            v.pin(arg, 24, InOut);
            v.pin(third, first >> 48, InOut);
        }
        USBDEVFS_BULK => {
            // endpoint, length; timeout; data.
            v.pin(arg, 24, InOut);
            v.pin(third, first >> 32, InOut);
        }
        USBDEVFS_IOCTL => {
            // interface, request; data.
            v.pin(arg, 16, InOut);
            v.pin(second, size_of((first >> 32) as u32), InOut);
        }
        _ => {
            // struct usbdevfs_urb: type and status; flags; buffer; its length. The upper half of the fifth word is the
            // number of packets; they follow the structure, 12 bytes each.
            let packets = (fifth >> 32).min(1024);
            v.emit(arg, 56 + packets * 12, InOut, Kind::Exclude);
            v.emit(third, fourth & 0xffff_ffff, InOut, Kind::Exclude);
        }
    }
}

/// struct ib_uverbs_ioctl_hdr: 24 bytes, which begin with the length of the whole in 16 bits, and attributes.
fn rdma<M, F>(v: &mut Visit<'_, M, F>, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    const INLINE_BYTES: u64 = 8;
    let len = v.word32(arg).unwrap_or(0) as u64 & 0xffff;
    v.pin(arg, len, InOut);
    v.emit(Buffer::NOWHERE, 1, InOut, Kind::Driver);
    let mut before = 0;
    for n in 0..len.saturating_sub(24) / 16 {
        // Number and length (16 bits each), flags; an address, or the value itself.
        let Some([head, data]) = v.words(arg.wrapping_add(24 + n * 16)) else { return };
        let bytes = head >> 16 & 0xffff;
        if bytes <= INLINE_BYTES {
            // Some requests pass an address and a length as two such values.
            scan::pair(v, before, data);
            before = data;
            continue;
        }
        before = 0;
        v.pin(data, bytes, InOut);
        scan::command(v, data, bytes);
    }
}

/// struct snd_xferi, snd_xfern: result, buffer or buffers, frames.
fn sound<M, F>(v: &mut Visit<'_, M, F>, request: u32, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    v.pin(arg, 24, InOut);
    let Some([_, buffer, frames]) = v.words(arg) else { return };
    let bytes = frames.saturating_mul(FRAME_BYTES);
    if matches!(request, PCM_WRITEI | PCM_READI) {
        return v.emit(buffer, bytes, InOut, Kind::Probe);
    }
    for n in 0..CHANNELS_MAX {
        let at = buffer.wrapping_add(n * 8);
        // As many as there are channels, which only the kernel knows.
        let Some([channel]) = v.words(at) else { return };
        v.emit(at, 8, In, Kind::Probe);
        if v.mem.may_be_managed(channel, 1) {
            v.emit(channel, frames.saturating_mul(8), InOut, Kind::Probe);
        }
    }
}

/// struct v4l2_buffer. The device keeps user memory until it is given another buffer.
fn video_buffer<M, F>(v: &mut Visit<'_, M, F>, arg: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    const CAPTURE_MPLANE: u32 = 9;
    const OUTPUT_MPLANE: u32 = 10;
    const USERPTR: u32 = 2;
    const PLANES_MAX: u64 = 8;
    v.pin(arg, 88, InOut);
    // index, type, ...; at byte 60: kind of memory; at 64: address or planes; at 72: length, or how many planes.
    let kind = v.word32(arg.wrapping_add(4)).unwrap_or(0);
    let memory = v.word32(arg.wrapping_add(60)).unwrap_or(0);
    let Some([at, len]) = v.words(arg.wrapping_add(64)) else { return };
    let len = len & 0xffff_ffff;
    if !matches!(kind, CAPTURE_MPLANE | OUTPUT_MPLANE) {
        if memory == USERPTR {
            v.emit(at, len, InOut, Kind::Register);
        }
        return;
    }
    // struct v4l2_plane, 64 bytes: used and length; address.
    let planes = len.min(PLANES_MAX);
    v.pin(at, planes * 64, InOut);
    for n in 0..planes {
        let Some([lens, plane]) = v.words(at.wrapping_add(n * 64)) else { return };
        if memory == USERPTR {
            v.emit(plane, lens >> 32, InOut, Kind::Register);
        }
    }
}
