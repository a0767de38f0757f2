"""What a test started, or what Ebb made for it, and is still there."""
import glob
import os


def marked(mark):
    """The living processes whose environment holds a mark, with their names."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if mark.encode() not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry}/stat") as file:
                    name, rest = file.read().rsplit(")", 1)
                if rest.split()[0] not in "ZX":
                    found[int(entry)] = name.split("(", 1)[1]
            except OSError:
                pass
    return found


def open_below(directory):
    """Links of all descriptors of all processes to files in a directory: {pid: [target]}."""
    found = {}
    for fd in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith(directory + "/"):
            found.setdefault(int(fd.split("/")[2]), []).append(target)
    return found


def sockets_of_ebb():
    """Files that Ebb makes for a moment; none should stay."""
    return {path for place in ("/dev/shm", "/tmp", "/var/tmp") for path in glob.glob(f"{place}/.ebb*")}
