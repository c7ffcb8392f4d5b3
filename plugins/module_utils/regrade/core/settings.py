# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Settings: their names, defaults, forms, bounds and the relations between them, all checked at load.

Pure: texts in, values or one SettingsWrong out, which names what was found, why it cannot be, and what
to set. Reading files and the environment is `adapters.state_files` and `cli`. Light: the idle loop
imports it.

Forms: times are seconds (`5`, `2.5`), shares are `20%`, memory is `512MiB` (KiB, MiB, GiB) or `8%` of
MemTotal. The table `KEYS` below is the list a reader checks against the docs.
"""

from __future__ import annotations

from . import pairs
from .digits import whole
from .errors import SettingsWrong
from .levels import CONTROL_PLANE, ETCD_ONLY
from .light import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Tuple

RENEW_SECONDS = 15.0  # the Lease is renewed this often by a thread of its own
FRESH_SECONDS = 40.0  # a peer's node lease must be seen to change within this (kubelet renews every 10 s)
LATE_SECONDS = (
    120.0  # a write whose answer was lost lands within this: 60 s of the API server's and of a call's
)
RESTART_GRACE_SECONDS = 30.0  # a restart call gets this beyond the stop time-out given to the platform
GATE_AGE_SECONDS = 5.0  # the gate before a restart may be no older
# Resident memory of a step's own process: `make bench` measures 37 MiB, and 40 where the server runs 110 pods.
STEP_PEAK_BYTES = 48 << 20
RESERVED_PORTS = (2379, 2380, 2381, 2382, 6443, 6444, 10248, 10249, 10250, 10256, 10257, 10258, 10259)


class Amount(NamedTuple):
    """Memory: a share of MemTotal, or bytes; the other is None."""

    share: Optional[float]
    bytes: Optional[int]
    text: str

    def of(self, total: int) -> int:
        """In bytes, on a host with `total` bytes of memory."""
        return int(self.share * total) if self.share is not None else self.bytes or 0


class Settings(NamedTuple):
    """Every setting, checked. Times in seconds, shares from 0 to 1."""

    node_name: str
    kube_server: Tuple[str, ...]
    kubeconfig: str
    lease_name: str
    step_up: str
    runtime: str
    actuator_command: str
    container: str
    docker_host: str
    unit: str
    data_dir: str
    pressure_file: str
    meminfo_file: str
    state_dir: str
    lock_file: str
    metrics_file: str
    sample_seconds: float
    pressure_window_seconds: float
    pressure_threshold: float
    pressure_ceiling: float
    memavailable_floor: Amount
    headroom_etcd_only: Amount
    headroom_control_plane: Amount
    sustain_down_seconds: float
    sustain_up_seconds: float
    cooldown_down_seconds: float
    cooldown_up_seconds: float
    settle_seconds: float
    lease_seconds: float
    etcd_only_https_port: int
    call_timeout_seconds: float
    drain_timeout_seconds: float
    drain_remaining: str
    drain_pods_without_owner: str
    restart_timeout_seconds: float
    boot_timeout_seconds: float
    trap_wait_seconds: float

    def headroom(self, level: str) -> Optional[Amount]:
        """What going up from `level` is expected to cost; None at full."""
        return {ETCD_ONLY: self.headroom_etcd_only, CONTROL_PLANE: self.headroom_control_plane}.get(level)


def _text(key: str, value: str) -> str:
    if not value:
        raise SettingsWrong(f"{key} is empty, expected a value")
    return value


def _seconds(low: float, high: float) -> Callable[[str, str], float]:
    def parse(key: str, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise SettingsWrong(f"{key}={value} is not a number of seconds from {low:g} to {high:g}")
        return number

    return parse


def _share(low: float, high: float) -> Callable[[str, str], float]:
    def parse(key: str, value: str) -> float:
        try:
            number = float(value[:-1]) if value.endswith("%") else float("nan")
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise SettingsWrong(f"{key}={value} is not a share from {low:g}% to {high:g}%")
        return number / 100

    return parse


def _amount(key: str, value: str) -> Amount:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    number, unit = value[:-3].strip(), value[-3:]
    if value.endswith("%"):
        number, unit = value[:-1].strip(), "%"
    try:
        size = float(number)
    except ValueError:
        size = float("nan")
    if unit == "%" and 0 < size <= 100:
        return Amount(size / 100, None, value)
    if unit in units and 0 < size < 1 << 40:
        return Amount(None, int(size * units[unit]), value)
    raise SettingsWrong(f"{key}={value} is not an amount of memory above 0, such as 512MiB or 8%")


def _one_of(*words: str) -> Callable[[str, str], str]:
    def parse(key: str, value: str) -> str:
        if value not in words:
            raise SettingsWrong(f"{key}={value} is not one of {', '.join(words)}")
        return value

    return parse


def _absolute(what: str) -> Callable[[str, str], str]:
    def parse(key: str, value: str) -> str:
        if value and not value.startswith("/"):
            raise SettingsWrong(f"{key}={value} is not an absolute path of {what}")
        return value.rstrip("/")

    return parse


def _textfile(key: str, value: str) -> str:
    """Its folder is what the service may write to, so it is not the root."""
    if value and not (value.startswith("/") and value.endswith(".prom") and value.rpartition("/")[0].strip("/")):
        raise SettingsWrong(
            f"{key}={value} is not the absolute path of a file in a folder, with a name that ends in .prom: "
            "node_exporter reads no other"
        )
    return value


def _unit(key: str, value: str) -> str:
    """With its ending, which may be left out as for systemctl."""
    name = value if value.endswith(".service") else f"{value}.service"
    if name == ".service" or not all(
        letter.isascii() and (letter.isalnum() or letter in ":-_.@") for letter in name
    ):
        raise SettingsWrong(f"{key}={value} is not the name of a service unit, such as k3s or k3s.service")
    return name


def _port(key: str, value: str) -> int:
    number = whole(value)
    if number in RESERVED_PORTS:
        raise SettingsWrong(
            f"{key}={value} is a port k3s uses itself; choose another, or 0 to leave k3s's own"
        )
    if number is None or not (number == 0 or 1024 <= number <= 65535):
        raise SettingsWrong(f"{key}={value} is not 0 or a port from 1024 to 65535")
    return number


def _servers(key: str, value: str) -> Tuple[str, ...]:
    found = tuple(url.strip().rstrip("/") for url in value.split(",") if url.strip())
    for url in found:
        if not url.startswith("https://") or not _is_host(url[len("https://") :]):
            raise SettingsWrong(
                f"{key} names {url!r}, expected URLs such as https://10.0.0.12:6443, comma-separated"
            )
    return found


def _is_host(text: str) -> bool:
    """Whether it is a name or an address, with or without a port: what calls it does not look again."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        good = bool(bracket) and _is_ipv6(host)
    else:
        host, colon, rest = text.partition(":")
        rest = colon + rest
        good = bool(host) and host.isascii() and all(letter.isalnum() or letter in ".-" for letter in host)
    port = whole(rest[1:]) if rest.startswith(":") else None
    return good and (not rest or (port is not None and 0 < port < 65536))


def _is_ipv6(text: str) -> bool:
    """By hand: `ipaddress` would be loaded into the idle loop for this alone."""
    head, gap, tail = text.partition("::")
    groups = [group for part in (head, tail) if part for group in part.split(":")]
    hexadecimal = all(0 < len(group) < 5 and not group.lower().strip("0123456789abcdef") for group in groups)
    return hexadecimal and (len(groups) < 8 if gap else len(groups) == 8)


# key: (default, or None where it must be set; how its text is read and bounded)
KEYS: dict[str, Tuple[Optional[str], Callable[[str, str], object]]] = {
    "NODE_NAME": (None, _text),
    "KUBE_SERVER": ("", _servers),
    "KUBECONFIG": ("/etc/regrade/kube/config", _text),
    "LEASE_NAME": ("k3s-regrade", _text),
    "STEP_UP": ("manual", _one_of("manual", "automatic")),
    "RUNTIME": ("docker", _one_of("docker", "systemd", "command")),
    "ACTUATOR_COMMAND": ("", _absolute("an executable")),
    "CONTAINER": ("k3s", _text),
    "DOCKER_HOST": ("unix:///var/run/docker.sock", _text),
    "UNIT": ("k3s", _unit),
    "DATA_DIR": ("", _absolute("k3s's data folder")),  # where k3s's own settings say, if empty
    "PRESSURE_FILE": ("/proc/pressure/memory", _text),
    "MEMINFO_FILE": ("/proc/meminfo", _text),
    "STATE_DIR": ("/var/lib/regrade", _text),
    "LOCK_FILE": ("/run/lock/regrade.lock", _text),
    "METRICS_FILE": ("", _textfile),  # for node_exporter; none where empty
    "SAMPLE_SECONDS": ("5", _seconds(1, 30)),
    "PRESSURE_WINDOW_SECONDS": ("60", _seconds(3, 3600)),
    "PRESSURE_THRESHOLD": ("20%", _share(1, 100)),
    "PRESSURE_CEILING": ("50%", _share(1, 100)),
    "MEMAVAILABLE_FLOOR": ("8%", _amount),
    "HEADROOM_ETCD_ONLY": ("300MiB", _amount),
    "HEADROOM_CONTROL_PLANE": ("64MiB", _amount),
    "SUSTAIN_DOWN_SECONDS": ("60", _seconds(2, 86400)),
    "SUSTAIN_UP_SECONDS": ("300", _seconds(2, 86400)),
    "COOLDOWN_DOWN_SECONDS": ("120", _seconds(3, 86400)),
    "COOLDOWN_UP_SECONDS": ("600", _seconds(3, 86400)),
    "SETTLE_SECONDS": ("60", _seconds(5, 300)),
    "LEASE_SECONDS": ("60", _seconds(1, 3600)),
    "ETCD_ONLY_HTTPS_PORT": ("16443", _port),
    "CALL_TIMEOUT_SECONDS": ("5", _seconds(1, 60)),
    "DRAIN_TIMEOUT_SECONDS": ("120", _seconds(1, 3600)),
    "DRAIN_REMAINING": ("end", _one_of("end", "refuse")),
    "DRAIN_PODS_WITHOUT_OWNER": ("refuse", _one_of("refuse", "end")),
    "RESTART_TIMEOUT_SECONDS": ("60", _seconds(10, 600)),
    "BOOT_TIMEOUT_SECONDS": ("180", _seconds(10, 3600)),
    "TRAP_WAIT_SECONDS": ("120", _seconds(10, 3600)),
}


def load(file_text: str, environment: dict[str, str], source: str = "the settings file") -> Settings:
    """Settings from a file's text and the environment, which wins. Raises SettingsWrong.

    A key of the file that is none of ours is an error (a typing mistake would silently keep a default);
    the environment holds others' keys as well.
    """
    try:
        given = pairs.parse(file_text)
    except ValueError as error:
        raise SettingsWrong(f"{source}: {error}") from None
    for key in given:
        if key not in KEYS:
            raise SettingsWrong(f"{source} sets {key}, which is no setting; remove it or correct its name")
    given.update((key, value) for key, value in environment.items() if key in KEYS and value)
    values: dict[str, object] = {}
    for key, (default, parse) in KEYS.items():
        text = given.get(key, default)
        if text is None:
            raise SettingsWrong(f"{key} is not set; set it in {source} or in the environment")
        if text.splitlines() not in ([], [text]):
            raise SettingsWrong(f"{key}={text!r} holds a line break, expected a value on one line")
        values[key.lower()] = parse(key, text)
    settings = Settings(**values)  # type: ignore[arg-type]  # each parser returns its field's type
    for rule in RELATIONS:
        rule(settings)
    return settings


def _too_small(small: str, small_value: float, what: str, needed: float, why: str) -> None:
    if small_value < needed:
        raise SettingsWrong(f"{small}={small_value:g} is less than {what} ({needed:g}): {why}")


def _window(s: Settings) -> None:
    _too_small(
        "PRESSURE_WINDOW_SECONDS",
        s.pressure_window_seconds,
        "3 x SAMPLE_SECONDS",
        3 * s.sample_seconds,
        "a window of fewer samples is noise; widen the window or sample more often",
    )


def _sustain(s: Settings) -> None:
    for key, value in (
        ("SUSTAIN_DOWN_SECONDS", s.sustain_down_seconds),
        ("SUSTAIN_UP_SECONDS", s.sustain_up_seconds),
    ):
        _too_small(key, value, "2 x SAMPLE_SECONDS", 2 * s.sample_seconds, "one sample sustains nothing")
    _too_small(
        "SUSTAIN_UP_SECONDS",
        s.sustain_up_seconds,
        "SUSTAIN_DOWN_SECONDS",
        s.sustain_down_seconds,
        "a server would go up sooner than it goes down, and swing",
    )


def _cooldown(s: Settings) -> None:
    if s.cooldown_down_seconds <= s.pressure_window_seconds:
        raise SettingsWrong(
            f"COOLDOWN_DOWN_SECONDS={s.cooldown_down_seconds:g} is not more than PRESSURE_WINDOW_SECONDS="
            f"{s.pressure_window_seconds:g}: the next step would be decided on readings from before the "
            "last one"
        )
    _too_small(
        "COOLDOWN_UP_SECONDS",
        s.cooldown_up_seconds,
        "COOLDOWN_DOWN_SECONDS",
        s.cooldown_down_seconds,
        "a server would go up sooner than it goes down, and swing",
    )


def _lease(s: Settings) -> None:
    _too_small(
        "LEASE_SECONDS",
        s.lease_seconds,
        f"3 renewals of {RENEW_SECONDS:g} s each",
        3 * RENEW_SECONDS,
        "one late renewal would lose the Lease",
    )
    _too_small(
        "LEASE_SECONDS",
        s.lease_seconds,
        f"{RENEW_SECONDS:g} s between renewals and 2 x CALL_TIMEOUT_SECONDS",
        RENEW_SECONDS + 2 * s.call_timeout_seconds,
        "one renewal that takes its time would lose the Lease",
    )


def _ceiling(s: Settings) -> None:
    floor = s.memavailable_floor
    if floor.share is not None and floor.share >= s.pressure_ceiling:
        raise SettingsWrong(
            f"MEMAVAILABLE_FLOOR={floor.text} is not below PRESSURE_CEILING="
            f"{s.pressure_ceiling * 100:g}%: stall would never count"
        )


def _command(s: Settings) -> None:
    if s.runtime == "command" and not s.actuator_command:
        raise SettingsWrong(
            "RUNTIME=command, and ACTUATOR_COMMAND is not set; set it to the path of the executable that applies levels"
        )


RELATIONS: Tuple[Callable[[Settings], None], ...] = (
    _window, _sustain, _cooldown, _lease, _ceiling, _command
)  # fmt: skip


def child_seconds(settings: Settings) -> float:
    """How long a child of the watcher may take: what is open ended first, then one step, each with every wait
    of its own at its full length (three restarts, a cure of the trap, six waits for node leases, the verify and
    two last writes, sixty calls). One that takes longer hangs; killed, the next goes on with its step.
    """
    restart = settings.restart_timeout_seconds + 30 + settings.boot_timeout_seconds
    waits = settings.drain_timeout_seconds + 3 * restart + settings.trap_wait_seconds + 6 * FRESH_SECONDS
    return 2 * (waits + 300 + 60 * settings.call_timeout_seconds)


def check_memory(settings: Settings, total: int) -> None:
    """The relations that need MemTotal (bytes). Raises SettingsWrong."""
    floor = settings.memavailable_floor
    least = floor.of(total)
    host = f"on this host of {total >> 20}MiB"
    if least <= STEP_PEAK_BYTES:
        raise SettingsWrong(
            f"MEMAVAILABLE_FLOOR={floor.text} is {least >> 20}MiB {host}, not more than the "
            f"{STEP_PEAK_BYTES >> 20}MiB "
            f"a step's own process takes: set MEMAVAILABLE_FLOOR to {(STEP_PEAK_BYTES >> 20) + 1}MiB or more"
        )
    if least >= settings.pressure_ceiling * total:
        raise SettingsWrong(
            f"MEMAVAILABLE_FLOOR={floor.text} is {least >> 20}MiB {host}, not below PRESSURE_CEILING="
            f"{settings.pressure_ceiling * 100:g}%: stall would never count"
        )
    for key, headroom in (
        ("HEADROOM_ETCD_ONLY", settings.headroom_etcd_only),
        ("HEADROOM_CONTROL_PLANE", settings.headroom_control_plane),
    ):
        asked = least + headroom.of(total)
        if asked > 0.6 * total:
            raise SettingsWrong(
                f"MEMAVAILABLE_FLOOR={floor.text} and {key}={headroom.text} ask for {asked >> 20}MiB "
                f"available {host}, "
                f"more than 60% of it: the server would never be calm enough to go up; lower one of them"
            )


def require_cluster(settings: Settings) -> None:
    """What a step needs besides. Raises SettingsWrong."""
    if not settings.kube_server:
        raise SettingsWrong(
            "KUBE_SERVER is not set; name one or more other servers' APIs, such as "
            "https://10.0.0.12:6443 (a server's own API is gone at etcd-only)"
        )
