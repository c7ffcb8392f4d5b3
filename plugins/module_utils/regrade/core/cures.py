# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What a person can do about each reason that holds a step up: one table, for logs, Events and `status`.

The reasons are a closed list (a metric's label): the checks of the `gate`, and the `reason` of the errors.
What was found stands in the error's own text; here is only the cure, and how a setting is named to a person who is to
set it. Nothing is decided here.
"""

from __future__ import annotations

from typing import Dict

# What of the Ansible role sets each setting that a person is told to set: each run of the role writes settings.env
# anew, so what is changed there by hand does not last.
VARIABLES: Dict[str, str] = {
    "NODE_NAME": "github_runner_cluster_node_name",
    "KUBE_SERVER": "github_runner_cluster_regrade_kube_server",
    "STEP_UP": "github_runner_cluster_regrade_step_up",
    "CONTAINER": "github_runner_cluster_container_name",
    "DOCKER_HOST": "github_runner_cluster_regrade_docker_socket",
    "UNIT": "github_runner_cluster_regrade_unit",
    "DRAIN_REMAINING": "github_runner_cluster_regrade_drain_remaining",
    "DRAIN_PODS_WITHOUT_OWNER": "github_runner_cluster_regrade_drain_pods_without_owner",
    "ETCD_ONLY_HTTPS_PORT": "github_runner_cluster_regrade_etcd_only_https_port",
}


def setting(key: str, value: str = "") -> str:
    """A setting, or what to set it to, and beside it the role's variable."""
    if value:
        return f"{key}={value} (with the role {VARIABLES[key]}: {value})"
    return f"{key} (with the role {VARIABLES[key]})"


CURES: Dict[str, str] = {
    # the gate
    "members": "start or remove the member it names, so that etcd's members and the Nodes with the etcd role are "
    "the same servers (a server that is gone for good: delete its Node, which removes its member)",
    "quorum": "add servers: with fewer than three voters no one of them can be missed",
    "ready": "bring that server back: its k3s, its network, its memory",
    "voter": "look at that server's etcd (`k3s etcd-snapshot ls` and its log): it must be a voter again",
    "full": "wait until that server is back at full, or step it up; of two below full a person must step one up "
    "(`regrade step up --despite NODE`), and of one that is gone for good `regrade forget NODE` clears the marks",
    "intent": "wait until that server's step has ended; of a server that is gone for good `regrade abandon-step NODE` "
    "ends it",
    "serviced": "wait until that maintenance is over, or uncordon that Node",
    "fresh": "look at that server's kubelet: it renews its node lease every 10 s where it is well",
    "api": "look at that server's API and etcd, and at the network between it and this one",
    # the Lease
    "lease": "wait until the holder's step has ended; a holder that is gone loses it by itself after its duration "
    "unseen, and with a step open only by `regrade abandon-step NODE`",
    "lease-missing": "run the role: it makes the Lease",
    "lease-lost": "nothing, if it happens once: it is tried again; else look at the network to the servers that "
    f"{setting('KUBE_SERVER')} names, and who writes the Lease",
    # the API
    "cluster": f"look at the servers that {setting('KUBE_SERVER')} names and the network to them; a step needs one "
    "that answers",
    "permission": "run the role: it grants the rights; or give this server's account the one that is named",
    # a person's switches
    "hold": "`regrade release` ends the hold",
    "pause": "take the annotation github-runner.exadev.com/regrade-pause off the Node",
    "dry-run": "take the annotation github-runner.exadev.com/regrade-dry-run off the Node",
    # this server
    "open-step": "the watcher ends the open step; `regrade settle` does so at once, and says what holds it up",
    "marks": "the watcher makes the Node's marks agree; `regrade settle` does so at once, and says what holds it up",
    "abandoned": "nothing: a person ended this step; `regrade settle` says what became of this server",
    "level": "nothing: it is decided anew at the level the server is at",
    "level-unknown": "nothing while k3s boots; else look at its container or unit, and whether Docker answers",
    "host": "wait until the process that is named has ended; a hung one may be killed, the next ends its step",
    "despite": "name other servers of the cluster, dead ones, for a step up, and confirm it with --yes",
    "node": f"set {setting('NODE_NAME')} to the name of this server's Node",
    "identity": "do not restart this server; find out what removed its etcd member or its Node; once it is a voter "
    "again, under its new identity, remove identity.json and journal.json from STATE_DIR, and `regrade settle`",
    "two-steps": "look which step the Node shows and what k3s runs at; where nothing else steps this server, take the "
    "annotation github-runner.exadev.com/regrade-step off its Node, and the step of the journal ends",
    "platform": "set right what is named, on this host",
    "pods": "move the pods that are named, or allow the restart to end them: "
    f"{setting('DRAIN_PODS_WITHOUT_OWNER', 'end')}, {setting('DRAIN_REMAINING', 'end')}",
    "storage": "free space on STATE_DIR, or make it writable",
    "settings": "set right the setting that is named; with the role in its variables, as each run of it writes "
    "settings.env anew",
    "trap": f"step up, or set {setting('ETCD_ONLY_HTTPS_PORT')} to a free port and step down again",
    "process": "nothing, if it happens once: memory or processes are short on this host; else free some",
    "other": "do what the message says",
}


def cure(reason: str) -> str:
    """What to do about `reason`; a word that is no reason of ours counts as `other`."""
    return CURES.get(reason, CURES["other"])
