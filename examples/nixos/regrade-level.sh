#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
#
# The levels of k3s on NixOS, by the contract of docs/actuators.md. Each level is a specialisation of the system, which
# is switched to in place; k3s is restarted, once, where the level goes to or from etcd-only.
#
# A specialisation that was switched to is not what the next boot starts, so the record is a file of our own.
# lay-drop-in.sh gives k3s the configuration of the recorded level before each of its starts, whichever system booted.
set -eu

system=${REGRADE_SYSTEM:-/nix/var/nix/profiles/system}
current=${REGRADE_CURRENT:-/run/current-system}
record=${REGRADE_RECORD:-/var/lib/regrade-level/level}
lock=${REGRADE_LEVEL_LOCK:-/run/lock/regrade-level.lock}
socket=${REGRADE_CONTAINERD:-/run/k3s/containerd/containerd.sock}
api_port=${REGRADE_API_PORT:-6443}
moved_port=${ETCD_ONLY_HTTPS_PORT:-16443}
unit=k3s.service

fail() { # STATUS WORDS...
  status=$1
  shift
  echo "regrade-level: $*" >&2
  exit "$status"
}

known() {
  case ${1-} in
    full | control-plane | etcd-only) ;;
    *) fail 2 "${1:-nothing} is no level; the levels are full, control-plane and etcd-only" ;;
  esac
}

recorded() {
  level=$(cat "$record" 2>/dev/null) || level=full
  echo "${level:-full}"
}

write_record() { # LEVEL; whole or not at all
  mkdir -p "${record%/*}" && echo "$1" >"$record.new" && sync "$record.new" && mv "$record.new" "$record" && sync "${record%/*}"
}

says() { # PORT: what k3s answers there, and the status
  curl --silent --insecure --max-time 2 --write-out ' %{http_code}' "https://127.0.0.1:$1/readyz" 2>/dev/null || :
}

running() { # etcd-only, or full for either level that runs an API server; nothing where k3s does not tell
  for port in "$api_port" "$moved_port"; do
    [ "$port" != 0 ] || continue
    case $(says "$port") in
      *" 401" | *" 200") echo full && return ;;
      *"apiserver disabled"*" 503") echo etcd-only && return ;;
    esac
  done
}

current_level() {
  level=$(running)
  [ -n "$level" ] || fail 5 "k3s tells no level on port $api_port or $moved_port: it boots, or is away"
  if [ "$level" = full ] && [ "$(recorded)" = control-plane ]; then
    level=control-plane
  fi
  echo "$level"
}

toplevel() { # LEVEL
  case $1 in
    full) echo "$system" ;;
    *) echo "$system/specialisation/$1" ;;
  esac
}

switch_to() { # LEVEL; services are switched, the bootloader is left alone
  target=$(toplevel "$1")
  [ "$(readlink -f "$current")" != "$(readlink -f "$target")" ] || return 0
  "$target/bin/switch-to-configuration" test >&2 9>&-
}

end_tree() { # PID: its children first, so that none is left to anybody
  # shellcheck disable=SC2013 # they are words
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    end_tree "$child"
  done
  kill -KILL "$1" 2>/dev/null || :
}

# k3s leaves its pods running when it stops (KillMode=process). At etcd-only nobody looks after them, and they hold the
# memory that the step is to free.
end_pods() {
  for process in /proc/[0-9]*; do
    case $(readlink "$process/exe" 2>/dev/null) in
      */containerd-shim*) ;;
      *) continue ;;
    esac
    case $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) in
      *"$socket"*) end_tree "${process#/proc/}" ;;
    esac
  done
}

apply_level() {
  known "$@"
  [ -x "$(toplevel "$1")/bin/switch-to-configuration" ] ||
    fail 3 "$(toplevel "$1") is no system to switch to: rebuild this one with the module, nothing was changed"
  exec 9>"$lock"
  flock -w "${REGRADE_LEVEL_WAIT:-20}" 9 || fail 3 "another call is still at work (lock $lock)"
  before=$(recorded)
  was=$(running)
  write_record "$1" || fail 3 "the record $record cannot be written, nothing was changed"
  if ! switch_to "$1"; then
    write_record "$before" || fail 4 "the switch to $1 failed, and the record could not be put back to $before"
    switch_to "$before" || :
    fail 3 "the switch to $1 failed: k3s was not restarted, and the record is $before again"
  fi
  case "$was $1" in
    "etcd-only etcd-only") ;;
    "etcd-only "* | *" etcd-only") restart "$1" ;;
    " "*) systemctl --quiet is-active "$unit" || restart "$1" ;; # it is stopped, or ends again and again
  esac
}

restart() { # LEVEL
  systemctl restart "$unit" 9>&- || fail 4 "systemctl restart $unit failed; journalctl -u $unit says why"
  [ "$1" != etcd-only ] || end_pods
}

case ${1-} in
  levels) printf 'full\ncontrol-plane\netcd-only\n' ;;
  current_level) current_level ;;
  apply_level)
    shift
    apply_level "$@"
    ;;
  *) fail 2 "${1:-nothing} is no verb; the verbs are levels, current_level and apply_level NAME" ;;
esac
