//! Text of other processes, shown as what it is.

/// `text` of another process with nothing in it that would move a terminal's cursor.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            c.to_string().bytes().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
        } else {
            out.push(c);
        }
    }
    out
}
