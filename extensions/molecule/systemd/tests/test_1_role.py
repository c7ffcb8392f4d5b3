# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role put on every machine, how little of the host its unit may touch, and that no k3s was restarted."""

from __future__ import annotations

import json
import re

import testinfra

from bed import Machine
from scenario import before

PLACE = "/opt/regrade"
UNIT = "regrade.service"
MOST_EXPOSED = 3.0  # of 10, as `systemd-analyze security` of systemd 252 counts; "OK" ends at 4.9


def test_the_unit_runs_is_enabled_and_is_none_that_k3ss_scripts_stop(machine: Machine) -> None:
    service = testinfra.get_host(f"docker://{machine.host_container}").service(UNIT)
    assert service.is_running and service.is_enabled
    assert not UNIT.startswith("k3s")
    shown = machine.systemctl("show", "--property=NRestarts,NeedDaemonReload", UNIT).stdout.split()
    assert shown == ["NRestarts=0", "NeedDaemonReload=no"]


def test_the_kubeconfig_is_for_root_alone_and_the_settings_name_the_unit(machine: Machine) -> None:
    host = testinfra.get_host(f"docker://{machine.host_container}")
    kubeconfig = host.file(f"{PLACE}/kube/config")
    assert (kubeconfig.user, kubeconfig.mode, host.file(f"{PLACE}/kube").mode) == ("root", 0o600, 0o700)
    assert "client-certificate-data" not in kubeconfig.content_string
    settings = host.file(f"{PLACE}/settings.env").content_string
    assert {"RUNTIME=systemd", "UNIT=k3s"} <= set(settings.splitlines())
    assert "CONTAINER=" not in settings


def test_the_metrics_are_there_for_node_exporter(machine: Machine) -> None:
    written = testinfra.get_host(f"docker://{machine.host_container}").file("/run/k3s-regrade/k3s_regrade.prom")
    assert (written.user, written.mode) == ("root", 0o644)
    text = written.content_string
    assert f'k3s_regrade_info{{server="{machine.name}",runtime="systemd",step_up="automatic"}} 1\n' in text


def test_the_watchers_memory_is_locked_and_no_more_than_it_may_take(machine: Machine) -> None:
    pid = machine.systemctl("show", "--property=MainPID", "--value", UNIT).stdout.strip()
    lines = machine.sh(f"cat /proc/{pid}/status").stdout.splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmLck", "VmRSS"))}
    assert kib["VmLck"] > 0, kib
    assert kib["VmRSS"] <= 12 << 10, kib


def test_it_may_touch_little_of_the_host(machine: Machine) -> None:
    said = machine.sh(f"systemd-analyze security --no-pager {UNIT}", check=False).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found, said
    assert float(found.group(1)) <= MOST_EXPOSED, said
    shown = machine.systemctl("show", "--property=ReadWritePaths,CapabilityBoundingSet", UNIT).stdout
    kept = {
        key: set(value.split()) for key, _sep, value in (line.partition("=") for line in shown.splitlines())
    }
    assert kept == {
        "ReadWritePaths": {"/etc/rancher/k3s", "/var/lib/regrade", "/run/lock", "-/run/k3s-regrade"},
        "CapabilityBoundingSet": {"cap_kill", "cap_ipc_lock", "cap_sys_ptrace"},
    }


def test_the_command_names_the_levels_whatever_its_user_has_set(machine: Machine) -> None:
    said = machine.sh("cd /tmp && KUBECONFIG=/nowhere PYTHONPATH=/nowhere regrade levels --json")
    assert json.loads(said.stdout) == {"levels": ["full", "control-plane", "etcd-only"]}


def test_no_k3s_was_restarted_for_it(machine: Machine) -> None:
    # It was started before the role's files were there, and was the same when the pressure began.
    _invocation, started = before()["started"][machine.name].split()
    made = machine.sh(
        "python3 -c 'import os, time; "
        f'print(os.stat("{PLACE}/core.zip").st_mtime - time.time() + time.monotonic())\''
    )
    assert int(started) / 1e6 < float(made.stdout)
