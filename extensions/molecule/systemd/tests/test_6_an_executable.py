# SPDX-License-Identifier: GPL-3.0-or-later
"""With regrading off: somebody's own executable is tried beside a real k3s, through every level and back."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from ansible_collections.exadev.k3s_regrade.plugins.lookup.core_archive import pack
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli

import observer
from admin_api import AdminApi
from bed import Bed, Machine

CHECK = "PYTHONPATH=/srv/core.zip python3 -m regrade.cli check-actuator /srv/executable --json"
EXECUTABLE = """#!/bin/sh
drop_in=/etc/rancher/k3s/config.yaml.d/90-regrade.yaml
level() { cat /var/lib/an-executable 2>/dev/null || echo full; }
known() { case ${1-} in full | control-plane | etcd-only) ;; *) echo "no level: ${1-}" >&2; exit 2 ;; esac; }
case ${1-} in
  levels) printf 'full\\ncontrol-plane\\netcd-only\\n' ;;
  current_level) level ;;
  apply_level)
    known "${2-}"
    was=$(level)
    echo "$2" >/var/lib/an-executable
    case "$was $2" in
      "etcd-only etcd-only") ;;
      *" etcd-only")
        mkdir -p "${drop_in%/*}"
        {
          for part in apiserver controller-manager scheduler agent; do echo "disable-$part: true"; done
          echo "https-listen-port: $ETCD_ONLY_HTTPS_PORT"
        } >$drop_in
        systemctl restart k3s.service ;;
      "etcd-only "*)
        rm $drop_in
        systemctl restart k3s.service ;;
    esac ;;
  *) echo "no verb: ${1-}" >&2; exit 2 ;;
esac
"""


def test_it_passes_through_every_level_with_two_restarts_and_the_same_member(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi
) -> None:
    machine = machines[2]
    core = base64.b64encode(pack(Path(cli.__file__).parent)).decode()
    machine.sh("base64 -d >/srv/core.zip", input=core)
    machine.sh("cat >/srv/executable; chmod +x /srv/executable", input=EXECUTABLE)
    identity = observer.identity(bed, api)
    try:
        looked = json.loads(machine.sh(CHECK).stdout)
        assert looked["passed"] is True, looked
        before = machine.k3s_started()
        flipped = json.loads(machine.sh(f"{CHECK} --apply --yes", timeout=300).stdout)
        assert flipped["passed"] is True, flipped
        ways = [entry["check"] for entry in flipped["checks"] if " from " in entry["check"]]
        assert ways == [
            "apply_level control-plane from full", "apply_level etcd-only from control-plane",
            "apply_level control-plane from etcd-only", "apply_level full from control-plane",
        ]  # fmt: skip
        assert machine.k3s_started() != before
    finally:
        machine.sh("rm -f /srv/core.zip /srv/executable /var/lib/an-executable")
    bed.wait_ready(180)
    assert observer.identity(bed, api) == identity


def test_one_that_only_says_so_is_found_out(machines: tuple[Machine, ...]) -> None:
    machine = machines[2]
    core = base64.b64encode(pack(Path(cli.__file__).parent)).decode()
    machine.sh("base64 -d >/srv/core.zip", input=core)
    liar = EXECUTABLE.replace("systemctl restart k3s.service", ":")
    machine.sh("cat >/srv/executable; chmod +x /srv/executable", input=liar)
    try:
        done = machine.sh(f"BOOT_TIMEOUT_SECONDS=10 {CHECK} --apply --yes", check=False, timeout=300)
        failed = [entry for entry in json.loads(done.stdout)["checks"] if not entry["ok"]]
        assert done.returncode == 4
        assert failed[0]["check"] == "apply_level etcd-only from control-plane"
        assert (
            "the executable says etcd-only, but k3s on this host answers as one at full"
            in failed[0]["detail"]
        )
    finally:
        machine.sh("rm -f /srv/core.zip /srv/executable /var/lib/an-executable")
    assert "90-regrade" not in machine.sh("ls /etc/rancher/k3s/config.yaml.d", check=False).stdout
