# SPDX-License-Identifier: GPL-3.0-or-later
"""The REST client alone: nothing of the package's models comes with it, and others still get the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli

LIBRARY = str(Path(cli.__file__).parent.parent)


def told(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom regrade.adapters import kubernetes_rest\n{code}"],
        env={"PYTHONPATH": LIBRARY}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_model_is_imported_and_it_makes_a_client() -> None:
    code = """
before = set(sys.modules)
library = kubernetes_rest.rest()
assert kubernetes_rest.rest() is library
configuration = library.configuration(host="https://10.0.0.12:6443")
print(library.client(configuration).pool_manager is not None, issubclass(library.error, Exception))
print([name for name in sys.modules if name.partition(".")[0] in ("kubernetes", "pydantic", "oauthlib")])
"""
    assert told(code).splitlines() == ["True True", "[]"]


def test_the_whole_package_can_be_imported_after_it() -> None:
    assert told("kubernetes_rest.rest()\nimport kubernetes\nprint(kubernetes.client.V1Node.__name__)") == "V1Node"


def test_the_whole_package_is_used_where_it_is_there_already() -> None:
    code = "import kubernetes\nprint(kubernetes_rest.rest().client is kubernetes.client.rest.RESTClientObject)"
    assert told(code) == "True"


def test_a_package_that_cannot_stand_empty_is_imported_whole() -> None:
    """As another version may be."""
    code = """
kubernetes_rest.PACKAGES = ("kubernetes",)
import types
class Broken(types.ModuleType):
    def __setattr__(self, name, value):
        super().__setattr__(name, [] if name == "__path__" else value)
kubernetes_rest.types = types.SimpleNamespace(ModuleType=Broken)
library = kubernetes_rest.rest()
import kubernetes
print(library.client is kubernetes.client.rest.RESTClientObject)
"""
    assert told(code) == "True"


def test_a_package_that_is_not_there_is_an_import_error() -> None:
    code = """
sys.path = [path for path in sys.path if "site-packages" not in path]
try:
    kubernetes_rest.rest()
except ImportError as error:
    print(error)
"""
    assert told(code) == "No module named 'kubernetes'"
