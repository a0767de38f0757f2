//! Manual pages of what clap knows about the commands. The texts are those of `--help`, and `commands.rs` says what a line
//! of them is.

use clap::{Arg, Command};
use roff::{Inline, Roff, bold, italic, roman};

/// What stands for a value.
const PLACEHOLDERS: &[&str] = &[
    "ADDRESS", "ARGS", "COMMAND", "DEVICE", "DIR", "ENGINE", "FILE", "N", "NAME", "OPTION", "OPTIONS", "PERCENT",
    "PERIOD", "PID", "POLICY", "PROGRAM", "SIZE", "SPEC", "TIME",
];

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    Paragraph(String),
    Definition { term: String, text: String },
    Example(Vec<String>),
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    // What goes on: a paragraph ends at an empty line, and before anything that is indented.
    let mut goes_on = false;
    for line in text.lines() {
        let words = line.trim();
        if words.is_empty() {
            goes_on = false;
            continue;
        }
        match (depth(line), blocks.last_mut()) {
            (0, Some(Block::Paragraph(so_far))) if goes_on => *so_far += &format!(" {words}"),
            (0, _) => blocks.push(Block::Paragraph(words.to_owned())),
            (2, _) => {
                let (term, text) = words.split_once("  ").unwrap_or((words, ""));
                blocks.push(Block::Definition { term: term.to_owned(), text: text.trim().to_owned() });
            }
            (_, Some(Block::Definition { text, .. })) if goes_on => *text = format!("{text} {words}").trim().to_owned(),
            (4.., Some(Block::Example(lines))) if goes_on => lines.push(words.to_owned()),
            (4.., _) => blocks.push(Block::Example(vec![words.to_owned()])),
            _ => panic!("neither text nor a term nor an example: {line:?}"),
        }
        goes_on = true;
    }
    blocks
}

/// Text with what is in backquotes and options in bold, and what stands for a value in italics.
fn inlines(text: &str) -> Vec<Inline> {
    let mut all = Vec::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            all.push(bold(part));
            continue;
        }
        let mut plain = String::new();
        let is_word = |byte: char| byte.is_ascii_alphanumeric() || byte == '-' || byte == '_';
        let mut rest = part;
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|byte| is_word(byte) != is_word(first)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            let is_option = word.starts_with("--") && word.len() > 2
                || word.len() == 2 && word.starts_with('-') && word.ends_with(|byte: char| byte.is_ascii_alphabetic());
            if !is_option && !PLACEHOLDERS.contains(&word) {
                plain += word;
                continue;
            }
            if !plain.is_empty() {
                all.push(roman(std::mem::take(&mut plain)));
            }
            all.push(if is_option { bold(word) } else { italic(word) });
        }
        if !plain.is_empty() {
            all.push(roman(plain));
        }
    }
    all
}

/// Terms are what one writes: literally, but for what stands for a value.
fn term(text: &str) -> Vec<Inline> {
    let literal = |inline| match inline {
        Inline::Roman(text) => Inline::Bold(text),
        other => other,
    };
    inlines(text).into_iter().map(literal).collect()
}

/// Adds a text. `within` the definition of an option, paragraphs are indented like it; its first has begun already.
fn add(page: &mut Roff, text: &str, within: bool) {
    let (mut is_first, mut is_deeper) = (true, false);
    for block in blocks(text) {
        let is_definition = matches!(block, Block::Definition { .. });
        if within && is_definition != is_deeper {
            page.control(if is_definition { "RS" } else { "RE" }, []);
            is_deeper = is_definition;
        }
        match block {
            Block::Paragraph(text) => {
                if !is_first {
                    page.control(if within { "IP" } else { "PP" }, []);
                }
                page.text(inlines(&text));
            }
            Block::Definition { term: what, text } => {
                page.control("TP", []).text(term(&what)).text(inlines(&text));
            }
            Block::Example(lines) => {
                if !is_first {
                    page.control("PP", []);
                }
                page.control("RS", ["4"]).control("EX", []);
                for line in lines {
                    page.text([roman(line)]);
                }
                page.control("EE", []).control("RE", []);
            }
        }
        is_first = false;
    }
    if is_deeper {
        page.control("RE", []);
    }
}

fn add_argument(page: &mut Roff, argument: &Arg) {
    let mut header = Vec::new();
    for name in
        [argument.get_short().map(|name| format!("-{name}")), argument.get_long().map(|name| format!("--{name}"))]
    {
        let Some(name) = name else { continue };
        if !header.is_empty() {
            header.push(roman(", "));
        }
        header.push(bold(name));
    }
    let values = argument.get_num_args().is_some_and(|range| range.takes_values());
    for value in argument.get_value_names().filter(|_| values).into_iter().flatten() {
        if !header.is_empty() {
            header.push(roman(" "));
        }
        header.extend(term(value));
    }
    let help = argument.get_long_help().or(argument.get_help()).expect("every argument has help").to_string();
    page.control("TP", []).text(header);
    add(page, &with_stop(&help), true);
}

/// A text of `--help` as sentences: there, the last of an option has no full stop.
fn with_stop(text: &str) -> String {
    let last = text.lines().last().unwrap_or_default();
    let stop = if text.ends_with(['.', ':']) || last.starts_with(' ') { "" } else { "." };
    format!("{text}{stop}")
}

/// The sections of a text: heading and body.
fn sections(text: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let is_heading = line.starts_with(char::is_uppercase) && line.split(' ').count() <= 2;
        match line.strip_suffix(':').filter(|_| is_heading) {
            Some(heading) => sections.push((heading.to_uppercase(), String::new())),
            None => {
                let (_, body) = sections.last_mut().expect("the first line is a heading");
                *body += &format!("{line}\n");
            }
        }
    }
    sections
}

fn lower_first(text: &str) -> String {
    text.chars().take(1).flat_map(char::to_lowercase).chain(text.chars().skip(1)).collect()
}

/// The name of a command's page.
pub fn name(command: &Command, ebb: &Command) -> String {
    if command.get_name() == ebb.get_name() {
        ebb.get_name().to_owned()
    } else {
        format!("{}-{}", ebb.get_name(), command.get_name())
    }
}

/// The commands that have a page, `ebb` itself first.
pub fn commands(ebb: &Command) -> impl Iterator<Item = &Command> {
    std::iter::once(ebb).chain(ebb.get_subcommands().filter(|command| command.get_name() != "help"))
}

/// The page of a command.
pub fn page(command: &Command, ebb: &Command, date: &str) -> String {
    let (own, version) = (name(command, ebb), format!("ebb {}", ebb.get_version().expect("it has one")));
    let about = command.get_about().expect("every command says what it does").to_string();
    let mut page = Roff::new();
    page.control("TH", [own.to_uppercase().as_str(), "1", date, version.as_str(), "User Commands"]);
    page.control("SH", ["NAME"]).text([roman(format!("{own} - {}", lower_first(&about)))]);

    page.control("SH", ["SYNOPSIS"]);
    let usage = command.get_overridden_usage().expect("every command has a usage").to_string();
    for (at, line) in usage.lines().map(str::trim).enumerate() {
        if at > 0 {
            page.control("br", []);
        }
        page.text(term(line));
    }
    page.control("SH", ["DESCRIPTION"]);
    add(&mut page, &command.get_long_about().expect("every command has a description").to_string(), false);

    if command.get_name() == ebb.get_name() {
        page.control("SH", ["COMMANDS"]);
        for other in commands(ebb).skip(1) {
            page.control("TP", []).text([bold(name(other, ebb)), roman("(1)")]);
            page.text([roman(format!("{}.", other.get_about().expect("checked above")))]);
        }
    }
    let is_shown = |argument: &&Arg| !argument.is_hide_set();
    if command.get_positionals().next().is_some() {
        page.control("SH", ["ARGUMENTS"]);
        command.get_positionals().filter(is_shown).for_each(|argument| add_argument(&mut page, argument));
    }
    page.control("SH", ["OPTIONS"]);
    for argument in command.get_arguments().filter(is_shown).filter(|argument| !argument.is_positional()) {
        add_argument(&mut page, argument);
    }
    for (heading, body) in sections(&command.get_after_long_help().expect("every command has sections").to_string()) {
        page.control("SH", [heading.as_str()]);
        add(&mut page, &body, false);
    }
    page.control("SH", ["SEE ALSO"]);
    let mut others: Vec<_> = commands(ebb).map(|other| name(other, ebb)).filter(|other| *other != own).collect();
    others.sort();
    let mut line = Vec::new();
    for other in others {
        line.extend([bold(other), roman("(1), ")]);
    }
    line.truncate(line.len() - 1);
    line.push(roman("(1)"));
    page.text(line);
    page.render()
}

#[test]
fn a_text_is_paragraphs_terms_and_examples() {
    let text = "One\ntwo:\n  term  its\n        text\n  long=TERM\n        text\n\nMore\n\n    example  a\n      b\n";
    let paragraph = |text: &str| Block::Paragraph(text.to_owned());
    let definition = |term: &str, text: &str| Block::Definition { term: term.to_owned(), text: text.to_owned() };
    assert_eq!(
        blocks(text),
        [
            paragraph("One two:"),
            definition("term", "its text"),
            definition("long=TERM", "text"),
            paragraph("More"),
            Block::Example(vec!["example  a".to_owned(), "b".to_owned()])
        ]
    );
}

#[test]
fn options_and_what_stands_for_values_are_marked() {
    let marked = inlines("With --ram SIZE (-q), `ebb ps` and $EBB_TMPDIR, not RESIZE.");
    let expected = [
        roman("With "),
        bold("--ram"),
        roman(" "),
        italic("SIZE"),
        roman(" ("),
        bold("-q"),
        roman("), "),
        bold("ebb ps"),
        roman(" and $EBB_TMPDIR, not RESIZE."),
    ];
    assert_eq!(marked, expected);
}
