"""Files under server/manifests, applied when they are there and again when they change.

k3s looks every 15 s (pkg/deploy); this looks more often so that tests need not wait. Each server with an API
server applies its own files, and all of them at each start.
"""

from __future__ import annotations

from pathlib import Path

from . import log
from .layout import PROGRAMS, Layout
from .processes import Processes


class Manifests:
    """The files of one server and what was applied of them."""

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self._folder = layout.manifests
        self._kubeconfig = layout.cred / "admin.kubeconfig"
        self._processes = processes
        self._applied: dict[Path, tuple[int, int]] = {}

    def changed(self) -> list[tuple[Path, tuple[int, int]]]:
        """The files to apply, with what tells their content: time and size. `x.yaml.skip` leaves x.yaml out."""
        found = []
        for path in sorted(self._folder.rglob("*")):
            if (
                path.suffix not in {".yaml", ".yml", ".json"}
                or path.name.startswith(".")
                or not path.is_file()
            ):
                continue
            stat = path.stat()
            mark = (stat.st_mtime_ns, stat.st_size)
            if self._applied.get(path) != mark and not path.with_name(path.name + ".skip").exists():
                found.append((path, mark))
        return found

    def apply(self) -> None:
        """Apply what changed; a file that fails is tried again at the next call."""
        for path, mark in self.changed():
            command: list[str | Path] = [
                PROGRAMS / "kubectl",
                "--kubeconfig",
                self._kubeconfig,
                "apply",
                "-f",
                path,
            ]
            if self._processes.run("kubectl apply", command) == 0:
                self._applied[path] = mark
                log.info(f"Applied manifest at {path}")
            else:
                log.error(f"Failed to process config: failed to apply manifest at {path}")
