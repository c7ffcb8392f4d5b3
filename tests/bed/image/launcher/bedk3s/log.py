"""One way to write a line of the launcher to standard output, as k3s's own lines look."""

from __future__ import annotations

import datetime
import sys


def line(level: str, message: str) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = message.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    sys.stdout.write(f'time="{now}" level={level} msg="{text}"\n')
    sys.stdout.flush()


def info(message: str) -> None:
    line("info", message)


def warning(message: str) -> None:
    line("warning", message)


def error(message: str) -> None:
    line("error", message)


def fatal(message: str) -> None:
    line("fatal", message)
