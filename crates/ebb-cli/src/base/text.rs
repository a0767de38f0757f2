//! Text from other processes, made safe to print.

/// `text` with every control character escaped, so that it cannot command the terminal.
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
