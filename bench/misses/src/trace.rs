//! What a program touches, page by page.

/// One step of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Touch(u32),
    /// The program gave the page up: what it touches next is a new page of zeros.
    Gone(u32),
}

/// An [`Op`] in four bytes.
#[derive(Clone, Copy)]
pub struct Packed(u32);

impl Packed {
    pub fn get(self) -> Op {
        if self.0 & 1 == 0 { Op::Touch(self.0 >> 1) } else { Op::Gone(self.0 >> 1) }
    }
}

impl From<Op> for Packed {
    fn from(op: Op) -> Self {
        match op {
            Op::Touch(page) => Self(page << 1),
            Op::Gone(page) => Self(page << 1 | 1),
        }
    }
}

/// In place of a position: the page is not touched again.
pub const NEVER: u32 = u32::MAX;

/// The touches of one run, in order. Pages are numbers from 0 on.
pub struct Trace {
    pub ops: Vec<Packed>,
    pub pages: usize,
    /// For each step the position of the next touch of the same page; [`NEVER`] also if the program gives it up before.
    next: Vec<u32>,
    /// The positions of each page's touches: those of page `i` are `touches[first[i]..first[i + 1]]`.
    touches: Vec<u32>,
    first: Vec<u32>,
}

impl Trace {
    pub fn from_ops(ops: impl IntoIterator<Item = Op>) -> Self {
        let ops: Vec<Packed> = ops.into_iter().map(Packed::from).collect();
        let page_of = |op: &Packed| match op.get() {
            Op::Touch(page) | Op::Gone(page) => page as usize,
        };
        let pages = ops.iter().map(page_of).max().map_or(0, |page| page + 1);
        let (mut next, mut last) = (vec![NEVER; ops.len()], vec![NEVER; pages]);
        let mut first = vec![0u32; pages + 1];
        for (at, op) in ops.iter().enumerate().rev() {
            match op.get() {
                Op::Touch(page) => {
                    next[at] = std::mem::replace(&mut last[page as usize], at as u32);
                    first[page as usize + 1] += 1;
                }
                Op::Gone(page) => last[page as usize] = NEVER,
            }
        }
        for page in 0..pages {
            first[page + 1] += first[page];
        }
        let (mut touches, mut filled) = (vec![0; first[pages] as usize], first.clone());
        for (at, op) in ops.iter().enumerate() {
            if let Op::Touch(page) = op.get() {
                let place = &mut filled[page as usize];
                touches[*place as usize] = at as u32;
                *place += 1;
            }
        }
        Self { ops, pages, next, touches, first }
    }

    /// The position of the next touch of the page that step `at` touches.
    pub fn next_touch(&self, at: usize) -> u32 {
        self.next[at]
    }

    /// The positions at which a page is touched, in order.
    pub fn touches_of(&self, page: u32) -> &[u32] {
        match self.first.get(page as usize..page as usize + 2) {
            Some(ends) => &self.touches[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }

    /// How often any page is touched.
    pub fn nr_touches(&self) -> usize {
        self.touches.len()
    }
}
