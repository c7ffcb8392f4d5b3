# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The command `regrade`: arguments, composition, words and exit codes. No decision belongs here.

Exit codes: 0 done, or nothing to do; 1 the watcher is not well (`health` alone); 2 usage or settings;
3 refused, nothing was changed; 4 the step failed or is open; 5 the state is not known. `with-lease` gives back its
command's own exit code, and 4 where the Lease was lost meanwhile. `watch`, `health` and `metrics` import nothing
heavy, so argparse and all that needs a library come in only for the other verbs.
"""

from __future__ import annotations

import os
import sys

from .adapters import priority
from .core.errors import (
    ClusterError,
    LevelUnknown,
    RegradeError,
    SettingsWrong,
    StepFailed,
    StepRefused,
    UsageWrong,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, Iterator, NoReturn

    from .app.driver import Hooks
    from .app.operations import Server
    from .core.settings import Settings
    from .ports import Cluster, Platform, StateStore

SETTINGS_FILE = "/etc/regrade/settings.env"
DONE, UNWELL, WRONG, REFUSED, FAILED, UNKNOWN = range(6)


def main(arguments: list[str] | None = None) -> int:
    """Runs one verb; the only writer to stdout and stderr but for the watcher's log."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if words[:1] == ["watch"] and "-h" not in words and "--help" not in words:
            from .app import watcher

            path, as_json = _light_options(words[1:])
            return watcher.main(_settings(path), as_json)
        priority.be_ordinary()
        if words[:1] == ["health"] and "-h" not in words and "--help" not in words:
            return _health(words[1:])
        if words[:1] == ["metrics"] and "-h" not in words and "--help" not in words:
            from .app import metrics

            _out(metrics.now(_settings(_light_options(words[1:])[0])), end="")
            return DONE
        options = _parse(words)
    except (UsageWrong, SettingsWrong) as error:
        return _tell(error, "--json" in words, "--automatic" in words)
    except Exception as error:
        return _tell_bug(error, None, False, False)
    try:
        return _run(options)
    except RegradeError as error:
        return _tell(error, options.json, options.automatic)
    except KeyboardInterrupt:
        return _tell(
            StepFailed("interrupted; where a step was open, `regrade settle` ends it", True),
            options.json,
            options.automatic,
        )
    except ImportError as error:
        return _tell(
            SettingsWrong(f"{error}; install it for {sys.executable} (the service's image has it)"),
            options.json,
            options.automatic,
        )
    except Exception as error:
        return _tell_bug(error, options.verbose, options.json, options.automatic)


def _tell_bug(error: Exception, verbose: bool | None, as_json: bool, automatic: bool) -> int:
    """In one line: no traceback reaches a user. `verbose` None: the verb has no such option."""
    if verbose:
        import traceback

        sys.stderr.write(traceback.format_exc())
    more = ", --verbose shows more" if verbose is False else ""
    text = f"{type(error).__name__} at {_place(error)}: {error}; this is a bug{more}"
    return _tell(StepFailed(text, False), as_json, automatic)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return (
        f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        if trace
        else "an unknown place"
    )


def _kind(error: RegradeError) -> tuple[str, int]:
    if isinstance(error, UsageWrong):
        return "usage", WRONG
    if isinstance(error, SettingsWrong):
        return "settings", WRONG
    if isinstance(error, StepRefused):
        return "refused", REFUSED
    if isinstance(error, (LevelUnknown, ClusterError)):
        return "unknown", UNKNOWN
    return "failed", FAILED


def automatic_answer(error: RegradeError) -> dict[str, str]:
    """What the watcher is told of a verb that raised."""
    from .core import cures

    left_open = getattr(error, "left_open", False) or getattr(error, "began", False)
    return {
        "result": _kind(error)[0],
        "left_open": str(left_open).lower(),
        "undone": str(getattr(error, "undone", False)).lower(),
        "level": getattr(error, "level", ""),
        "reason": error.reason,
        "cure": cures.cure(error.reason),
        "message": " ".join(str(error).split()),
    }


def _tell(error: RegradeError, as_json: bool, automatic: bool) -> int:
    kind, code = _kind(error)
    message = " ".join(str(error).split())
    if automatic:
        from .core import pairs

        _out(pairs.dump(automatic_answer(error)), end="")
    elif as_json:
        import json

        _out(json.dumps({"error": {"kind": kind, "message": message}}))
    if not automatic:  # the watcher logs the answer itself
        sys.stderr.write(f"regrade: {message}\n")
    return code


def _out(text: str, end: str = "\n") -> None:
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has gone; the exit code still tells


def _light_options(words: list[str]) -> tuple[str, bool]:
    """The light verbs' options, read without argparse: the settings file ("" for none), whether JSON is
    asked for. Raises UsageWrong."""
    path, as_json, left = "", False, list(words)
    while left:
        word = left.pop(0)
        if word == "--json":
            as_json = True
        elif word == "--settings" and left:
            path = left.pop(0)
        elif word.startswith("--settings="):
            path = word.partition("=")[2]
        else:
            raise UsageWrong(f"unexpected {word!r}; the options here are --settings FILE and --json")
    return path, as_json


def _settings(path: str) -> Settings:
    """From the file and the environment, which wins; from the file alone where REGRADE_SETTINGS names it, as on a
    host, whose users have a KUBECONFIG of their own. Raises SettingsWrong."""
    from .core import settings

    alone = bool(os.environ.get("REGRADE_SETTINGS"))
    path = path or os.environ.get("REGRADE_SETTINGS", "")
    text = ""
    if path or os.path.exists(SETTINGS_FILE):
        path = path or SETTINGS_FILE
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            raise SettingsWrong(
                f"the settings file {path} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from None
    return settings.load(text, {} if alone else dict(os.environ), path or "the settings file")


def _health(words: list[str]) -> int:
    from .app import watcher_notes

    path, as_json = _light_options(words)
    why = watcher_notes.unhealthy(_settings(path))
    if as_json:
        from .app import log_lines

        _out(log_lines.encoded({"health": "unwell" if why else "well", "message": why}).decode(), end="")
    else:
        _out(why or "well")
    return UNWELL if why else DONE


def _parse(words: list[str]) -> argparse.Namespace:
    import argparse

    from .core.levels import LEVELS

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageWrong(f"{message}; `regrade --help` lists the verbs")

    light = Parser(add_help=False)  # for --help alone; _light_options reads them
    light.add_argument("--json", action="store_true", help="JSON objects on stdout")
    light.add_argument(
        "--settings",
        default="",
        metavar="FILE",
        help=f"KEY=VALUE lines (default {SETTINGS_FILE}, where it exists; the environment wins)",
    )
    common = Parser(add_help=False, parents=[light])
    common.add_argument(
        "--verbose", action="store_true", help="progress, and the details of a bug, on stderr"
    )
    common.add_argument("--automatic", action="store_true", help=argparse.SUPPRESS)
    waiting = Parser(add_help=False)
    waiting.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait this long while other servers are at work: they hold the Lease, step, or come back to full "
        "(default: refuse at once); for each step anew",
    )
    parser = Parser(
        prog="regrade",
        description="Steps a k3s server down and up without giving up its vote.",
        epilog="Exit codes: 0 done or nothing to do, 2 usage or settings, 3 refused (nothing changed), "
        "4 the step failed or is open, 5 state unknown.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs.add_parser("levels", parents=[common], help="the levels, highest first")
    verbs.add_parser("current_level", parents=[common], help="the level k3s runs at")
    verbs.add_parser(
        "status", parents=[common], help="readings, levels, Lease, gate, and what would make it step"
    )
    verbs.add_parser(
        "heartbeat", parents=[common], help="the cluster's Nodes and their levels, for other programs: always JSON"
    )
    step = verbs.add_parser(
        "step", parents=[common, waiting], help="step down, up, or to a level, one at a time"
    )
    step.add_argument("where", choices=("down", "up", "to"))
    step.add_argument("level", nargs="?", choices=LEVELS)
    step.add_argument(
        "--from",
        dest="expected",
        choices=LEVELS,
        default="",
        metavar="LEVEL",
        help="refuse where the server is at another level than this",
    )
    step.add_argument("--after", metavar="ID", help=argparse.SUPPRESS)  # the last step the watcher knows of
    step.add_argument("--check", action="store_true", help="say what would be done, write nothing")
    step.add_argument(
        "--hold",
        choices=("yes", "no", "keep"),
        help="whether the watcher leaves this server there, or keep what is (default: below full yes, at full no)",
    )
    verbs.add_parser(
        "settle", parents=[common, waiting], help="end a step that is open, make marks and level agree"
    )
    for verb, what in (
        ("hold", "leave this server at its level: no automatic step until `release`"),
        ("release", "end a hold: automatic steps may come again"),
    ):
        verbs.add_parser(verb, parents=[common], help=what).add_argument(
            "--check", action="store_true", help="say what would be done, write nothing"
        )
    _parse_people(Parser, verbs, common, waiting, step)
    verbs.add_parser("alert", parents=[common])  # the watcher's own, so it is not listed
    blocked = verbs.add_parser("blocked", parents=[common])  # and this
    for option in ("--move", "--reason", "--text"):
        blocked.add_argument(option, required=True)
    verbs.add_parser(
        "watch",
        parents=[light],
        help="watch pressure and step by itself, until SIGTERM; --json: one object a line",
    )
    verbs.add_parser(
        "health",
        parents=[light],
        help="whether the watcher is well (exit code 0 or 1), for a container's health check",
    )
    verbs.add_parser(
        "metrics", parents=[light], help="what the watcher noted, for Prometheus: always its text format"
    )
    at = words.index("--") if words[:1] == ["with-lease"] and "--" in words else len(words)
    options = parser.parse_args(words[:at])
    options.command = tuple(words[at + 1 :])  # what stands there is not ours to understand
    if options.verb == "with-lease" and bool(options.command) == bool(options.hold):
        raise UsageWrong("`with-lease` takes the command to run after `--`: regrade with-lease -- COMMAND...")
    if options.verb == "step":
        options.despite = tuple(
            dict.fromkeys(name for names in options.despite for name in names.split(",") if name)
        )
        if options.despite and (options.where == "down" or options.automatic):
            raise UsageWrong("--despite is for a step up by hand: regrade step up --despite NODE")
    if options.verb == "step" and (options.where == "to") != (options.level is not None):
        raise UsageWrong(
            "`step to` takes a level, `step down` and `step up` take none: "
            f"regrade step down | up | to {'|'.join(LEVELS)}"
        )
    return options


def _parse_people(
    parser: type[argparse.ArgumentParser], verbs: Any, common: Any, waiting: Any, step: Any
) -> None:
    """The verbs and options of `core.people`."""
    import argparse

    yes = parser(add_help=False)
    yes.add_argument("--yes", action="store_true", help="do not ask: what it does and risks is known")
    admin = parser(add_help=False)
    admin.add_argument(
        "--kubeconfig",
        required=True,
        metavar="FILE",
        help="an administrator's kubeconfig, as this changes another server's Node; - reads it from stdin",
    )
    step.add_argument(
        "--despite",
        action="append",
        default=[],
        metavar="NODE",
        help="step up although this peer is dead (again, or comma-separated, for more); where etcd restarts it asks",
    )
    step.add_argument("--yes", action="store_true", help="do not ask: what --despite risks is known")
    abandon = verbs.add_parser(
        "abandon-step", parents=[common, yes, admin], help="close the step that a dead server left open"
    )
    abandon.add_argument("node", metavar="NODE")
    abandon.add_argument(
        "--step", default="", metavar="ID", help="refuse where another step than this one is open"
    )
    forget = verbs.add_parser(
        "forget",
        parents=[common, waiting, yes, admin],
        help="take our marks off the Node of a server that has no watcher any more and runs full, or is gone",
    )
    forget.add_argument("node", metavar="NODE")
    recover = verbs.add_parser(
        "recover", parents=[common, yes], help="run this server full again where no API server is left to ask"
    )
    recover.add_argument(
        "--offline",
        action="store_true",
        required=True,
        help="with no Lease and no check: there is nobody to ask",
    )
    under = verbs.add_parser(
        "with-lease",
        parents=[common, waiting],
        usage="regrade with-lease [options] -- COMMAND...",
        help="run a command while no step is taken in the cluster; gives back its exit code, 4 if the Lease is lost",
    )
    under.add_argument("--hold", default="", help=argparse.SUPPRESS)  # for the command on the host
    trial = verbs.add_parser(
        "check-actuator", parents=[common, yes], help="try an executable for RUNTIME=command (docs/actuators.md)"
    )
    trial.add_argument("executable", metavar="PATH")
    trial.add_argument(
        "--apply", action="store_true", help="step through all levels and back, asking no other server; asks first"
    )


def _run(options: argparse.Namespace) -> int:
    from .app import operations, reports

    if options.verb == "levels":
        levels = operations.levels()
        _report(options, dict(levels), "\n".join(levels["levels"]))
        return DONE
    if options.verb == "check-actuator":
        return _check_actuator(options)
    server = _with_person(_compose(_chosen(_settings(options.settings), options), options), options)
    if options.verb == "status":
        status = operations.status(server)
        _report(options, dict(status), reports.status_words(status))
    elif options.verb == "current_level":
        found = operations.current_level(server)
        _report(options, dict(found), found["level"])
    elif options.verb == "heartbeat":
        import json

        beat = operations.heartbeat(server)
        _report(options, dict(beat), json.dumps(beat))
    elif options.verb == "settle":
        settled = operations.settle(server, options.automatic, options.wait)
        _report(options, dict(settled), settled["message"])
    elif options.verb in ("hold", "release"):
        switch = operations.hold if options.verb == "hold" else operations.release
        switched = switch(server, options.check)
        _report(options, dict(switched), switched["message"])
    elif options.verb == "blocked":
        told = operations.blocked(server, options.move, options.reason, options.text)
        _report(options, dict(told), told["message"])
    elif options.verb == "abandon-step":
        abandoned = operations.abandon_step(server, options.node, options.step)
        _report(options, dict(abandoned), abandoned["message"])
    elif options.verb == "forget":
        forgotten = operations.forget(server, options.node, options.wait)
        _report(options, dict(forgotten), forgotten["message"])
    elif options.verb == "recover":
        recovered = operations.recover(server)
        _report(options, dict(recovered), recovered["message"])
    elif options.verb == "with-lease":
        ran = operations.with_lease(server, options.command or (options.hold,), options.wait)
        if options.json:  # stdout is the command's else
            _report(options, dict(ran), "")
        if ran["lease_lost"]:
            sys.stderr.write(f"regrade: {ran['message']}\n")
            return FAILED
        return ran["code"]
    elif options.verb == "alert":
        alerted = operations.alert(server)
        _report(options, dict(alerted), alerted["message"])
    else:
        where = options.level or options.where
        stepped = operations.step_to(
            server,
            where,
            options.automatic,
            options.hold != "keep",
            options.wait,
            options.check,
            options.expected,
            options.despite,
            options.after,
            {"yes": True, "no": False}.get(options.hold),
        )
        _report(options, dict(stepped), stepped["message"])
    return DONE


def _report(options: argparse.Namespace, report: dict[str, object], words: str) -> None:
    if options.automatic:
        from .core import pairs

        flat = {key: str(value) for key, value in report.items() if isinstance(value, str)}
        _out(pairs.dump({"result": "done", **flat}), end="")
    elif options.json:
        import json

        _out(json.dumps(report))
    else:
        _out(words)


def _chosen(settings: Settings, options: argparse.Namespace) -> Settings:
    """With an administrator's kubeconfig where the verb takes one. Raises UsageWrong."""
    path = getattr(options, "kubeconfig", "")
    if not path:
        return settings
    if path != "-" and os.path.realpath(path) == os.path.realpath(settings.kubeconfig):
        raise UsageWrong(
            f"--kubeconfig {path} is the service's own, which may change no other server's Node: "
            "give an administrator's"
        )
    return settings._replace(kubeconfig=path)


def _with_person(server: Server, options: argparse.Namespace) -> Server:
    """The server with the person who runs this verb to tell, to ask, and to run a command for."""
    from .adapters.maintenance import Command, Elsewhere

    def say(text: str) -> None:
        sys.stderr.write(f"regrade: {' '.join(text.split())}\n")
        sys.stderr.flush()

    person = server.world._replace(
        say=say,
        confirm=lambda text: _confirm(options, text),
        maintenance=Elsewhere() if options.verb == "with-lease" and options.hold else Command(),
    )
    return server._replace(world=person)


def _confirm(options: argparse.Namespace, text: str) -> None:
    """Raises UsageWrong where nobody can be asked, StepRefused where the person does not agree."""
    if options.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageWrong(f"not confirmed, nothing was changed: {text}; run it with --yes")
    sys.stderr.write(f"{text}.\nGo on? [y/N] ")
    sys.stderr.flush()
    try:
        answer = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        answer = ""
    if answer not in ("y", "yes"):
        raise StepRefused("not confirmed, nothing was changed")


def _check_actuator(options: argparse.Namespace) -> int:
    """Each check as it comes. The settings give its times; without any, the defaults do."""
    from .adapters.command import Executable
    from .adapters.local_k3s import LocalK3s
    from .adapters.state_files import FileLock
    from .app import conformance, reports
    from .core import settings as defaults

    if options.settings or os.environ.get("REGRADE_SETTINGS") or os.path.exists(SETTINGS_FILE):
        settings = _settings(options.settings)
    else:
        settings = defaults.load("", {"NODE_NAME": os.uname().nodename, **os.environ})
    path = os.path.abspath(options.executable)
    executable = Executable.of(settings, path)
    k3s = LocalK3s(settings.node_name, settings.etcd_only_https_port, settings.call_timeout_seconds)
    report: reports.ActuatorReport = {"executable": path, "passed": True, "checks": []}

    def tell(checks: Iterator[conformance.Check]) -> None:
        for found in checks:
            report["passed"] = report["passed"] and found.ok
            report["checks"].append({"check": found.check, "ok": found.ok, "detail": found.detail})
            if not options.json:
                _out(f"{'ok    ' if found.ok else 'FAILED'}  {found.check}: {found.detail}")

    tell(conformance.look(executable, k3s))
    if options.apply and report["passed"]:
        _confirm(
            options,
            f"this applies every level with {path} and goes back, which restarts this host's k3s twice and asks no "
            "other server: all of them should be well and at full now",
        )
        lock = FileLock(settings.lock_file)
        lock.acquire("check-actuator")
        try:
            tell(conformance.flip(executable, k3s, settings.boot_timeout_seconds))
        finally:
            lock.release()
    failed = sum(not entry["ok"] for entry in report["checks"])
    words = f"{len(report['checks']) - failed} passed, {failed} failed"
    _report(options, dict(report), words)
    return FAILED if failed else DONE


def _compose(settings: Settings, options: argparse.Namespace) -> Server:
    """Puts the adapters together for this server."""
    from .adapters.clock import SystemClock
    from .adapters.kubernetes_api import KubernetesCluster
    from .adapters.state_files import FileLock, StateFiles
    from .app.driver import Hooks, World
    from .app.operations import Server
    from .core.settings import require_cluster

    require_cluster(settings)

    def log(text: str) -> None:
        if options.verbose or options.automatic:
            line = " ".join(text.split())
            if options.automatic and options.json:
                from .app import log_lines

                told = {"server": settings.node_name, "message": line}
                sys.stderr.write(log_lines.encoded(told).decode())
            else:
                sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    hooks = Hooks()
    cluster = KubernetesCluster(settings, admin=bool(getattr(options, "kubeconfig", "")))
    store = StateFiles(settings.state_dir)
    actuator = _platform(settings, cluster, store, hooks)
    world = World(
        settings=settings,
        cluster=cluster,
        actuator=actuator,
        vote=actuator,
        etcd=actuator,
        beside=_platform(settings, cluster, store),
        clock=SystemClock(),
        store=store,
        lock=FileLock(settings.lock_file),
        note_step=store.note_step,
        read_note=store.read_note,
        log=log,
    )
    return Server(world, hooks, f"{settings.node_name}/{os.urandom(8).hex()}")


def _platform(
    settings: Settings, cluster: Cluster, store: StateStore, hooks: Hooks | None = None
) -> Platform:
    """The adapter of RUNTIME: for a step, or without hooks to look only."""
    known = hooks.known if hooks else dict
    if settings.runtime == "command":
        from .adapters.command import CommandActuator

        return CommandActuator(settings, cluster, store, hooks, known)
    if settings.runtime == "systemd":
        from .adapters.systemd_unit import SystemdActuator

        return SystemdActuator(settings, cluster, hooks, known)
    from .adapters.docker_engine import DockerActuator

    return DockerActuator(settings, cluster, hooks, known)


if __name__ == "__main__":
    raise SystemExit(main())
