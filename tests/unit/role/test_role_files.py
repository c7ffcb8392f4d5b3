# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's files against each other and against the core's settings; what they do is the scenarios'."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import priority
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import cures
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import (
    KEYS,
    STEP_PEAK_BYTES,
    load,
)
from ansible_collections.exadev.k3s_regrade.plugins.plugin_utils.placement_server import VARIABLES
from ansible_collections.exadev.k3s_regrade.tests.bench.limits import RSS_KIB
from jinja2 import Environment, StrictUndefined

ROLE = Path(__file__).resolve().parents[3] / "roles" / "github_runner_cluster"


def text(*names: str) -> str:
    return ROLE.joinpath(*names).read_text(encoding="utf-8")


DEFAULTS: dict[str, Any] = yaml.safe_load(text("defaults", "main.yml"))
OPTIONS: dict[str, Any] = yaml.safe_load(text("meta", "argument_specs.yml"))["argument_specs"]["main"][
    "options"
]
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


METRICS = {"github_runner_cluster_regrade_metrics_file": "/run/k3s-regrade/k3s_regrade.prom"}
SYSTEMD = {
    "github_runner_cluster_regrade_runtime": "systemd",
    "__github_runner_cluster_regrade_dir": "/opt/regrade",
    "__github_runner_cluster_environment": "environment",
    "__github_runner_cluster_drop_in_folder": "/etc/rancher/k3s/config.yaml.d",
}


def rendered(name: str, **changes: object) -> str:
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.globals["lookup"] = lambda kind, template: rendered(template, **changes)
    environment.filters["hash"] = lambda text, kind: hashlib.new(kind, text.encode()).hexdigest()
    environment.filters["quote"] = shlex.quote
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


def test_every_runtime_has_what_the_role_asks_of_one() -> None:
    runtimes = OPTIONS["github_runner_cluster_regrade_runtime"]["choices"]
    tasks = {path.name for path in (ROLE / "tasks").iterdir()}
    included = re.compile(r"include_tasks: (\w+_)\{\{[^}]*runtime[^}]*\}\}(_\w+\.yml)")
    asked = {found for name in tasks for found in included.findall(text("tasks", name))}
    assert ("heal_", "_log.yml") in asked and len(asked) >= 5
    assert {f"{before}{runtime}{after}" for before, after in asked for runtime in runtimes} <= tasks


def test_a_number_that_is_worked_out_is_compared_as_one() -> None:
    """Before ansible-core 2.19 what comes of a template is text, which no number can be compared with."""
    for path in (ROLE / "tasks").iterdir():
        for name in re.findall(r'retries: "\{\{ (\w+) \}\}"', text("tasks", path.name)):
            assert re.findall(rf"[<>=] {name}\b(?! \| int)", text("tasks", path.name)) == [], (path.name, name)


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


def test_the_variable_that_is_named_beside_a_setting_is_the_one_that_sets_it() -> None:
    assert set(cures.VARIABLES.values()) <= set(OPTIONS)
    where = text("templates", "settings.env.j2") + text("templates", "regrade.sh.j2")
    # What the template gives in its place is worked out from the variable.
    where = where.replace("__github_runner_cluster_peers", "github_runner_cluster_regrade_kube_server")
    assert "given = github_runner_cluster_regrade_kube_server" in text("vars", "main.yml")
    for key, variable in cures.VARIABLES.items():
        assert re.search(rf"^(export )?{key}={{{{ (\('unix://' ~ )?{variable}\b", where, re.M), key
    for key, (name, *more) in VARIABLES.items():
        if key in cures.VARIABLES:
            assert cures.VARIABLES[key] == f"github_runner_cluster_regrade_{name}" and not more


def test_the_services_health_is_what_the_command_says() -> None:
    service = yaml.safe_load(rendered("compose.yaml.j2"))["services"]["regrade"]
    assert service["healthcheck"]["test"] == ["CMD", "python3", "-S", "-m", "regrade.cli", "health"]
    # Docker before 25 refuses the whole service for it
    assert "start_interval" not in service["healthcheck"]


def test_the_service_is_on_the_network_that_the_other_servers_apis_were_tried_from() -> None:
    service = yaml.safe_load(rendered("compose.yaml.j2"))["services"]["regrade"]
    assert service["network_mode"] == "host"


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


def test_files_of_the_controller_are_shown_and_asked_for_by_their_absolute_path() -> None:
    """The plays ship: what they name relative is looked for in the installed collection."""
    name = "github_runner_cluster_regrade_image_file"
    (shown,) = re.findall(rf"`{name}:\s+(\S+)`", text("README.md"))
    assert shown.startswith("/")
    assert "by its absolute path" in OPTIONS[name]["description"]


def test_one_base_image_is_named_everywhere() -> None:
    base = DEFAULTS["github_runner_cluster_regrade_image_base"]
    assert f"ARG BASE={base}\n" in text("files", "Dockerfile")


def test_the_services_folder_of_metrics_is_mounted_to_be_written_where_there_is_one() -> None:
    without = yaml.safe_load(rendered("compose.yaml.j2"))["services"]["regrade"]
    service = yaml.safe_load(rendered("compose.yaml.j2", **METRICS))["services"]["regrade"]
    assert service["read_only"] is True
    assert [one for one in service["volumes"] if one not in without["volumes"]] == ["/run/k3s-regrade:/run/k3s-regrade"]
    assert load(rendered("settings.env.j2", **METRICS), {}).metrics_file == "/run/k3s-regrade/k3s_regrade.prom"
    assert load(rendered("settings.env.j2"), {}).metrics_file == ""


def test_a_file_of_metrics_that_the_core_refuses_is_told_with_the_roles_variable() -> None:
    assert VARIABLES["METRICS_FILE"] == ("metrics_file",)
    assert "github_runner_cluster_regrade_metrics_file" in OPTIONS


# --- the second runtime ---


def unit(**changes: object) -> dict[str, list[str]]:
    """The values of each key of the service's unit."""
    found: dict[str, list[str]] = {}
    for line in rendered("regrade.service.j2", **SYSTEMD, **changes).splitlines():
        key, sep, value = line.partition("=")
        if sep and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_the_units_settings_are_ones_the_core_takes() -> None:
    settings = load(rendered("settings.env.j2", **SYSTEMD), {})
    assert (settings.runtime, settings.unit) == ("systemd", "k3s.service")
    assert settings.kubeconfig == "/opt/regrade/kube/config"


def test_both_runtimes_give_the_watcher_the_same_room_and_rank() -> None:
    service = yaml.safe_load(rendered("compose.yaml.j2"))["services"]["regrade"]
    found = unit()
    assert found["MemoryMax"] == [service["mem_limit"].upper()]
    assert found["TasksMax"] == [str(service["pids_limit"])]
    assert found["OOMScoreAdjust"] == [str(service["oom_score_adj"])] == [str(priority.LAST_TO_GO)]
    assert found["TimeoutStopSec"] == [service["stop_grace_period"]]
    assert found["ExecStart"][0].endswith(" -S -m regrade.cli watch")


def test_the_unit_writes_where_k3s_reads_and_keeps_few_of_roots_rights() -> None:
    found = unit()
    assert found["ReadWritePaths"] == ["/etc/rancher/k3s /var/lib/regrade /run/lock"]
    assert found["CapabilityBoundingSet"] == ["CAP_IPC_LOCK CAP_KILL CAP_SYS_PTRACE"]
    assert (found["Restart"], found["KillMode"]) == (["always"], ["mixed"])


def test_the_unit_may_write_metrics_and_runs_where_their_folder_cannot_be_made() -> None:
    found = unit(**METRICS)
    assert found["ReadWritePaths"] == [*unit()["ReadWritePaths"], "-/run/k3s-regrade"]
    assert found["ExecStartPre"] == ["-+/bin/sh -c 'umask 022 && exec mkdir -p /run/k3s-regrade'"]
    assert "ExecStartPre" not in unit()


def test_the_units_text_changes_with_the_settings() -> None:
    assert rendered("regrade.service.j2", **SYSTEMD) != rendered(
        "regrade.service.j2", **SYSTEMD, github_runner_cluster_regrade_step_up="manual"
    )


def test_the_hosts_command_is_a_shell_script_that_hands_on_its_words(tmp_path: Path) -> None:
    place = tmp_path / "lib" / "environment" / "bin"
    place.mkdir(parents=True)
    (place / "python").write_text('#!/bin/sh\nprintf "%s|" "$REGRADE_SETTINGS" "$@"\n')
    (place / "python").chmod(0o755)
    script = tmp_path / "regrade"
    script.write_text(
        rendered("regrade_systemd.sh.j2", **{**SYSTEMD, "__github_runner_cluster_regrade_dir": str(tmp_path)})
    )
    done = subprocess.run(
        ["sh", script, "with-lease", "--", "a b"], capture_output=True, text=True, check=True
    )
    words = done.stdout.split("|")
    assert words[0] == f"{tmp_path}/settings.env"
    assert words[1:3] == ["-I", "-c"]
    assert words[4:-1] == ["with-lease", "--", "a b"]
    compile(words[3], "the command", "exec")
