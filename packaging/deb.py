"""A Debian package. dpkg-deb, which every Debian has, is all it takes: cargo-deb would have to be compiled first, and to be told
the same."""
import gzip
import hashlib
import os
import time

import notices
from common import AGENT, COMMAND, DESCRIPTION, HEADER, MAINTAINER, PAGES, ROOT, SUMMARY, Content, tool

DOC = "usr/share/doc/ebb/"
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ebb

Files: *
Copyright: 2026 The Ebb developers
License: Apache-2.0 or Expat
Comment: THIRD-PARTY.txt has the licences of what is linked in.

License: Apache-2.0
 On Debian systems the text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.

License: Expat
"""


def copyright_text():
    """In Debian's form."""
    with open(os.path.join(ROOT, "LICENSE-MIT"), encoding="utf-8") as file:
        lines = file.read().strip().splitlines()
    return COPYRIGHT + "".join(f" {line.rstrip() or '.'}\n" for line in lines)


def depends(needed):
    wanted = [f"libc6 (>= {needed['libc.so.6']['GLIBC']})"]
    if "libgcc_s.so.1" in needed:
        wanted.append(f"libgcc-s1 (>= {needed['libgcc_s.so.1']['GCC']})")
    return ", ".join(wanted)


def build(release, scratch, into):
    content = Content(release, os.path.join(scratch, "deb"))
    version = content.version + "-1"
    content.binaries("usr/" + COMMAND, "usr/" + AGENT)
    content.for_shells("usr/", packed=True, zsh="share/zsh/vendor-completions/_ebb")
    content.copy(HEADER, "usr/" + HEADER)
    content.pages(DOC, [page for page in PAGES if page != "CHANGELOG.md"])
    content.write(DOC + "copyright", copyright_text())
    content.write(DOC + notices.NAME, notices.text())
    when = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(content.epoch))
    of_package = f"ebb ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {when}\n"
    with open(os.path.join(ROOT, "CHANGELOG.md"), "rb") as file:
        content.write(DOC + "changelog.gz", gzip.compress(file.read(), 9, mtime=0))
    content.write(DOC + "changelog.Debian.gz", gzip.compress(of_package.encode(), 9, mtime=0))

    sums, kib = "", 0
    for name in content.files():
        with open(content.path(name), "rb") as file:
            data = file.read()
        sums += f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {name}\n"
        kib += -(-len(data) // 1024)
    description = "\n".join(" " + line for line in DESCRIPTION.splitlines())
    control = {
        "Package": "ebb", "Version": version, "Architecture": "amd64", "Maintainer": MAINTAINER,
        "Installed-Size": kib, "Depends": depends(content.needs), "Section": "utils", "Priority": "optional",
        "Description": f"{SUMMARY}\n{description}",
    }
    content.write("DEBIAN/control", "".join(f"{field}: {value}\n" for field, value in control.items()))
    content.write("DEBIAN/md5sums", sums)
    content.settle()

    package = os.path.join(into, f"ebb_{version}_amd64.deb")
    # Blocks of xz depend on the number of threads.
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(content.epoch), "DPKG_DEB_THREADS_MAX": "1"}
    tool("dpkg-deb", "-Zxz", "--root-owner-group", "--build", content.root, package, env=env)
    return package
