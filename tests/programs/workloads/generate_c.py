"""Prints a C file so large that its compilation needs much memory."""
import random
import sys

functions = int(sys.argv[1])
source = random.Random(23)
print("typedef unsigned long u;\nextern u out[1024];")
for f in range(functions):
    print(f"static u f{f}(u a, u b, const u *p) {{\n  u x = a ^ {source.randrange(1 << 30)}u, y = b;")
    for s in range(40):
        op = source.choice("+-*^|&")
        kind = source.randrange(6)
        if kind == 0:
            print(f"  for (u i = 0; i < (y & 7) + {s}; i++) x = (x {op} p[i & 63]) + i;")
        elif kind == 1:
            print(f"  if (x > {source.randrange(1 << 20)}u) y {op}= x + {s}; else x += y * {s + 1};")
        elif kind == 2:
            print(f"  switch (x % 5) {{ case 0: y++; break; case 1: y ^= {s}; break; case 3: x {op}= y; break; default: y += p[{s}]; }}")
        else:
            print(f"  x = (x << {s % 13 + 1}) {op} (y >> {s % 7 + 1}); y += p[(x + {s}) & 63];")
    print("  return x + y;\n}")
    if f % 8 == 7:
        print(f"void g{f}(const u *p) {{")
        for i in range(8):
            print(f"  out[{(f - i) % 1024}] += f{f - i}(p[{i}], p[{i + 1}], p);")
        print("}")
