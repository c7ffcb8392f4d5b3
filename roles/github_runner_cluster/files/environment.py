# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the service's virtual environment: whole under the given name, or not at all.

Run by the role as `python3 -c` with its folder on the host, the environment's name in `lib`, and a folder of
wheels ("" for the package index that the host's pip is set to).
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import venv

folder, name, wheels = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
unfinished = folder / "lib" / ("unfinished-" + name)
venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(unfinished)
command = [str(unfinished / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
command += ["--no-cache-dir", "--require-hashes", "--only-binary=:all:", f"--requirement={folder}/requirements.txt"]
if wheels:
    command += ["--no-index", f"--find-links={wheels}"]
done = subprocess.run(command, capture_output=True, text=True, check=False)
if done.returncode:
    shutil.rmtree(unfinished)
    said = (done.stderr or done.stdout).strip().splitlines()
    raise SystemExit(
        "The libraries could not be installed: "
        + (said[-1] if said else "pip said nothing")
        + ". Let the host reach its package index, or name a folder of wheels in github_runner_cluster_regrade_wheels."
    )
unfinished.rename(folder / "lib" / name)
