"""A service as they run in containers: it grows, locks itself into an empty directory and changes its user where it may, and forks
workers. Prints a digest of what parent and workers read."""
import hashlib
import os
import sys

PIECES, BYTES = 40, 1 << 20


def piece(number):
    """A megabyte that compresses to an eighth, so that all pieces fit into the budget. In its new root the service has no file."""
    words = hashlib.shake_128(str(number).encode()).digest(BYTES // 8)
    return bytearray(b"".join(words[at:at + 512] * 8 for at in range(0, len(words), 512)))


def digest(pieces):
    whole = hashlib.sha256()
    for each in pieces:
        whole.update(each)
    return whole.hexdigest()


def worker(pieces):
    """A child that reads everything, changes some of it, and reads it once more."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        first = digest(pieces)
        for at in range(0, PIECES, 3):
            pieces[at] = piece(at + 1000)
        os.write(write, f"{first} {digest(pieces)}".encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="ascii") as end:
        said = end.read()
    assert os.waitpid(pid, 0)[1] == 0, "the worker failed"
    return said


def main():
    pieces = [piece(number) for number in range(PIECES)]
    said = [digest(pieces), worker(pieces)]
    if "--drop" in sys.argv:
        os.chroot("/proc/self/fdinfo")
        os.chdir("/")
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        said += [worker(pieces), digest(pieces)]
    print("\n".join(said))


main()
