# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""A person's command beside the Lease (`ports.Maintenance`): run here, or run by whoever started us.

No decision belongs here: what a lost Lease means is `core.people`'s, and the command is never ended by us.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import Any, Dict, Optional, Tuple

from ..ports import RegradeError

NOT_FOUND = 127  # what a shell gives for a command that is not there
NOT_TOLD = 255  # who ran the command is gone, and with it its exit code
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
THE_COMMANDS = (signal.SIGINT, signal.SIGQUIT)  # from the terminal it gets these itself


class Command:
    """A child with our terminal. While it runs, what asks us to end is its to answer: we wait, and let go."""

    def __init__(self) -> None:
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._before: Dict[signal.Signals, Any] = {}

    def start(self, words: Tuple[str, ...]) -> None:
        try:
            self._child = subprocess.Popen(words)
        except (OSError, ValueError) as error:
            raise RegradeError(
                f"{words[0]} cannot be run: {getattr(error, 'strerror', None) or error}"
            ) from None
        for number in THE_COMMANDS:
            self._before[number] = signal.signal(number, signal.SIG_IGN)
        for number in PASSED_ON:
            self._before[number] = signal.signal(number, self._pass_on)

    def ended(self, seconds: float) -> Optional[int]:
        if self._child is None:
            return NOT_FOUND
        try:
            code = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}
        return 128 - code if code < 0 else code

    def _pass_on(self, number: int, _frame: object) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


class Elsewhere:
    """The command runs outside, as on the host where we are in the service's container. It may run from our line
    `held` on stdout; its exit code comes on stdin, which also ends where the process at its other end is gone."""

    def __init__(self) -> None:
        self._told = b""

    def start(self, words: Tuple[str, ...]) -> None:
        sys.stdout.write("held\n")
        sys.stdout.flush()

    def ended(self, seconds: float) -> Optional[int]:
        ready, _w, _x = select.select([0], [], [], seconds)
        if not ready:
            return None
        more = os.read(0, 4096)
        self._told += more
        if more:
            return None
        return int(self._told) if self._told.strip().isdigit() else NOT_TOLD
