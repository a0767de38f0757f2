#!/usr/bin/python3
"""`ebb advise`: what it runs is not disturbed, and what it says holds together. One line a case; the closing line counts.

EBB names the command (default: target/release/ebb of this repository, then `ebb` on the path).
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from cases import need, run_cases  # noqa: E402
from command import find_ebb  # noqa: E402

PYTHON = "/usr/bin/python3"
# 60 MiB, of which a fifth is used most of the time, and a fixed amount of work; or, if so told, until standard input ends.
PROGRAM = """
import hashlib, random, select, sys
m = bytearray().join(hashlib.shake_128(str(i).encode()).digest(1 << 14) * 4 for i in range(960))
print("grown", flush=True)
pages, chance, total = len(m) >> 12, random.Random(7), 0
def work(rounds):
    global total
    for i in range(rounds):
        at = chance.randrange(pages if i % 40 == 0 else pages // 5) << 12
        total += m[at]
        m[at + 9] = i & 255
if sys.argv[1:] == ["wait"]:
    while not select.select([sys.stdin], [], [], 0)[0]:
        work(2000)
else:
    work(2100000)
    print(total, hashlib.sha256(m).hexdigest())
sys.exit(7)
"""
# Grows all at once when the budget is as small as it gets, again and again, by what does not compress.
BURSTS = """
import hashlib, random, sys, time
few = random.Random(1).randbytes(8 << 20)
for i in range(2):
    time.sleep(float(sys.argv[1]))
    many = random.Random(i).randbytes(40 << 20)
    print(hashlib.sha256(few + many).hexdigest(), flush=True)
    del many
"""
# Leaves a daemon behind after a time in which it wanted nothing, and the daemon wants much that does not compress.
DAEMON = """
import os, random, sys, time
time.sleep(1)
if os.fork() == 0:
    os.setsid()
    for number in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    while os.getppid() != 1 and os.path.exists(f"/proc/{sys.argv[2]}"):
        time.sleep(0.05)
    many = random.Random(5).randbytes(64 << 20)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(len(many)))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
LIMIT_S = 60
# The status of `ebb advise` if the program ended with 0 and there is no forecast.
NO_FORECAST = 124
NAME = "advise-test"


def check(advice):
    """Whether what is said holds together."""
    forecasts, wanted = advice["forecasts"], advice["wanted_bytes"]
    need(len(forecasts) == 10, f"there are {len(forecasts)} forecasts")
    ram = [one["ram_bytes"] for one in forecasts]
    need(ram == sorted(ram, reverse=True) and ram[0] == wanted, f"these are no tenths of {wanted}: {ram}")
    need(forecasts[0]["outcome"] == "measured" and forecasts[0]["times"] == 1.0, f"all of it is {forecasts[0]}")
    times = [one["times"] for one in forecasts if one["outcome"] == "measured"]
    need(times == sorted(times) and times[0] >= 1.0, f"more RAM takes longer: {times}")
    outcomes = [one["outcome"] for one in forecasts]
    need(set(outcomes) <= {"measured", "more", "unknown", "too small"}, f"{outcomes}")
    for one in forecasts:
        held = one["resident_bytes"] + one["pool_bytes"]
        need(one["outcome"] == "too small" or held <= one["ram_bytes"], f"it holds more than its budget: {one}")
        need((one["times"] is None) == (one["outcome"] in ("unknown", "too small")), f"{one}")
    knee = advice["knee"]
    need(knee is None or wanted / 100 - 4096 <= knee["ram_bytes"] <= wanted and knee["times"] >= 1.0, f"the knee is {knee}")


class Cases:
    """Each method is a case, whose docstring says what holds."""

    def __init__(self, ebb, scratch):
        self.ebb, self.scratch = ebb, scratch

    def advise(self, *arguments):
        return subprocess.run([self.ebb, "advise", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def a_program_runs_as_ever_and_gets_advice(self):
        """Exit status and output are the program's, byte for byte; the advice says something for each budget."""
        path = os.path.join(self.scratch, "advice.json")
        alone = subprocess.run([PYTHON, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        told = self.advise("--goal", "1.5x", "--json", path, "--", PYTHON, "-c", PROGRAM)
        need((told.returncode, told.stdout) == (7, alone.stdout), f"{told.returncode} {told.stdout} {told.stderr}")
        with open(path, encoding="utf-8") as file:
            advice = json.load(file)
        check(advice)
        need(advice["lack"] is None, f"{advice['lack']}")
        need(advice["wanted_bytes"] > 60 << 20, f"{advice['wanted_bytes']} bytes are wanted")
        need(advice["goal"] == 1.5 and 0 < advice["stalled"] < 1, f"{advice['goal']} {advice['stalled']}")
        low, high = advice["resident_bytes"]
        need(low < high, f"the budget stayed: {low} to {high}")
        smallest = advice["smallest"]
        need(smallest is None or smallest["times"] <= 1.5 and smallest["ram_bytes"] <= advice["wanted_bytes"] * 1.2, f"{smallest}")
        lines = told.stderr.splitlines()
        begin = next(i for i, line in enumerate(lines) if line.split()[:4] == ["--ram", "OF", "WANTED", "TIME"])
        percents = [line.split()[1] for line in lines[begin + 1:begin + 11]]
        need(percents == [f"{n}%" for n in range(100, 0, -10)], f"{percents}")
        for word, is_there in (("Knee: ", True), ("Goal: ", True), ("no advice", False)):
            need((word in told.stderr) == is_there, f"{word}: {told.stderr}")

    def a_running_tree_keeps_its_budget(self):
        """`ebb advise NAME` looks for as long as it should, and changes nothing."""
        command = [self.ebb, "run", "-q", "--ram", "30M", "--name", NAME, "--", PYTHON, "-c", PROGRAM, "wait"]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        path = os.path.join(self.scratch, "watched.json")
        try:
            need(program.stdout.readline() == "grown\n", "the program did not grow")
            told = self.advise(NAME, "--for", "1s", "--json", path)
            need((told.returncode, told.stderr) == (0, ""), f"{told.returncode} {told.stderr}")
            need(told.stdout.startswith(f"{NAME}: wanted up to ") and "Knee: " in told.stdout, told.stdout)
            with open(path, encoding="utf-8") as file:
                advice = json.load(file)
            check(advice)
            need(advice["watched_ns"] > 0, f"it watched for {advice['watched_ns']} ns")
            shown = subprocess.run([self.ebb, "ps", "--json", NAME], capture_output=True, timeout=LIMIT_S, check=True)
            need(json.loads(shown.stdout)[0]["budget_bytes"] == 30 << 20, "the budget has changed")
            program.communicate(timeout=LIMIT_S)
            need(program.returncode == 7, f"the program ended with {program.returncode}")
        finally:
            program.kill()
            program.wait()

    def nothing_ends_for_want_of_memory(self):
        """Without a device, and with content that does not compress, a budget that went down comes up in time."""
        alone = subprocess.run([PYTHON, "-c", BURSTS, "0"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        told = self.advise("--swap", "none", "--", PYTHON, "-c", BURSTS, "1.3")
        # Most of the time it wants hardly more than the smallest budget, so there may be nothing to forecast from.
        need(told.returncode in (0, NO_FORECAST) and told.stdout == alone.stdout, f"{told.returncode} {told.stdout} {told.stderr}")

    def what_lives_on_has_the_budget_that_was_given(self):
        """A daemon that the program leaves behind does not have the small budget of the last moment."""
        path = os.path.join(self.scratch, "daemon")
        script = f"import os, sys; sys.argv[2:] = [str(os.getppid())]\n{DAEMON}"
        told = self.advise("-q", "--ram", "200M", "--swap", "none", "--", PYTHON, "-c", script, path)
        need(told.returncode == NO_FORECAST, f"{told.returncode} {told.stderr}")
        began = time.monotonic()
        while not os.path.exists(path):
            need(time.monotonic() - began < LIMIT_S, "the daemon has ended, or waits for memory")
            time.sleep(0.05)

    def what_ends_at_once_gets_no_advice(self):
        """Nothing is made up of nothing."""
        path = os.path.join(self.scratch, "none.json")
        told = self.advise("-q", "--json", path, "--", "/bin/true")
        with open(path, encoding="utf-8") as file:
            advice = json.load(file)
        need(told.returncode == NO_FORECAST and told.stdout == "" and "true: no advice: " in told.stderr, f"{told}")
        need(advice["knee"] is None and advice["wanted_bytes"] == 0 and advice["lack"] == "unmanaged", f"{advice}")

    def what_was_hardly_seen_gets_no_advice(self):
        """Too short or too small: in words with what to do, in JSON, and by the exit status unless the program has one of its own."""
        path = os.path.join(self.scratch, "hardly.json")
        large, small = "m = bytearray(b'1') * (60 << 20)", "import time; m = [bytes([i % 255]) * 4000 for i in range(1500)]; time.sleep(1.2)"
        for script, status, lack, remedy in ((large, NO_FORECAST, "too short", "longer input"), (large + "; exit(7)", 7, "too short", "longer input"),
                                             (small, NO_FORECAST, "too small", "larger input")):
            told = self.advise("-q", "--goal", "1.2x", "--json", path, "--", PYTHON, "-c", script)
            with open(path, encoding="utf-8") as file:
                advice = json.load(file)
            need((told.returncode, advice["lack"]) == (status, lack), f"{told} {advice}")
            need(advice["wanted_bytes"] > 0, f"{advice}")
            need((advice["forecasts"], advice["knee"], advice["smallest"]) == ([], None, None), f"{advice}")
            need(f"{lack} to forecast from" in told.stderr and remedy in told.stderr and "--ram" not in told.stderr, told.stderr)

    def signals_reach_the_program(self):
        """SIGTERM goes to the program, which ends as it likes; the advice comes all the same."""
        for script, status in (("import signal; signal.signal(15, lambda *_: exit(9))", 9), ("import signal", -signal.SIGTERM)):
            script += "\nprint(1, flush=True)\nwhile True: signal.pause()"
            command = [self.ebb, "advise", "-q", "--", PYTHON, "-c", script]
            program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                need(program.stdout.readline() == "1\n", "it did not begin")
                program.send_signal(signal.SIGTERM)
                said = program.communicate(timeout=LIMIT_S)[1]
                need(program.returncode == status and ("advice" in said or "--ram" in said), f"{program.returncode} {said}")
            finally:
                program.kill()
                program.wait()

    def a_blocked_sigsegv_stays_so_and_ends_nothing(self):
        """What `ebb` measures with that signal leaves no trace in the program."""
        script = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGSEGV))"
        block = f"import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGSEGV]); {{}}\n{script}"
        alone = subprocess.run([PYTHON, "-c", block.format("")], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        command = [PYTHON, "-c", block.format("os.execv(sys.argv[1], sys.argv[1:])"), self.ebb, "advise", "-q", "--", PYTHON, "-c", script]
        told = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        need((told.returncode, told.stdout) == (NO_FORECAST, alone.stdout), f"{told} {alone.stdout}")

    def mistakes_are_one_line(self):
        """What cannot be done is said in one line, before anything runs, with status 125."""
        for arguments, words in ((["no-such-tree"], "no running tree"), (["--goal", "0.5x", "--", "true"], "--goal 0.5x"),
                                 (["--json", "/nowhere/x", "--", "true"], "No such file"), (["--for", "5", "x"], "--for 5")):
            told = self.advise(*arguments)
            need(told.returncode == 125 and told.stderr.count("\n") == 1 and words in told.stderr,
                 f"{arguments}: {told.returncode} {told.stderr}")

    def all(self):
        return [self.a_program_runs_as_ever_and_gets_advice, self.a_running_tree_keeps_its_budget,
                self.nothing_ends_for_want_of_memory, self.what_lives_on_has_the_budget_that_was_given,
                self.what_ends_at_once_gets_no_advice, self.what_was_hardly_seen_gets_no_advice, self.signals_reach_the_program,
                self.a_blocked_sigsegv_stays_so_and_ends_nothing, self.mistakes_are_one_line]


def main():
    with tempfile.TemporaryDirectory(prefix="ebb-advise-") as scratch:
        cases = Cases(find_ebb(), scratch).all()
        return run_cases("advise", {case.__name__: case for case in cases})


if __name__ == "__main__":
    sys.exit(main())
