//! Tables that look like those of util-linux: columns as wide as their content, with one blank between them.

use std::fmt::Write;

/// Lays out `lines` of cells in columns. `right` says which columns are aligned to the right.
pub fn aligned(lines: &[Vec<String>], right: &[bool]) -> String {
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..right.len()).map(width).collect();
    let mut out = String::new();
    for line in lines {
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let gap = if at == 0 { "" } else { " " };
            let _ = if right[at] { write!(out, "{gap}{cell:>width$}") } else { write!(out, "{gap}{cell:<width$}") };
        }
        // The last column needs no blanks behind it.
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_aligned_by_their_letters() {
        let lines = [["NAME", "SIZE"], ["wörter", "1"]].map(|line| line.map(str::to_owned).to_vec());
        assert_eq!(aligned(&lines, &[false, true]), "NAME   SIZE\nwörter    1\n");
        assert_eq!(aligned(&[], &[false]), "");
    }
}
