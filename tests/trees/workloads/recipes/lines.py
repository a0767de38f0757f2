"""Prints lines that depend on two numbers alone: lines.py SEED LINES. Holds them all before it prints the first."""
import random
import sys

rng = random.Random(int(sys.argv[1]))
rows = [f"{rng.getrandbits(64):016x} {rng.randrange(1000)} the same text in every line" for _ in range(int(sys.argv[2]))]
sys.stdout.write("\n".join(rows) + "\n")
