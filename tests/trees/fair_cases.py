"""Two processes that do the same get the same, and one that works gets what others that wait have."""
from tree import need

# The budget, and what each of the two fills and uses, MiB.
SHORT = [("64M", 64, 64, 64)]
LONG = [
    ("64M", 64, 64, 64),
    ("96M", 64, 64, 64),
    ("112M", 64, 64, 64),
    # Three quarters of what the first has are cold: there is room for what both use.
    ("64M", 24, 96, 24),
]
# By how much one may get further than the other. Without a rule for equals it is 10 to 80 times as far. On a machine that does
# other things too they get different parts of that.
APART, APART_SHORT = 1.2, 1.6


def equals(context):
    binary = context.tools.c("equals")
    most = context.pick(APART_SHORT, APART)
    for ram, hot, *fills in context.pick(SHORT, LONG):
        told = context.good([binary, "15", "5", str(context.pick(2, 5)), *map(str, [hot, *fills])], ram).output
        rounds = [[int(word) for word in line.split()] for line in told.decode().splitlines() if line[:1].isdigit()]
        need(len(rounds) == context.pick(2, 5), f"it says {told!r}")
        sums = [sum(counts) for counts in zip(*rounds)]
        apart = max(sums) / max(min(sums), 1)
        context.notes.append(f"{ram}: {apart:.2f} times as far")
        need(apart <= most, f"under {ram} one got {apart:.1f} times as far as the other: {rounds}")


# What three children that wait share with their parent, what one of them has locked, and what the parent changes at random, MiB;
# and words that it changes in five seconds, at least. When the children keep what they share it is 47,000 where it goes on at
# all, when they give it 70 million.
WAITING = [(20, 3, 8, 200_000), (22, 4, 8, 1)]


def idlers(context):
    binary = context.tools.c("idlers")
    for shared, locked, own, least in WAITING:
        output = context.good([binary, "3", str(shared), str(locked), str(own), context.pick("5", "20")], "24M").output
        changed = int(output.split()[0])
        context.notes.append(f"{shared} MiB shared: {changed:,} changed")
        need(changed >= least, f"with {shared} MiB shared it changed {changed} words")
    if context.long:
        copies_of_the_shared_are_bounded(context, binary)


# The part of the budget by which copies in RAM of what others keep may pass it; and what four small processes have beside it, MiB.
COPIES_PART, BESIDE = 4, 4


def copies_of_the_shared_are_bounded(context, binary):
    """All that does not compress is shared, the parent needs as much of its own, and there is no disk: the tree ends, and has not
    held what each of them could copy."""
    budget = 24
    under = [context.ebb, "run", "-q", "--ram", f"{budget}M", "--swap", "none", "--"]
    ended = context.run([*under, binary, "3", "20", "0", "8", "20"], None)
    need(ended.status == -9 and b"out of swap" in ended.output, f"status {ended.status}: {ended.output[-600:].decode(errors='replace')}")
    held, most = ended.found.peak / 2**20, budget + budget / COPIES_PART + BESIDE
    need(held <= most, f"it held {held:.1f} MiB, more than {most:.0f}")
