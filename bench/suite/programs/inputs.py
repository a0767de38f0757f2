"""What programs of the table of programs read: made from the arguments alone, the same every time.

inputs.py KIND COUNT INTO: writes COUNT of what the kind has into the file or the directory INTO."""

import json
import os
import random
import subprocess
import sys


def vocabulary(chance, count):
    letters = "etaoinshrdlucmfw"
    return ["".join(chance.choice(letters) for _ in range(2 + chance.randrange(11))) for _ in range(count)]


def lines_of(count, words, seed=1):
    """Lines of words, of which some are much more frequent than others."""
    chance = random.Random(seed)
    known = vocabulary(chance, words)
    for nr in range(count):
        of_line = [known[int(words * chance.random() ** 3)] for _ in range(6 + nr % 7)]
        if nr % 3 == 0:
            of_line.append(f"{chance.random():.9f}")
        yield " ".join(of_line)


def text(count, into):
    """Lines of text."""
    with open(into, "w", encoding="ascii") as file:
        file.writelines(line + "\n" for line in lines_of(count, 60_000))


def objects(count, into):
    """An array of JSON objects."""
    chance = random.Random(2)
    people = (
        {"id": nr, "name": f"name {chance.randrange(count)}", "tags": [f"tag{chance.randrange(50)}" for _ in range(nr % 5)],
         "at": {"x": chance.randrange(1000), "y": round(chance.random(), 6)}, "active": nr % 3 == 0}
        for nr in range(count)
    )  # fmt: skip
    with open(into, "w", encoding="ascii") as file:
        json.dump(list(people), file)


def templates(count, into):
    """C++: templates that use each other, with COUNT of their instances."""
    with open(into, "w", encoding="ascii") as file:
        file.write("#include <algorithm>\n#include <functional>\n#include <map>\n#include <memory>\n#include <regex>\n#include <string>\n")
        file.write("#include <tuple>\n#include <unordered_map>\n#include <variant>\n#include <vector>\n\n")
        file.write("template <int N> struct Tag { int value = N; bool operator<(const Tag &o) const { return value < o.value; } };\n\n")
        for nr in range(count):
            file.write(
                f"std::size_t use_{nr}(const std::string &text)\n{{\n"
                f"    std::map<Tag<{nr}>, std::vector<std::tuple<Tag<{nr}>, std::string>>> all;\n"
                f"    std::variant<Tag<{nr}>, std::string, std::shared_ptr<Tag<{nr}>>> one = text;\n"
                f"    for (char c : text) all[Tag<{nr}>{{c}}].emplace_back(Tag<{nr}>{{c + {nr}}}, text);\n"
                f"    std::function<bool(int)> few = [&](int n) {{ return all.count(Tag<{nr}>{{n}}) > {nr % 5}; }};\n"
                f"    for (auto &[key, list] : all)\n"
                f"        std::sort(list.begin(), list.end(), [](auto &a, auto &b) {{ return std::get<1>(a) < std::get<1>(b); }});\n"
                f"    return all.size() + one.index() + few({nr});\n}}\n\n"
            )


def commits(count, into):
    """A git repository with COUNT commits, each of which changes lines of one large file; no object is a delta."""
    chance = random.Random(4)
    lines = list(lines_of(60_000, 3_000))
    subprocess.run(["git", "init", "-q", "--bare", into], check=True)
    importer = subprocess.Popen(["git", "-C", into, "fast-import", "--quiet", "--depth=0"], stdin=subprocess.PIPE)

    def data(content):
        return b"data %d\n%s\n" % (len(content), content)

    with importer.stdin as stream:
        for nr in range(count):
            for _ in range(2_000):
                lines[chance.randrange(len(lines))] = f"{chance.random()} changed by {nr}"
            stream.write(b"commit refs/heads/main\ncommitter A <a@b.c> %d +0000\n" % (1_700_000_000 + nr) + data(b"change %d" % nr))
            stream.write(b"M 644 inline text\n" + data("\n".join(lines).encode()))
    if importer.wait() != 0:
        raise SystemExit(f"inputs.py: git fast-import ended with {importer.returncode}")


def scene(count, into):
    """A scene for POV-Ray: COUNT spheres and a light."""
    chance = random.Random(5)
    with open(into, "w", encoding="ascii") as file:
        file.write("camera { location <0, 0, -30> look_at <0, 0, 0> }\nlight_source { <20, 30, -40> color rgb 1 }\n")
        for _ in range(count):
            x, y, z = (round(chance.uniform(-12, 12), 3) for _ in range(3))
            r, g, b = (round(chance.random(), 2) for _ in range(3))
            file.write(f"sphere {{ <{x}, {y}, {z}>, {chance.uniform(0.05, 0.3):.3f} pigment {{ rgb <{r}, {g}, {b}> }} finish {{ phong 0.6 }} }}\n")


def drawing(count, into):
    """PostScript: a page of COUNT shapes, filled one over the other."""
    chance = random.Random(6)
    with open(into, "w", encoding="ascii") as file:
        file.write("%!PS\n")
        for _ in range(count):
            x, y, r = chance.randrange(600), chance.randrange(800), chance.randrange(5, 60)
            red, green, blue = (round(chance.random(), 2) for _ in range(3))
            file.write(f"{red} {green} {blue} setrgbcolor newpath {x} {y} {r} 0 {chance.randrange(90, 360)} arc closepath fill\n")
        file.write("showpage\n")


KINDS = {made.__name__: made for made in (text, objects, templates, commits, scene, drawing)}


def main():
    kind, count, into = sys.argv[1:]
    unfinished = into + ".new"
    KINDS[kind](int(count), unfinished)
    os.rename(unfinished, into)


if __name__ == "__main__":
    main()
