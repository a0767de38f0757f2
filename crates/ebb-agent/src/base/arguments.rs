//! Assembly that several places use.

/// Loads the six arguments of a system call from the array that the register `from` points to.
macro_rules! load_arguments {
    ($from:literal) => {
        concat!(
            "mov rdi, [",
            $from,
            "]\n",
            "mov rsi, [",
            $from,
            " + 8]\n",
            "mov rdx, [",
            $from,
            " + 16]\n",
            "mov r10, [",
            $from,
            " + 24]\n",
            "mov r8, [",
            $from,
            " + 32]\n",
            "mov r9, [",
            $from,
            " + 40]"
        )
    };
}
pub(crate) use load_arguments;
