"""An RPM package, by rpmbuild. It finds by itself which libraries with which versions the two files need."""
import os
import re
import shutil

import notices
from common import AGENT, COMMAND, DESCRIPTION, HEADER, LICENCES, MAINTAINER, PAGES, SUMMARY, Content, Problem, tool

DOC = "usr/share/doc/ebb/"
LICENCE = "usr/share/licenses/ebb/"
SPEC = """\
# The files are built, and stripped as far as they may be.
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
# The agent is no library for others.
%global __provides_exclude_from ^/usr/lib/ebb/
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global source_date_epoch_from_changelog 0
%global _buildhost localhost
# The widest known, with one thread.
%global _binary_payload w6.xzdio

Name: ebb
Version: {version}
Release: 1
Summary: {summary}
License: MIT OR Apache-2.0
Packager: {maintainer}

%description
{description}

%install
cp -a "{root}/." "%{{buildroot}}/"

%files
{files}
"""


def build(release, scratch, into):
    # rpmbuild's own scripts remove and make directories without quoting their names.
    if not re.fullmatch(r"[\w/.+-]+", scratch):
        raise Problem(f"rpmbuild cannot work in {scratch}: set TMPDIR to a directory whose path has letters, digits and ._+- only")
    content = Content(release, os.path.join(scratch, "rpm"))
    content.binaries("usr/" + COMMAND, "usr/" + AGENT)
    content.for_shells("usr/", packed=True)
    content.copy(HEADER, "usr/" + HEADER)
    content.pages(DOC, PAGES)
    content.pages(LICENCE, LICENCES)
    content.write(LICENCE + notices.NAME, notices.text())
    content.settle()
    marks = {DOC: "%doc ", LICENCE: "%license "}
    places = {os.path.dirname(name) for name in content.files() if name.startswith(DOC)} | {DOC + "examples"}
    files = ["%dir /usr/lib/ebb", "%dir /usr/share/licenses/ebb", *(f"%dir /{place.rstrip('/')}" for place in sorted(places))]
    for name in content.files():
        mark = next((mark for prefix, mark in marks.items() if name.startswith(prefix)), "")
        mode = "755" if name == "usr/bin/ebb" else "644"
        files.append(f"%attr({mode}, root, root) {mark}/{name}")
    work = os.path.join(scratch, "rpmbuild")
    os.makedirs(work)
    spec = os.path.join(work, "ebb.spec")
    with open(spec, "w", encoding="utf-8") as file:
        file.write(SPEC.format(version=content.version, summary=SUMMARY[0].upper() + SUMMARY[1:], maintainer=MAINTAINER,
                               description=DESCRIPTION, root=content.root, files="\n".join(files)))
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(content.epoch)}
    tool("rpmbuild", "-bb", "--target", "x86_64-linux", "--define", f"_topdir {work}", "--define", f"_dbpath {work}/db", spec,
         env=env)
    name = f"ebb-{content.version}-1.x86_64.rpm"
    return shutil.copyfile(os.path.join(work, "RPMS/x86_64", name), os.path.join(into, name))
