#!/usr/bin/env python3
"""The page of `ebb run --report` in a browser, Chromium without a window: it loads nothing, each plot is drawn and legible on a wide and
on a narrow screen, light and dark, and the page says what the run itself says. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path). BROWSER names the browser.
"""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from command import find_ebb  # noqa: E402

# Grows to more than twice its budget, with content that compresses and content that does not, and uses all of it for a while.
PROGRAM = """
import hashlib, random, time
noise = [bytearray(hashlib.shake_128(str(i).encode()).digest(1 << 17) * 4) for i in range(64)]
text = [bytearray(str(i).encode() * (1 << 17)) for i in range(64)]
end = time.monotonic() + 2
while time.monotonic() < end:
    for block in random.sample(noise + text, 8):
        block[random.randrange(len(block))] ^= 1
"""
# Put at the beginning of a copy of the page: nothing may be loaded, and what goes wrong is kept.
HEAD = """
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<script>
const wrong = [];
addEventListener("error", (event) => wrong.push(`error: ${event.message}`), true);
addEventListener("securitypolicyviolation", (event) => wrong.push(`it loads ${event.blockedURI}`));
</script>
"""
# Put at its end: what the browser made of the page.
TAIL = """
<script>
function box(element) {
  const { left, right, top, bottom, width, height } = element.getBoundingClientRect();
  return { left, right, top, bottom, width, height };
}
function shape(path) {
  const { fill, stroke } = getComputedStyle(path), { x, y, width, height } = path.getBBox();
  return { class: path.getAttribute("class"), fill, stroke, x, y, width, height, d: path.getAttribute("d") };
}
// Whether the upper edge of what is filled is where the plot says: a little below it there is something that is painted, for one column.
function painted(svg) {
  svg.scrollIntoView({ block: "center" });
  const { left, bottom, width, height } = svg.getBoundingClientRect();
  let most = 0;
  for (let column = 1; column < 20; column++) {
    for (let part = 1; part < 100; part++) {
      const at = document.elementFromPoint(left + width * column / 20, bottom - height * part / 100);
      if (at && at.closest("svg") === svg && at.classList.contains("area")) most = Math.max(most, part);
    }
  }
  return most;
}
addEventListener("load", () => {
  const all = (selector, of = document) => Array.from(of.querySelectorAll(selector));
  const seen = {
    wrong,
    loaded: performance.getEntriesByType("resource").map((entry) => entry.name),
    window: [innerWidth, innerHeight],
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    colors: [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor],
    scrollWidth: document.documentElement.scrollWidth,
    clientWidth: document.documentElement.clientWidth,
    title: document.title,
    figures: Object.fromEntries(all("dl div").map((one) => all("dt, dd", one).map((text) => text.innerText))),
    cost: all(".cost span").map((line) => line.innerText),
    pre: all("pre").map((pre) => pre.innerText),
    wide: all("h1, h2, p, dl div, .plot, .cost, .cost span").map(box),
    plots: all(".plot").map((plot) => ({
      name: plot.getAttribute("aria-label"),
      box: box(plot),
      svg: box(plot.querySelector("svg")),
      labels: all("span", plot).map((label) => ({ text: label.innerText, kind: label.className, ...box(label) })),
      shapes: all("path", plot).map(shape),
      legend: all("i", plot.parentElement).map((i) => ({
        class: i.className, color: getComputedStyle(i).backgroundColor, ...box(i) })),
      painted: painted(plot.querySelector("svg")),
    })),
    scripts: all("script").length, others: all("img, link, iframe, object, embed, video, audio, source, use, image, a").length,
  };
  parent.postMessage(JSON.stringify(seen), "*");
});
</script>
"""
# A window is at least 500 wide, so the page is in a frame; and what it says is in an element that --dump-dom prints.
FRAME = """<!DOCTYPE html>
<meta name="color-scheme" content="light dark">
<pre id="seen"></pre>
<script>addEventListener("message", (event) => document.getElementById("seen").textContent = event.data);</script>
<iframe style="border:0;width:{0}px;height:{1}px" srcdoc="{2}"></iframe>
"""
LIMIT_S = 60
PLOTS = ["Memory in RAM", "Swapped out, as it was before compression", "Faults per second, by what they found", "Time of the program's threads"]
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Failure(Exception):
    """What is wrong."""


def need(condition, why):
    if not condition:
        raise Failure(why)


def find_browser():
    """A browser, or a failure: a test that cannot look must not pass."""
    for name in (os.environ.get("BROWSER"), "chromium", "chromium-browser", "google-chrome"):
        if name and shutil.which(name):
            return shutil.which(name)
    raise Failure("there is no chromium: install it (on Debian: apt-get install chromium), or name a browser like it in BROWSER")


class Browser:
    def __init__(self, scratch):
        self.program, self.scratch = find_browser(), scratch

    def look(self, page, size, dark=False):
        """What the browser makes of a page, on a screen of that size."""
        frame = os.path.join(self.scratch, "frame.html")
        need(page.count("<head>") == 1 and page.count("</body>") == 1, "it is no page")
        copy = page.replace("<head>", "<head>" + HEAD).replace("</body>", TAIL + "</body>")
        with open(frame, "w", encoding="utf-8") as file:
            file.write(FRAME.format(*size, html.escape(copy)))
        # The page is our own, and whoever runs this may have no right to a sandbox. A scheme of 0 is dark.
        command = [self.program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.scratch}/profile", "--dump-dom",
                   f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"file://{frame}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                             env={**os.environ, "HOME": self.scratch})
        found = re.search(r'<pre id="seen">(.*?)</pre>', ran.stdout, re.S)
        need(found and found.group(1), f"the browser ended with {ran.returncode} and without an answer: {ran.stderr[-800:]}")
        seen = json.loads(html.unescape(found.group(1)))
        need(seen["window"] == list(size), f"the page has another size: {seen['window']}")
        need(seen["dark"] == dark, "the browser prefers another scheme")
        return seen


def number(text):
    """The number of a text such as 24.0 MiB, 15k, 41,089 or 90%."""
    found = re.fullmatch(r"([0-9.,]+) ?(B|KiB|MiB|GiB|k|M|%)?", text)
    need(found, f"no number: {text!r}")
    value, unit = found.groups()
    return float(value.replace(",", "")) * {None: 1, "%": 1, "k": 1e3, "M": 1e6, **UNITS}[unit]


def apart(one, other):
    return one["right"] <= other["left"] or other["right"] <= one["left"] or one["bottom"] <= other["top"] or other["bottom"] <= one["top"]


def luminance(color):
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class Cases:
    """Each method is a case, whose docstring says what holds."""

    def __init__(self, ebb, browser, scratch):
        self.ebb, self.browser, self.scratch = ebb, browser, scratch
        self.page, self.told, self.stats = self.run("--ram", "24M", "--", sys.executable, "-c", PROGRAM)

    def run(self, *arguments):
        """The page of a run, what the run said in the end, and its counters."""
        page, stats = os.path.join(self.scratch, "run.html"), os.path.join(self.scratch, "stats.json")
        ran = subprocess.run([self.ebb, "run", "--report", page, "--stats", stats, *arguments], capture_output=True, text=True,
                             timeout=LIMIT_S, check=False)
        need(os.path.exists(page), f"there is no page: {ran.returncode} {ran.stderr}")
        with open(page, encoding="utf-8") as file, open(stats, encoding="utf-8") as counters:
            return file.read(), ran.stderr.splitlines(), json.load(counters)

    def nothing_is_loaded(self):
        """The page names no other file, loads none, and has no script."""
        need(not re.search(r"https?:|\bsrc=|\bhref=|url\(|@import|<script", self.page), "it names something else")
        seen = self.browser.look(self.page, (1200, 900))
        need(seen["wrong"] == [] and seen["loaded"] == [], f"{seen['wrong']} {seen['loaded']}")
        need((seen["scripts"], seen["others"]) == (2, 0), "there are elements that load something")

    def says_what_the_run_says(self):
        """Figures are those of --stats, lines those that the run printed, and the plots reach what they say."""
        seen, counters, derived = self.browser.look(self.page, (1200, 900)), self.stats["counters"], self.stats["derived"]
        need(seen["title"].startswith("python") and seen["title"].endswith(" under Ebb"), seen["title"])
        figures = seen["figures"]
        for name, value in (("Wanted at most", counters["peak_wanted_bytes"]), ("Held at most", counters["peak_held_bytes"]),
                            ("Budget", counters["ram_limit_bytes"]), ("Swapped out", derived["out_pages"] * 4096)):
            need(abs(number(figures[name]) - value) < 0.06 * 2**20, f"{name}: {figures[name]} and {value}")
        need(number(figures["Faults"]) == derived["faults"] > 1000, f"faults: {figures['Faults']} and {derived['faults']}")
        need(0 <= number(figures["Time for swap"]) <= 100, figures["Time for swap"])
        need(seen["cost"] == [line for line in self.told if line in seen["cost"]] and len(seen["cost"]) >= 4, f"{seen['cost']} {self.told}")
        need(set(self.told) == set(seen["cost"]), f"the run said {self.told}, and the page {seen['cost']}")
        # What was wanted is a line that goes up to it, in units of the axis.
        memory = seen["plots"][0]
        axis = max(number(label["text"]) for label in memory["labels"] if label["kind"] == "y")
        for name, value in (("wanted", counters["peak_wanted_bytes"]), ("budget", counters["ram_limit_bytes"])):
            heights = [200 - float(y) for y in re.findall(r",([0-9.]+)", shape_of(memory, name)["d"])]
            reached = max(heights) / 200 * axis
            need(0.9 * value < reached < 1.01 * value, f"{name}: the line reaches {reached}, and it was {value}")
        need("What other budgets would do" in self.page and "--ram" in seen["pre"][1], "no other budgets")

    def is_legible_on_every_screen(self):
        """On a wide and on a narrow screen, light and dark: plots are there, nothing is cut off, no label is on another."""
        for size, dark in (((1200, 900), False), ((400, 800), False), ((400, 800), True), ((1200, 900), True)):
            self.looks_right(self.browser.look(self.page, size, dark), size, dark)

    def looks_right(self, seen, size, dark):
        where = f"{size[0]} wide, {'dark' if dark else 'light'}"
        need(seen["scrollWidth"] <= seen["clientWidth"] <= size[0], f"{where}: it is {seen['scrollWidth']} wide")
        need(all(0 <= one["left"] <= one["right"] <= size[0] for one in seen["wide"]), f"{where}: something sticks out")
        text, ground = map(luminance, seen["colors"])
        need((text - ground > 128) if dark else (ground - text > 128), f"{where}: colors are {seen['colors']}")
        need([plot["name"] for plot in seen["plots"]] == PLOTS, f"{where}: other plots")
        for plot in seen["plots"]:
            self.is_drawn(plot, f"{where}: {plot['name']}", size, ground)

    def is_drawn(self, plot, where, size, ground):
        svg = plot["svg"]
        need(svg["width"] >= 0.6 * min(size[0], 960) and svg["height"] >= 100, f"{where}: it is small: {svg}")
        need(abs(svg["width"] - plot["box"]["width"]) < 1 and abs(svg["height"] - plot["box"]["height"]) < 1, f"{where}: {svg}")
        areas = [shape for shape in plot["shapes"] if shape["class"].startswith("area")]
        lines = [shape for shape in plot["shapes"] if shape["class"].startswith("line")]
        need(areas and all(shape["width"] > 990 for shape in areas + lines), f"{where}: a series is not as wide as the plot")
        need(max(shape["height"] for shape in areas + lines) > 80, f"{where}: it is flat")
        for shape in areas + lines:
            need(shape["x"] >= 0 and shape["x"] + shape["width"] <= 1000.1, f"{where}: {shape} sticks out")
            need(shape["y"] >= -0.1 and shape["y"] + shape["height"] <= 200.1, f"{where}: {shape} sticks out")
            color = shape["fill" if shape in areas else "stroke"]
            need(color.startswith("rgb(") and abs(luminance(color) - ground) > 25, f"{where}: {shape['class']} is {color}")
        need(plot["painted"] > 5, f"{where}: nothing of it is to be seen")
        colors = [one["color"] for one in plot["legend"]]
        need(len(set(colors)) == len(colors) == len(areas + lines), f"{where}: legend and series differ: {colors}")
        need(all(one["width"] > 5 and one["height"] > 1 for one in plot["legend"]), f"{where}: the legend has no colors")
        labels = plot["labels"]
        for kind in "xy":
            need(2 <= sum(label["kind"] == kind for label in labels) <= 7, f"{where}: labels of the axis {kind}: {labels}")
        for at, label in enumerate(labels):
            need(label["height"] >= 10 and label["width"] >= 5, f"{where}: {label} is too small")
            need(0 <= label["left"] and label["right"] <= size[0], f"{where}: {label} is cut off")
            need(all(apart(label, other) for other in labels[:at]), f"{where}: {label} is on another")
            need(apart(label, svg), f"{where}: {label} is in the plot")

    def a_run_that_ends_at_once(self):
        """A page without plots, of a program with a name that a browser could take for a tag."""
        page, told, _ = self.run("--", "/bin/sh", "-c", "exit 3", "<img src=x onerror=alert(1)>", "x" * 300)
        seen = self.browser.look(page, (400, 800))
        need(seen["wrong"] == [] and seen["others"] == 0 and seen["scripts"] == 2, f"it became a tag: {seen['wrong']}")
        need("Ended with status 3" in page and "before there was anything to plot" in page, "it does not say why there is no plot")
        need(seen["cost"] == told and len(told) == 1, f"{seen['cost']} {told}")
        need(seen["scrollWidth"] <= seen["clientWidth"], f"it is {seen['scrollWidth']} wide")

    def all(self):
        return [self.nothing_is_loaded, self.says_what_the_run_says, self.is_legible_on_every_screen, self.a_run_that_ends_at_once]


def shape_of(plot, name):
    return next(shape for shape in plot["shapes"] if name in shape["class"].split())


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ebb-report-") as scratch:
        try:
            cases = Cases(find_ebb(), Browser(scratch), scratch).all()
        except (Failure, OSError, subprocess.SubprocessError) as why:
            print(f"FAIL report: {why}")
            return 1
        for case in cases:
            try:
                case()
                print(f"ok   {case.__name__}", flush=True)
            except (Failure, OSError, subprocess.SubprocessError) as why:
                failed += 1
                print(f"FAIL {case.__name__}: {why}", flush=True)
    print(f"report: {len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
