"""The machine's settings: a test that is ended in its midst does not put back what it changed."""
import os

ROOTS = ("/proc/sys/fs", "/proc/sys/kernel", "/proc/sys/vm")
# These change by themselves, or do something when they are written.
NOT_SETTINGS = {"compact_memory", "drop_caches", "ns_last_pid", "stat_refresh", "tainted"}


def read_all():
    """{path: text} of what root can set."""
    found = {}
    for root in ROOTS:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name != "random"]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if name not in NOT_SETTINGS and os.stat(path).st_mode & 0o200:
                        with open(path, encoding="utf-8") as file:
                            found[path] = file.read()
                except (OSError, UnicodeDecodeError):
                    pass
    return found


def put_back(before):
    """Sets again what is otherwise than it was; the paths."""
    changed = []
    for path, text in read_all().items():
        if path in before and text != before[path]:
            try:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(before[path])
                changed.append(path)
            except OSError:
                pass
    return changed
