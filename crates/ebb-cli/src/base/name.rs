//! What a user calls a tree of processes: the name given to `ebb run`, or the number of one of its processes.

use std::fmt;

use ebb::stats::NAME_BYTES;

/// Longest name, in bytes.
pub const BYTES_MAX: usize = NAME_BYTES - 1;

/// Why a text cannot be a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameError {
    Empty,
    TooLong,
    Letter(char),
    Number,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the name is empty"),
            Self::TooLong => write!(f, "the name is longer than {BYTES_MAX} bytes"),
            Self::Letter(letter) => write!(f, "`{}` is not allowed in a name", letter.escape_debug()),
            Self::Number => write!(f, "a name of digits alone could be mistaken for a PID"),
        }
    }
}

/// What a user can do about a bad name.
pub const REMEDY: &str = "use at most 63 letters, digits, `.`, `_` and `-`, not digits alone";

/// Checks the name of a tree.
pub fn check(text: &str) -> Result<(), NameError> {
    let has_place = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.is_empty() {
        Err(NameError::Empty)
    } else if let Some(letter) = text.chars().find(|c| !has_place(*c)) {
        Err(NameError::Letter(letter))
    } else if text.len() > BYTES_MAX {
        Err(NameError::TooLong)
    } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
        Err(NameError::Number)
    } else {
        Ok(())
    }
}

/// The tree that a user means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Named(String),
    /// The tree of this process, which is any process of the tree or its `ebb run`.
    Of(i32),
}

impl Target {
    /// Parses what a user wrote.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        match text.parse::<i32>() {
            Ok(pid) if pid > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Self::Of(pid)),
            _ => check(text).map(|()| Self::Named(text.to_owned())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, "tree {name}"),
            Self::Of(pid) => write!(f, "process {pid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_plain_letters() {
        for name in ["web", "a", "1a", "Web_2.old-x", "..", &"x".repeat(63)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        assert_eq!(check(""), Err(NameError::Empty));
        assert_eq!(check("a b"), Err(NameError::Letter(' ')));
        assert_eq!(check("a/b"), Err(NameError::Letter('/')));
        assert_eq!(check("bär"), Err(NameError::Letter('ä')));
        assert_eq!(check(&"x".repeat(64)), Err(NameError::TooLong));
    }

    #[test]
    fn digits_alone_are_a_process() {
        assert_eq!(check("4711"), Err(NameError::Number));
        assert_eq!(Target::parse("4711"), Ok(Target::Of(4711)));
        assert_eq!(Target::parse("web"), Ok(Target::Named("web".into())));
        assert_eq!(Target::parse("0"), Err(NameError::Number));
        assert_eq!(Target::parse("99999999999"), Err(NameError::Number));
        assert_eq!(Target::parse("-3"), Ok(Target::Named("-3".into())));
        assert_eq!(Target::parse("+3"), Err(NameError::Letter('+')));
    }

    #[test]
    fn what_is_wrong_with_a_name_does_not_reach_the_terminal_as_a_command() {
        assert_eq!(NameError::Letter('\x1b').to_string(), "`\\u{1b}` is not allowed in a name");
    }
}
