"""Reports as parts of a page of documentation."""

# Options that say where things are.
PATHS = ("--ebb", "--micro", "--json", "--doc", "--plots", "--from", "--join")


def told(arguments):
    """The arguments that bear on what was measured, not on where things are."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument.split("=")[0] in PATHS:
            skip = "=" not in argument
        else:
            kept.append(argument)
    return kept


def put(path, text, marks):
    """Replaces what stands between two marks in a page."""
    with open(path, encoding="utf-8") as file:
        before, rest = file.read().split(marks[0] + "\n", 1)
        after = rest.split(marks[1] + "\n", 1)[1]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{marks[0]}\n{text}\n{marks[1]}\n{after}")
