# SPDX-License-Identifier: GPL-3.0-or-later
"""What the unit tests run under: how Hypothesis searches, and which signals reach them.

Hypothesis makes the same examples in every run, with no deadline and nothing kept on disk: a run that fails on one
machine fails on all of them. To look for new examples instead:
`pytest --hypothesis-profile=search tests/unit/properties`.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,  # two cores are shared with tests that wait for threads and time-outs
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("fixed"), derandomize=False, max_examples=5000, print_blob=True
)
settings.load_profile("fixed")

# A shell cannot trap what was ignored when it began, and what `nohup` or a shell's `&` starts ignores these.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
