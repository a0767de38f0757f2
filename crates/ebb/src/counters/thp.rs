//! The policy of large folios: a word of the shared area.

/// Which memory gets folios, as the kernel's `transparent_hugepage/enabled` has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Thp {
    /// None.
    Never,
    /// Memory for which the program asks (MADV_HUGEPAGE).
    Advise,
    /// All but what the program excepts (MADV_NOHUGEPAGE).
    Always,
}

impl Thp {
    /// From its number in the shared area.
    pub fn of(bits: u32) -> Self {
        match bits {
            0 => Self::Never,
            1 => Self::Advise,
            _ => Self::Always,
        }
    }
}
