#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gathers what the role judges before it turns regrading on. Reading is module_utils', judging the filters'."""

from __future__ import annotations

DOCUMENTATION = r"""
module: regrade_placement_info
short_description: Read what turning regrading on rests on
version_added: 0.1.0
author: The exadev.k3s_regrade contributors (@exadev)
description:
  - Looks at the k3s server of this host, at what runs it, and at the other servers' APIs as the service would call
    them. Changes nothing, and lets nothing through that may hold a secret, such as a container's arguments.
  - Meant for the role C(github_runner_cluster), which gives its answer to the filters
    P(exadev.k3s_regrade.placement_refusals#filter) and P(exadev.k3s_regrade.placement_warnings#filter).
extends_documentation_fragment:
  - exadev.k3s_regrade.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: N/A
    details: This module changes nothing.
  idempotent:
    support: full
  platform:
    support: full
    platforms: linux
options:
  container:
    description:
      - Name of the k3s container. Docker is looked at where it is given.
    type: str
  pid:
    description:
      - Where there is no container, a process of the k3s server, which tells its network and its cgroup. V(1) has the
        host's.
    type: int
    default: 1
  compose_folder:
    description:
      - Where there is no container, the folder that the role's own service of the runtime V(docker) would have.
    type: path
  docker_socket:
    description:
      - Socket of the Docker engine that the service is given. That engine is asked.
    type: path
    default: /var/run/docker.sock
  pressure_file:
    description:
      - File the pressure is read from.
    type: path
    default: /proc/pressure/memory
  meminfo_file:
    description:
      - File the memory is read from.
    type: path
    default: /proc/meminfo
  kube_server:
    description:
      - URLs of the other servers' APIs. Each is called once, without credentials.
    type: list
    elements: str
    default: []
  authority:
    description:
      - The cluster's certificate authorities, in PEM. They are no secret.
    type: str
    default: ""
  timeout:
    description:
      - Seconds each API may take to answer.
    type: int
    default: 5
requirements:
  - On the target, Python 3.9 or newer, and where O(container) is given the command C(docker); no further library.
seealso:
  - module: exadev.k3s_regrade.regrade_level_info
"""

EXAMPLES = r"""
- name: Look at this server
  exadev.k3s_regrade.regrade_placement_info:
    container: k3s
  become: true
  register: found

- name: Say whether k3s runs, and from which addresses
  ansible.builtin.debug:
    msg: "{{ found.server.role or 'no k3s' }} at {{ found.server.addresses | join(', ') }}"
"""

RETURN = r"""
server:
  description: What was found.
  type: dict
  returned: success
  contains:
    error:
      description: Why the container could not be looked at, or an empty text.
      type: str
      returned: when O(container) is given
    role:
      description: The k3s subcommand that runs, V(server) or V(agent), or an empty text.
      type: str
      returned: when O(container) is given
      sample: server
    running:
      description: Whether it runs.
      type: bool
      returned: when O(container) is given
    pressure:
      description: The text of the file the pressure is read from.
      type: str
      returned: always
    pressure_error:
      description: Why it could not be read, or an empty text.
      type: str
      returned: always
    memory_total:
      description: The host's memory in bytes, or 0 where it cannot be told.
      type: int
      returned: always
    addresses:
      description: The addresses of the network k3s runs in.
      type: list
      elements: str
      returned: always
      sample: [192.168.1.11]
    cgroup:
      description: The cgroup (version 2) k3s runs in, or an empty text.
      type: str
      returned: always
    memory_limits:
      description: The memory limits on that cgroup and those above it.
      type: list
      elements: dict
      returned: always
    units:
      description: The units of systemd with regrading in their names.
      type: list
      elements: str
      returned: always
      sample: [regrade.service]
    others:
      description: The containers of Compose services C(regrade), whoever made them. None where no Docker answers.
      type: list
      elements: dict
      returned: when O(container) is not given
    compose_folder:
      description: O(compose_folder) where it has a service, or an empty text.
      type: str
      returned: when O(container) is not given
    kube_server:
      description: What came of the call to each URL.
      type: list
      elements: dict
      returned: always
    docker:
      description: What Docker shows of the container, with all that may be secret left out.
      type: dict
      returned: when O(container) is given
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.exadev.k3s_regrade.plugins.module_utils import docker_facts, server_facts


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str"},
            "pid": {"type": "int", "default": 1},
            "compose_folder": {"type": "path"},
            "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "pressure_file": {"type": "path", "default": "/proc/pressure/memory"},
            "meminfo_file": {"type": "path", "default": "/proc/meminfo"},
            "kube_server": {"type": "list", "elements": "str", "default": []},
            "authority": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    given = module.params
    of_docker: Dict[str, Any] = {}
    pid = given["pid"]
    if given["container"] is not None:
        docker = docker_facts.look(given["container"], given["docker_socket"])
        of_docker = {**docker_facts.of_server(docker), "docker": docker}
        pid = docker["pid"]
    else:
        of_docker = {
            "others": docker_facts.services(given["docker_socket"]),
            "compose_folder": server_facts.compose_folder(given["compose_folder"] or ""),
        }
    module.exit_json(
        changed=False,
        server={
            **of_docker,
            **server_facts.of_process(pid),
            "units": server_facts.regrade_units(),
            **server_facts.pressure(given["pressure_file"]),
            "memory_total": server_facts.memory_total(server_facts.read_text(given["meminfo_file"])[0]),
            "kube_server": server_facts.reach(given["kube_server"], given["authority"], given["timeout"]),
        },
    )


if __name__ == "__main__":
    main()
