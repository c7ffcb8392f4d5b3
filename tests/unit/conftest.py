# SPDX-License-Identifier: GPL-3.0-or-later
"""How Hypothesis searches in the unit tests: the same examples in every run, no deadline, nothing kept on disk.

A run that fails on one machine fails on all of them. To look for new examples instead:
`pytest --hypothesis-profile=search tests/unit/properties`.
"""

from __future__ import annotations

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
