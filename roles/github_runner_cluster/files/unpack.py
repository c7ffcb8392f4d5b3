# SPDX-License-Identifier: GPL-3.0-or-later
"""Unpacks and compiles the core: whole under the given name, or not at all.

Run by the role as `python3 -c` by the Python that will run it (in the service's image, for Docker), with the role's
folder, the path at which the service will see the library (so that a traceback names it), and the library's name.
"""

from __future__ import annotations

import compileall
import pathlib
import shutil
import sys
import zipfile

folder, seen_at, name = sys.argv[1:]
libraries = pathlib.Path(folder, "lib")
unfinished = libraries / "unfinished"
shutil.rmtree(unfinished, ignore_errors=True)
zipfile.ZipFile(pathlib.Path(folder, "core.zip")).extractall(unfinished)
if not compileall.compile_dir(unfinished, ddir=seen_at, quiet=1):
    raise SystemExit("The core does not compile with this Python. Use Python 3.11 or newer.")
unfinished.rename(libraries / name)
