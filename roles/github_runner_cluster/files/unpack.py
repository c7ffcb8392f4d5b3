# SPDX-License-Identifier: GPL-3.0-or-later
"""Unpacks and compiles the core, inside the service's image: whole under the given name, or not at all.

Run by the role as `python3 -c`, with the role's folder of the host at /regrade.
"""

from __future__ import annotations

import compileall
import pathlib
import shutil
import sys
import zipfile

MOUNTED_AT = "/opt/regrade/lib"  # so that a traceback names the path the service sees

libraries = pathlib.Path("/regrade/lib")
unfinished = libraries / "unfinished"
shutil.rmtree(unfinished, ignore_errors=True)
zipfile.ZipFile("/regrade/core.zip").extractall(unfinished)
if not compileall.compile_dir(unfinished, ddir=MOUNTED_AT, quiet=1):
    raise SystemExit("The core does not compile with this image's Python. Use Python 3.11 or newer.")
unfinished.rename(libraries / sys.argv[1])
