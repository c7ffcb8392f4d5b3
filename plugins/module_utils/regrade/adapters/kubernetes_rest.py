# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The REST client of the official `kubernetes` package, without the models and APIs that come with it.

Any import from that package brings in all of it, 800 models: 13 MiB of a step's 50 (`make bench`), in a
process that runs where memory is short and uses none of them. So its packages stand empty while the
three modules that are needed are imported. Where that does not work (another version of the package), the
whole is imported. No request is made here.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import types
from typing import Any, NamedTuple

PACKAGES = ("kubernetes", "kubernetes.client", "kubernetes.utils")


class Rest(NamedTuple):
    """What a client is made of, and what it raises where it could not send (TLS)."""

    configuration: Any
    client: Any
    error: Any


_loading = threading.Lock()
_loaded: list[Rest] = []


def rest() -> Rest:
    """Imported at most once. Raises ImportError where the package is not installed."""
    with _loading:  # peers are asked side by side
        if not _loaded:
            _loaded.append(_alone() or _import())
        return _loaded[0]


def _import() -> Rest:
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.exceptions import ApiException
    from kubernetes.client.rest import RESTClientObject

    return Rest(Configuration, RESTClientObject, ApiException)


def _alone() -> Rest | None:
    """With empty packages around them, which are gone after, so that others may still import the whole."""
    found = None if "kubernetes" in sys.modules else importlib.util.find_spec("kubernetes")
    if found is None or not found.submodule_search_locations:
        return None  # it is whole already, or not there
    root = found.submodule_search_locations[0]
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split(".")[1:])]
        sys.modules[name] = package
    try:
        return _import()
    except (ImportError, AttributeError):
        return None
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "kubernetes"]:
            del sys.modules[name]
