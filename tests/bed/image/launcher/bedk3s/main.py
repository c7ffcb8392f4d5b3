"""The commands of the program `k3s`: server, kubectl, crictl, ctr, --version."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = Path("/bed/lib")
USAGE = "k3s (a stand-in for tests): one of server, kubectl, crictl, ctr, --version was expected"


def _replace(program: str, arguments: Sequence[str], **environment: str) -> int:
    """Become another program."""
    try:
        os.execve(program, [Path(program).name, *arguments], {**environment, **os.environ})
    except OSError as error:
        print(f"k3s: {program}: {error.strerror}", file=sys.stderr)
        return 1


def _server(arguments: Sequence[str]) -> int:
    from . import config, flags, log, settings
    from .server import Server

    try:
        values = config.merge(arguments, os.environ)
        made = settings.from_values(values, os.environ, socket.gethostname())
    except flags.FlagError as error:
        log.fatal(str(error))
        return 1
    return Server(made).run()


def main(called: Sequence[str]) -> int:
    """Do what the program was called for, by its name or its first argument, as k3s does."""
    name, arguments = Path(called[0]).name, list(called[1:])
    if name not in {"kubectl", "crictl", "ctr"}:
        if not arguments:
            print(USAGE, file=sys.stderr)
            return 1
        name = arguments.pop(0)
    socket_path = "/run/k3s/containerd/containerd.sock"
    if name == "kubectl":
        return _replace(str(PROGRAMS / "kubectl"), arguments)
    if name == "ctr":
        return _replace(
            "/usr/bin/ctr", arguments, CONTAINERD_ADDRESS=socket_path, CONTAINERD_NAMESPACE="k8s.io"
        )
    if name == "crictl":
        print("crictl: not part of this stand-in; ctr reaches the same containers", file=sys.stderr)
        return 1
    if name == "server":
        return _server(arguments)
    if name in {"--version", "-v"}:
        print((PROGRAMS / "version").read_text().strip().join(["k3s version ", " (stand-in)"]))
        return 0
    print(f'No help topic for "{name}". {USAGE}', file=sys.stderr)
    return 3
