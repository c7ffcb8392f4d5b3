# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of refusals against what the role's tasks themselves say. What filters say is held to it beside them.

What has to happen for it is the scenarios': here the tasks' own templates are filled in.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

import pytest
import yaml
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.test_placement_refusals import page
from ansible_collections.exadev.k3s_regrade.tests.unit.role.test_role_files import text
from jinja2 import Environment, StrictUndefined

NAMES = yaml.safe_load(text("vars", "main.yml"))
GIVEN = {
    **{name: value for name, value in NAMES.items() if "{{" not in str(value)},
    "inventory_hostname": "pi-a",
    "github_runner_cluster_node_name": "pi-a",
    "github_runner_cluster_regrade_wait_for_step_seconds": 600,
}
ACCOUNT = "k3s-regrade/pi-a"

# Heading, case: the file of tasks, the task, what it finds.
CASES: Dict[Tuple[str, str], Tuple[str, str, Dict[str, Any]]] = {
    ("On the way to be turned on", "a Kubernetes without ValidatingAdmissionPolicy"): (
        "regrade_objects", "Refuse guards that this Kubernetes does not know", {},
    ),
    ("On the way to be turned on", "no token for the service"): (
        "regrade_service", "Say where there is none", {"account": ACCOUNT, "error": ""},
    ),
    ("On the way to be turned on", "a token that cannot be read"): (
        "regrade_service", "Say where there is none",
        {"account": ACCOUNT, "error": "Error from server (Forbidden): secrets \"pi-a-token\" is forbidden"},
    ),
    ("On the way to be turned on", "a step is still open"): (
        "regrade_wait_for_step", "Refuse to change the service under it", {},
    ),
    ("The Lease, while it is turned off", "another holds it"): (
        "regrade_lease_take", "Refuse where it is renewed",
        {"last": {"spec": {"holderIdentity": "pi-b/0123456789abcdef"}}},
    ),
    ("The Lease, while it is turned off", "another took it at the same moment"): (
        "regrade_lease_write", "Refuse what another wrote between",
        {"said": "Error from server (Conflict): the object has been modified"},
    ),
    ("The Lease, while it is turned off", "it cannot be written"): (
        "regrade_lease_write", "Refuse what another wrote between", {"said": "Error from server (Forbidden): not you"},
    ),
}  # fmt: skip


def tasks(found: List[Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
    for task in found:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks(task.get(part, []))


def said(file: str, name: str, found: Dict[str, Any]) -> str:
    (task,) = [each for each in tasks(yaml.safe_load(text("tasks", f"{file}.yml"))) if each["name"] == name]
    template = task["ansible.builtin.assert"]["fail_msg"]
    return Environment(undefined=StrictUndefined).from_string(template).render({**GIVEN, **found}).strip()


@pytest.mark.parametrize(("heading", "case"), CASES)
def test_the_page_tells_what_the_tasks_say(heading: str, case: str) -> None:
    line = said(*CASES[heading, case])
    assert page(heading).get(case) == [line], f"| {case} | {line} |"
    assert "\n" not in line


@pytest.mark.parametrize("heading", sorted({heading for heading, _case in CASES}))
def test_the_page_tells_of_no_other_case(heading: str) -> None:
    assert list(page(heading)) == [case for under, case in CASES if under == heading]
