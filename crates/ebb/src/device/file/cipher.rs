//! The cipher of a file: AES-128 in GCM (NIST SP 800-38D) under a key that is in this memory only. Content that was
//! changed on the device, or is of another slot or another time, does not open.
//!
//! *ring* does the work, by the widest instructions that the processor has. It allocates nothing and makes no system call,
//! so it may be used while a fault is served.

use super::{FileError, SLOT_BYTES};
use crate::protocols::seal::Seal;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 16;

/// A cipher with its key.
pub(super) struct Cipher(LessSafeKey);

impl Cipher {
    /// The cipher of a key that no other file has.
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&AES_128_GCM, key).expect("a key of this cipher's length");
        Self(LessSafeKey::new(key))
    }

    /// Encrypts `content`, at most a slot's, in place, for a slot. `nonce` is a number that was never used with this key.
    pub fn seal(&self, nonce: u64, slot: u32, content: &mut [u8]) -> Result<Seal, FileError> {
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce_of(nonce), Aad::from(slot.to_le_bytes()), content)
            .map_err(|_| FileError::Corrupt)?;
        let mut bytes = [0; 16];
        bytes.copy_from_slice(tag.as_ref());
        Ok(Seal::new(nonce, content.len(), bytes))
    }

    /// Decrypts in place what was read of a slot; returns how many bytes of it have content. What does not fit the seal is
    /// no content, and then `read` may hold anything.
    pub fn open(&self, seal: Seal, slot: u32, read: &mut [u8; SLOT_BYTES]) -> Result<usize, FileError> {
        let (len, tag) = (seal.content_len(), Tag::from(seal.tag()));
        self.0
            .open_in_place_separate_tag(
                nonce_of(seal.nonce()),
                Aad::from(slot.to_le_bytes()),
                tag,
                &mut read[..len],
                0..,
            )
            .map_err(|_| FileError::Corrupt)?;
        Ok(len)
    }
}

/// The nonce that is this number.
fn nonce_of(number: u64) -> Nonce {
    let mut bytes = [0u8; NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes_gcm::Aes128Gcm;
    use aes_gcm::aead::{AeadInOut, KeyInit};
    use std::vec::Vec;

    fn slot_of(content: &[u8]) -> [u8; SLOT_BYTES] {
        let mut slot = [0xee; SLOT_BYTES];
        slot[..content.len()].copy_from_slice(content);
        slot
    }

    #[test]
    fn what_was_sealed_opens_at_each_length() {
        let cipher = Cipher::new(&[7; KEY_BYTES]);
        for len in [1, 15, 16, 17, 63, 64, 255, 256, 1000, 2048, SLOT_BYTES - 1, SLOT_BYTES] {
            let content: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let mut data = content.clone();
            let seal = cipher.seal(len as u64, 5, &mut data).expect("sealed");
            assert!(len < 8 || data != content);
            let mut read = slot_of(&data);
            assert_eq!(cipher.open(seal, 5, &mut read).expect("opened"), len);
            assert_eq!(&read[..len], content);
            assert!(read[len..].iter().all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn what_was_changed_or_belongs_elsewhere_does_not_open() {
        let cipher = Cipher::new(&[7; KEY_BYTES]);
        let mut data = vec![1; 300];
        let seal = cipher.seal(9, 5, &mut data).expect("sealed");
        let is_refused =
            |seal, slot, data: &[u8]| matches!(cipher.open(seal, slot, &mut slot_of(data)), Err(FileError::Corrupt));
        assert!(!is_refused(seal, 5, &data));
        assert!(is_refused(seal, 6, &data), "another slot");
        assert!(is_refused(Seal::new(10, 300, seal.tag()), 5, &data), "another nonce");
        assert!(is_refused(Seal::new(9, 299, seal.tag()), 5, &data), "another length");
        for bit in [0, 8 * 150 + 3, 8 * 300 - 1] {
            let mut changed = data.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(is_refused(seal, 5, &changed), "bit {bit}");
        }
        let mut tag = seal.tag();
        tag[15] ^= 1;
        assert!(is_refused(Seal::new(9, 300, tag), 5, &data), "another tag");
        let another = Cipher::new(&[8; KEY_BYTES]);
        assert!(another.open(seal, 5, &mut slot_of(&data)).is_err());
    }

    #[test]
    fn another_implementation_makes_the_same_of_it() {
        let key = core::array::from_fn(|i| (i * 29 + 3) as u8);
        let (cipher, other) = (Cipher::new(&key), Aes128Gcm::new(&key.into()));
        for (number, slot, len) in [(1u64, 0u32, 1), (2, 1, 16), (0x0123_4567_89ab, 0xdead_beef, SLOT_BYTES)] {
            let content: Vec<u8> = (0..len).map(|i| (i * i) as u8).collect();
            let (mut ours, mut theirs) = (content.clone(), content);
            let seal = cipher.seal(number, slot, &mut ours).expect("sealed");
            let mut nonce = [0; NONCE_LEN];
            nonce[..8].copy_from_slice(&number.to_le_bytes());
            let tag = other.encrypt_inout_detached(&nonce.into(), &slot.to_le_bytes(), (&mut theirs[..]).into());
            assert!(ours == theirs && seal.tag()[..] == tag.expect("sealed")[..], "{len} bytes");
        }
    }
}
