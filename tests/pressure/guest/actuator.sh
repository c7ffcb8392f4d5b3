#!/bin/busybox sh
# The executable of RUNTIME=command in the small machine: the record is a file, the restart another (stand_in.py).
k3s=/run/k3s
case $1 in
  levels) printf 'full\ncontrol-plane\netcd-only\n' ;;
  current_level) /bin/busybox cat $k3s/record ;;
  apply_level)
    was=$(/bin/busybox cat $k3s/record)
    echo "$2" >$k3s/record
    case "$was $2" in
      "etcd-only etcd-only") ;;
      *etcd-only*)
        : >$k3s/restart
        while [ -e $k3s/restart ]; do /bin/busybox sleep 0.1; done
        ;;
    esac
    ;;
  *) echo "no verb: $1" >&2; exit 2 ;;
esac
