#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Before each start of k3s: its configuration is made that of the recorded level, so that it comes up at its level after
# a crash, a rebuild, or a boot, which starts the system without its specialisations.
# It never fails: a k3s that starts at another level keeps its vote, and one that does not start loses it.

system=${REGRADE_SYSTEM:-/nix/var/nix/profiles/system}
record=${REGRADE_RECORD:-/var/lib/regrade-level/level}
folder=${REGRADE_DROP_INS:-/etc/rancher/k3s/config.yaml.d}

level=$(cat "$record" 2>/dev/null) || level=full
wanted=$system/specialisation/$level/etc/regrade/k3s.yaml
drop_in=$folder/90-regrade.yaml

case $level in
  etcd-only)
    # Under a name that k3s does not read, until it is whole.
    if ! { mkdir -p "$folder" && cp "$wanted" "$drop_in.new" && mv "$drop_in.new" "$drop_in"; }; then
      echo "regrade: $wanted could not be laid at $drop_in: k3s starts at the level of what lies there" >&2
    fi
    ;;
  *) rm -f "$drop_in" || echo "regrade: $drop_in could not be removed: k3s starts at its level" >&2 ;;
esac
exit 0
