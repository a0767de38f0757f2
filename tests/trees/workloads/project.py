"""Writes a C project of many files with a Makefile: project.py DIRECTORY FILES. Its program prints sums over all of it."""
import os
import random
import sys

directory, files = sys.argv[1], int(sys.argv[2])
FUNCTIONS = 12
RECORDS = 21000
WORDS = ["region", "status", "agent", "path", "owner", "service", "started", "message"]


def write(name, lines):
    with open(os.path.join(directory, name), "w") as file:
        file.write("\n".join(lines) + "\n")


def source(number):
    rng = random.Random(number)
    lines = ['#include "records.h"', f"const struct record table{number}[{RECORDS}] = {{"]
    for i in range(RECORDS):
        lines.append(f'  {{{rng.randrange(1 << 30)}, {rng.random():.6f}, "{rng.choice(WORDS)}-{rng.randrange(1 << 16):x}",'
                     f" {{{rng.randrange(99)}, {i}, {rng.randrange(1 << 16)}}}}},")
    lines.append("};")
    for f in range(FUNCTIONS):
        lines.append(f"static unsigned f{f}(unsigned a, unsigned b, const struct record *t) {{ unsigned x = a, y = b;")
        for s in range(14):
            op = rng.choice("+-^|&")
            lines.append(rng.choice([
                f"  for (unsigned i = 0; i < (y & 7) + {s}; i++) x = (x {op} t[i].number) + i;",
                f"  if (x > {rng.randrange(1 << 20)}u) y {op}= x + {s}; else x += y * {s + 1};",
                f"  switch (x % 3) {{ case 0: y++; break; case 1: x {op}= y; break; default: y += t[{s}].three[1]; }}",
                f"  x = (x << {s % 13 + 1}) {op} (y >> {s % 7 + 1}); y += (unsigned)t[(x + {s}) & 63].text[2];",
            ]))
        lines.append("  return x + y;\n}")
    lines.append(f"unsigned sum{number}(void) {{\n  unsigned sum = 0;")
    lines.append(f"  for (unsigned i = 0; i < {RECORDS}; i++)")
    lines.append(f"    sum = sum * 31 + table{number}[i].number + (unsigned)table{number}[i].text[3] + table{number}[i].three[2];")
    lines += [f"  sum ^= f{f}(sum, {f}, table{number});" for f in range(FUNCTIONS)]
    lines.append("  return sum;\n}")
    return lines


write("records.h", ["struct record { unsigned number; double share; const char *text; unsigned three[3]; };",
                    *(f"unsigned sum{i}(void);" for i in range(files))])
for nr in range(files):
    write(f"part{nr}.c", source(nr))
write("main.c", ["#include <stdio.h>", '#include "records.h"', "int main(void) {",
                 *(f'  printf("{i} %u\\n", sum{i}());' for i in range(files)), "  return 0;", "}"])
write("Makefile", ["OBJECTS := main.o " + " ".join(f"part{i}.o" for i in range(files)),
                   "project: $(OBJECTS)", "\t$(CC) -Wl,--build-id=sha1 -o $@ $^",
                   "%.o: %.c records.h", "\t$(CC) -O1 -w -c -o $@ $<",
                   "clean:", "\trm -f project *.o"])
