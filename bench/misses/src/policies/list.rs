//! Doubly linked lists of pages. A page is in at most one list of a set.

const NONE: u32 = u32::MAX;

/// Some lists over the same pages.
pub struct Lists<const N: usize> {
    /// For each page the list that it is in, `N` for none, and its neighbours.
    of: Vec<u8>,
    newer: Vec<u32>,
    older: Vec<u32>,
    newest: [u32; N],
    oldest: [u32; N],
    len: [usize; N],
}

impl<const N: usize> Lists<N> {
    pub fn new(pages: usize) -> Self {
        Self {
            of: vec![N as u8; pages],
            newer: vec![NONE; pages],
            older: vec![NONE; pages],
            newest: [NONE; N],
            oldest: [NONE; N],
            len: [0; N],
        }
    }

    /// The list that the page is in.
    pub fn list_of(&self, page: u32) -> Option<usize> {
        let list = self.of[page as usize] as usize;
        (list < N).then_some(list)
    }

    pub fn len(&self, list: usize) -> usize {
        self.len[list]
    }

    pub fn oldest(&self, list: usize) -> Option<u32> {
        let page = self.oldest[list];
        (page != NONE).then_some(page)
    }

    /// Makes the page the newest of a list, and removes it from the list that it was in.
    pub fn push(&mut self, list: usize, page: u32) {
        self.remove(page);
        let before = self.newest[list];
        (self.newer[page as usize], self.older[page as usize]) = (NONE, before);
        match before {
            NONE => self.oldest[list] = page,
            _ => self.newer[before as usize] = page,
        }
        self.newest[list] = page;
        self.of[page as usize] = list as u8;
        self.len[list] += 1;
    }

    /// Removes the page from its list, if it is in one.
    pub fn remove(&mut self, page: u32) {
        let Some(list) = self.list_of(page) else { return };
        let (newer, older) = (self.newer[page as usize], self.older[page as usize]);
        match newer {
            NONE => self.newest[list] = older,
            _ => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest[list] = newer,
            _ => self.newer[older as usize] = newer,
        }
        self.of[page as usize] = N as u8;
        self.len[list] -= 1;
    }

    /// Removes and returns the oldest page of a list.
    pub fn pop(&mut self, list: usize) -> Option<u32> {
        let page = self.oldest(list)?;
        self.remove(page);
        Some(page)
    }
}
