# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""One container of one Docker engine: inspect, exec, restart, start, put a file; bounded, errors in one line.

Built on the `docker` SDK with the API version negotiated. Nothing here knows k3s or levels.
"""

from __future__ import annotations

import functools
import io
import os
import tarfile
import time
from typing import Any, Callable, NoReturn, TypeVar

from ..core.cures import setting
from .bounded import OutOfTime, within
from .k3s_actuator import PlatformError, Result
from .odd_json import mapping, texts

T = TypeVar("T")

NOBODY = "regrade-asks-whether-it-may"  # the name of no container


class EngineError(PlatformError):
    """The engine did not do what was asked."""

    def __init__(self, message: str, sent: bool, status: int = 0) -> None:
        super().__init__(message, sent)
        self.status = status  # of the HTTP answer, 0 where there was none


class Engine:
    """`host` is DOCKER_HOST, `name` the container's; times in seconds."""

    def __init__(self, host: str, name: str, timeout: float) -> None:
        # Imported before any call's time begins: on a host short of memory that alone may take seconds.
        import docker

        self._docker: Any = docker
        self.host = host
        self.name = name
        self._timeout = timeout
        self._api: Any = None

    def inspect(self) -> dict[str, Any]:
        return mapping(self._do("inspect", self._timeout, lambda api: api.inspect_container(self.name)))

    def security_options(self) -> tuple[str, ...]:
        return texts(mapping(self._do("info", self._timeout, lambda api: api.info())).get("SecurityOptions"))

    def run(self, script: str, limit: float) -> Result:
        """Run a shell script in the container. Raises EngineError where the script could not be run."""

        def call(api: Any) -> Result:
            made = api.exec_create(self.name, ["sh", "-c", script], stdin=False, tty=False)
            # Without the SDK's request to upgrade the connection the engine streams the output as a plain
            # body, which has an end and a time-out; the SDK's own reader polls its socket without either.
            got = api.post(
                f"{api.base_url}/v{api.api_version}/exec/{made['Id']}/start",
                json={"Detach": False, "Tty": False},
                stream=True,
                timeout=limit,
            )
            try:
                _check(got)
                output, errors = _streams(got.raw.read())
            finally:
                got.close()
            code = api.exec_inspect(made["Id"]).get("ExitCode")
            return Result(-1 if code is None else int(code), output, errors)

        return self._do("exec", limit, call)

    def restart(self, stop_timeout: float, limit: float) -> None:
        """One call: the engine stops the container, kills it after `stop_timeout`, and starts it at once."""

        def call(api: Any) -> None:
            path = f"{api.base_url}/v{api.api_version}/containers/{self.name}/restart"
            _check(api.post(path, params={"t": int(stop_timeout)}, timeout=limit))

        self._do("restart", limit, call)

    def start(self, limit: float) -> None:
        """Does nothing where it runs."""
        self._do("start", limit, lambda api: api.start(self.name))

    def put_file(self, folder: str, name: str, text: str) -> None:
        """Write a file into a container, running or not; `folder` must exist. Not atomic."""
        data = text.encode()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))
        self._do("copy", self._timeout, lambda api: api.put_archive(self.name, folder, packed.getvalue()))

    def may_change(self) -> None:
        """Whether the engine (or a proxy before it) takes from us all that a step may ask of it besides exec: each
        is asked for a container that does not exist. Raises EngineError where one is denied."""
        for what, verb, words in (
            ("restart", "post", "restart"),
            ("start", "post", "start"),
            ("copy", "put", "archive?path=/"),
        ):
            self._do(what, self._timeout, functools.partial(self._ask_of_nobody, verb, words))

    def _ask_of_nobody(self, verb: str, words: str, api: Any) -> None:
        path = f"{api.base_url}/v{api.api_version}/containers/{NOBODY}/{words}"
        got = getattr(api, verb)(path, timeout=self._timeout)
        if got.status_code != 404:
            _check(got)

    # --- how ---

    def _client(self) -> Any:
        if self._api is None:
            self._api = self._docker.APIClient(base_url=self.host, version="auto", timeout=self._timeout)
        return self._api

    def _do(self, what: str, limit: float, call: Callable[[Any], T]) -> T:
        try:
            return within(limit, lambda: call(self._client()))
        except Exception as error:
            self._explain(what, limit, error)

    def _explain(self, what: str, limit: float, error: Exception) -> NoReturn:
        import requests
        import urllib3.exceptions
        from docker.errors import DockerException, InvalidVersion

        status = int(getattr(getattr(error, "response", None), "status_code", 0) or 0)
        said = " ".join(str(getattr(error, "explanation", None) or error).split())[:300]
        subject = f"{what} of container {self.name}"
        if status == 404 and "no such container" in said.lower():
            raise EngineError(
                f"no container named {self.name} at {self.host}; set {setting('CONTAINER')} to the name "
                "of the k3s container",
                sent=False,
                status=status,
            ) from None
        if status and "multiple ids found" in said.lower():
            raise EngineError(
                f"{self.name} is no container's name at {self.host}, and the beginning of more than one's id; set "
                f"{setting('CONTAINER')} to the name of the k3s container",
                sent=False,
                status=status,
            ) from None
        if status == 403:
            raise EngineError(
                f"{subject} is forbidden (403) by what answers at {self.host}: a socket proxy must allow CONTAINERS, "
                "EXEC, POST, ALLOW_START and ALLOW_RESTARTS",
                sent=False,
                status=status,
            ) from None
        if status == 409 and what == "exec":
            raise EngineError(f"{subject}: it is not running ({said})", sent=False, status=status) from None
        if status:
            raise EngineError(f"{subject} failed: {said}", sent=status >= 500, status=status) from None
        # The libraries' own time-outs race with ours, and one in a streamed body is urllib3's.
        if isinstance(error, (OutOfTime, requests.Timeout, urllib3.exceptions.ReadTimeoutError)):
            raise EngineError(
                f"Docker at {self.host} gave no answer to {what} of container {self.name} within {limit:g} s",
                sent=True,
            ) from None
        cause = _root(error)
        if isinstance(cause, FileNotFoundError):
            raise EngineError(
                f"no Docker socket at {self.host}: set {setting('DOCKER_HOST')}, which `docker context "
                "inspect` tells, and mount it into this service",
                sent=False,
            ) from None
        if isinstance(cause, PermissionError):
            # Root may use any socket: what denies it is no mode and no group.
            why = (
                "although this is root: where SELinux is enforcing give this service"
                if os.geteuid() == 0
                else "run as root or in its group, and where SELinux is enforcing give this service"
            )
            raise EngineError(
                f"permission denied on the Docker socket {self.host}: {why} `security_opt: [label=disable]`",
                sent=False,
            ) from None
        if isinstance(cause, ConnectionRefusedError):
            if os.path.isdir(self.host.partition("unix://")[2]):
                raise EngineError(
                    f"{self.host} is a folder and no Docker socket: Docker makes one where what is to be mounted is "
                    f"not there; set {setting('DOCKER_HOST')} to the socket, which `docker context inspect` tells, and "
                    "remove the folder",
                    sent=False,
                ) from None
            raise EngineError(
                f"no Docker engine listens at {self.host} (connection refused): is dockerd running?",
                sent=False,
            ) from None
        if isinstance(error, InvalidVersion):
            raise EngineError(
                f"the Docker engine at {self.host} is too old for this service ({said}): update Docker", sent=False
            ) from None
        known = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError)
        if isinstance(error, known):
            # Negotiating the version comes first; its text (too old, too new) is the engine's own.
            sent = self._api is not None
            raise EngineError(f"{subject} at {self.host}: {said}", sent=sent) from None
        raise error


def _check(response: Any) -> None:
    """Raise the SDK's own error for a 4xx or 5xx."""
    if response.status_code >= 400:
        from docker.errors import APIError

        try:
            said = str(response.json()["message"])
        except (ValueError, KeyError, TypeError):
            said = str(response.text)
        raise APIError(said, response=response, explanation=said)


def _root(error: BaseException) -> BaseException:
    """The operating system's error below the libraries' ones, which keep it as cause, context or argument."""
    seen = 0
    while seen < 10:
        inner = [arg for arg in error.args if isinstance(arg, BaseException)]
        below = error.__cause__ or error.__context__ or (inner[0] if inner else None)
        if (isinstance(error, OSError) and error.errno is not None) or below is None:
            break
        error, seen = below, seen + 1
    return error


def _streams(raw: bytes) -> tuple[str, str]:
    """stdout and stderr of Docker's multiplexed stream: frames of type, three zeros, length, data."""
    parts: dict[int, bytes] = {1: b"", 2: b""}
    at = 0
    while at + 8 <= len(raw):
        kind, size = raw[at], int.from_bytes(raw[at + 4 : at + 8], "big")
        parts[kind] = parts.get(kind, b"") + raw[at + 8 : at + 8 + size]
        at += 8 + size
    return parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace")
