"""A Python wheel: the module `ebb` of python/ebb, and the command. The format is a zip archive with three small files, so the
standard library builds it, and nothing needs to be installed for that."""
import base64
import hashlib
import os
import time
import zipfile

import notices
from common import AGENT, HEADER, LICENCES, ROOT, Content

METADATA = """\
Metadata-Version: 2.1
Name: ebb-swap
Version: {version}
Summary: Run programs in less RAM than they want: a swap subsystem inside the process
License: MIT OR Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown
"""


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def build(release, scratch, into):
    content = Content(release, os.path.join(scratch, "wheel"))
    name = f"ebb_swap-{content.version}"
    info, data = f"{name}.dist-info/", f"{name}.data/"
    # What is below `scripts` goes to PREFIX/bin, and what is below `data` to PREFIX, where the command looks for the agent.
    content.binaries(f"{data}scripts/ebb", f"{data}data/{AGENT}")
    content.for_shells(f"{data}data/")
    for file in sorted(os.listdir(os.path.join(ROOT, "python/ebb"))):
        if file.endswith((".py", ".typed")):
            content.copy(f"python/ebb/{file}", f"ebb/{file}")
    content.copy(HEADER, f"ebb/{HEADER}")
    with open(os.path.join(ROOT, "python/README.md"), encoding="utf-8") as file:
        content.write(info + "METADATA", METADATA.format(version=content.version) + "\n" + file.read())
    for page in LICENCES:
        content.copy(page, f"{info}licenses/{page}")
    content.write(f"{info}licenses/{notices.NAME}", notices.text())
    # True of what is packed: the highest version of a symbol of glibc in it.
    major, minor = content.needs["libc.so.6"]["GLIBC"].split(".")
    tag = f"py3-none-manylinux_{major}_{minor}_x86_64"
    content.write(info + "WHEEL", f"Wheel-Version: 1.0\nGenerator: ebb\nRoot-Is-Purelib: false\nTag: {tag}\n")

    package = os.path.join(into, f"{name}-{tag}.whl")
    when = time.gmtime(content.epoch)[:6]
    record = ""
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        def add(file, packed, mode):
            entry = zipfile.ZipInfo(file, when)
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, packed)

        # The description of the package is at the end, where readers look first.
        for file in sorted(content.files(), key=lambda file: (file.startswith(info), file)):
            with open(content.path(file), "rb") as opened:
                packed = opened.read()
            record += f"{file},{digest(packed)},{len(packed)}\n"
            add(file, packed, os.stat(content.path(file)).st_mode & 0o777)
        add(info + "RECORD", record + info + "RECORD,,\n", 0o644)
    return package
