# SPDX-License-Identifier: GPL-3.0-or-later
"""A command beside the Lease: signals are its own, its end is ours, and it may run elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli, ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.maintenance import Command

LIBRARY = Path(cli.__file__).parent.parent


def until_it_ends(command: Command) -> int:
    while True:
        code = command.ended(0.05)
        if code is not None:
            return code


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 200", 200), ("kill -TERM $$", 143)])
def test_its_exit_code_as_a_shell_would_tell_it(script: str, code: int) -> None:
    command = Command()
    command.start(("sh", "-c", script))
    assert until_it_ends(command) == code


def test_a_command_that_is_not_there_or_not_to_be_run(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    for path, why in ((str(tmp_path / "none"), "No such file"), (str(plain), "Permission denied")):
        with pytest.raises(ports.RegradeError, match=why):
            Command().start((path,))


@pytest.mark.parametrize(
    ("number", "told"), [(signal.SIGTERM, "TERM"), (signal.SIGHUP, "HUP"), (signal.SIGINT, "")]
)
def test_a_signal_to_us_ends_the_command_at_most_and_never_us(
    tmp_path: Path, number: signal.Signals, told: str
) -> None:
    seen = tmp_path / "seen"
    before = signal.getsignal(number)
    command = Command()
    script = f"trap 'echo TERM >{seen}; exit 3' TERM; trap 'echo HUP >{seen}; exit 3' HUP; echo >{seen}.up; "
    command.start(("sh", "-c", script + "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done; exit 5"))
    while not Path(f"{seen}.up").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), number)
    assert until_it_ends(command) == (3 if told else 5)
    assert (seen.read_text().strip() if told else "") == told
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(("told", "code"), [("7\n", 7), ("", 255), ("what is this\n", 255)])
def test_elsewhere_it_is_held_until_our_stdin_ends(told: str, code: int) -> None:
    script = (
        "from regrade.adapters.maintenance import Elsewhere\n"
        "made = Elsewhere(); made.start(('x',))\n"
        "code = None\n"
        "while code is None: code = made.ended(0.05)\n"
        "print(code, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(LIBRARY)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "held\n"
        process.stdin.write(told)
        process.stdin.flush()
        time.sleep(0.2)
        assert process.poll() is None
        process.stdin.close()
        assert process.stdout.readline() == f"{code}\n"
        assert process.wait(10) == 0
