"""Tiny pod images without a registry: busybox in a docker archive, for containerd's import.

One image under two names: the sandbox image of containerd, and one for test pods. It sleeps and ends at once
on SIGTERM.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence

NAMES = ("local/pause:1", "local/sleeper:1")
_ENTRYPOINT = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"]
_APPLETS = ("sh", "sleep", "cat", "echo", "ls", "true", "wget", "touch", "ps")


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _layer(busybox: bytes) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        folder = tarfile.TarInfo("bin")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        _add(archive, "bin/busybox", busybox, 0o755)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return data.getvalue()


def archive(busybox: bytes, names: Sequence[str] = NAMES) -> bytes:
    """The archive of an image with these names, made of a static busybox program."""
    layer = _layer(busybox)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": _ENTRYPOINT, "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
            "history": [{"created_by": "tests/bed/image/podimage.py"}],
        }
    ).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": list(names), "Layers": ["layer.tar"]}]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as whole:
        _add(whole, config_name, config)
        _add(whole, "layer.tar", layer)
        _add(whole, "manifest.json", json.dumps(manifest).encode())
    return data.getvalue()
