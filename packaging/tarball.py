"""A tarball that runs from wherever it is unpacked."""
import gzip
import os
import tarfile

import notices
from common import AGENT, COMMAND, HEADER, LICENCES, PAGES, Content


def build(release, scratch, into):
    content = Content(release, os.path.join(scratch, "tarball"))
    top = f"ebb-{content.version}-x86_64-linux"
    content.binaries(COMMAND, AGENT)
    content.for_shells("")
    content.copy(HEADER, HEADER)
    content.pages("", (*LICENCES, *PAGES))
    content.write(notices.NAME, notices.text())
    content.settle()

    def entry(info):
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = content.epoch
        return info

    package = os.path.join(into, top + ".tar.gz")
    # The name of the file and the time of packing would be in gzip's header.
    with open(package, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            # It sorts what is below.
            archive.add(content.root, top, filter=entry)
    return package
