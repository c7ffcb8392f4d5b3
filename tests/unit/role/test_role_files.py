# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's files against each other and against the core's settings; what they do is the scenarios'."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import priority
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import (
    KEYS,
    STEP_PEAK_BYTES,
    load,
)
from ansible_collections.exadev.k3s_regrade.tests.bench.limits import RSS_KIB
from jinja2 import Environment, StrictUndefined

ROLE = Path(__file__).resolve().parents[3] / "roles" / "github_runner_cluster"


def text(*names: str) -> str:
    return ROLE.joinpath(*names).read_text(encoding="utf-8")


DEFAULTS: dict[str, Any] = yaml.safe_load(text("defaults", "main.yml"))
OPTIONS: dict[str, Any] = yaml.safe_load(text("meta", "argument_specs.yml"))["argument_specs"]["main"]["options"]
GIVEN = {
    **DEFAULTS,
    "github_runner_cluster_node_name": "pi-a",
    "__github_runner_cluster_peers": ["https://10.0.0.2:6443"],
    "__github_runner_cluster_lease": "k3s-regrade",
    "__github_runner_cluster_state_dir": "/var/lib/regrade",
    "__github_runner_cluster_regrade_container": "k3s-regrade",
    "__github_runner_cluster_image": "image",
    "__github_runner_cluster_library": "library",
    "__github_runner_cluster_may_protect": True,
}


def rendered(name: str, **changes: object) -> str:
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["dirname"] = lambda path: path.rpartition("/")[0]
    environment.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None
    return environment.from_string(text("templates", name)).render({**GIVEN, **changes})


def test_defaults_specs_and_readme_name_the_same_variables() -> None:
    assert set(OPTIONS) == set(DEFAULTS)
    for name, option in OPTIONS.items():
        if "{{" not in str(DEFAULTS[name]):
            assert option["default"] == DEFAULTS[name], name
    assert re.findall(r"^\| `(github_runner_cluster\w+)` \|", text("README.md"), re.M) == list(OPTIONS)


def test_the_settings_are_ones_the_core_takes_and_agree_at_the_defaults() -> None:
    settings = load(rendered("settings.env.j2"), {})
    assert (settings.step_up, settings.drain_remaining, settings.drain_pods_without_owner) == (
        "automatic",
        "end",
        "refuse",
    )


def test_what_a_refused_drain_tells_to_set_can_be_set_by_the_role() -> None:
    settings = load(
        rendered(
            "settings.env.j2",
            github_runner_cluster_regrade_drain_remaining="refuse",
            github_runner_cluster_regrade_drain_pods_without_owner="end",
        ),
        {},
    )
    assert (settings.drain_remaining, settings.drain_pods_without_owner) == ("refuse", "end")
    assert {"DRAIN_REMAINING", "DRAIN_PODS_WITHOUT_OWNER"} <= set(KEYS)


def test_the_services_health_is_what_the_command_says() -> None:
    service = yaml.safe_load(rendered("compose.yaml.j2"))["services"]["regrade"]
    assert service["healthcheck"]["test"] == ["CMD", "python3", "-S", "-m", "regrade.cli", "health"]
    # Docker before 25 refuses the whole service for it
    assert "start_interval" not in service["healthcheck"]


def test_the_service_is_protected_where_the_host_allows_it_and_starts_where_not() -> None:
    service = yaml.safe_load(rendered("compose.yaml.j2"))["services"]["regrade"]
    assert service["oom_score_adj"] == priority.LAST_TO_GO
    assert (service["cap_drop"], service["cap_add"]) == (["ALL"], ["IPC_LOCK"])
    assert service["cpu_shares"] > 1024, "Docker's own default"
    forbidden = rendered("compose.yaml.j2", __github_runner_cluster_may_protect=False)
    assert "oom_score_adj" not in yaml.safe_load(forbidden)["services"]["regrade"]


def test_the_services_memory_limit_covers_the_watcher_and_two_steps() -> None:
    service = yaml.safe_load(rendered("compose.yaml.j2"))["services"]["regrade"]
    limit = int(service["mem_limit"].removesuffix("m")) << 20
    assert limit >= 2 * (RSS_KIB << 10) + 2 * STEP_PEAK_BYTES
    assert service["pids_limit"] >= 64


def test_one_base_image_is_named_everywhere() -> None:
    base = DEFAULTS["github_runner_cluster_regrade_image_base"]
    assert f"ARG BASE={base}\n" in text("files", "Dockerfile")
