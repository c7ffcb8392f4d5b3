"""A small client of the Kubernetes API for the launcher's own duties. What to ask for is the callers' business."""

from __future__ import annotations

from typing import Any

from . import https
from .layout import Layout

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class KubeAPI:
    """Calls raise https.Failure."""

    def __init__(self, layout: Layout, port: int) -> None:
        self._tls = https.context(layout.tls / "server-ca.crt", layout.tls / "client-supervisor")
        self._base = f"https://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        return https.request("GET", self._base + path, tls=self._tls)

    def find(self, path: str) -> Any | None:
        """The object, or None where there is none."""
        try:
            return self.get(path)
        except https.Failure as failure:
            if failure.status == 404:
                return None
            raise

    def post(self, path: str, body: Any) -> Any:
        return https.request("POST", self._base + path, tls=self._tls, body=body)

    def put(self, path: str, body: Any) -> Any:
        return https.request("PUT", self._base + path, tls=self._tls, body=body)

    def delete(self, path: str) -> Any:
        return https.request("DELETE", self._base + path, tls=self._tls)

    def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        headers = {"Content-Type": kind}
        return https.request("PATCH", self._base + path, tls=self._tls, body=body, headers=headers)

    def nodes(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.get("/api/v1/nodes")["items"]
        return listed

    def ready(self) -> bool:
        """Whether the API server says it is ready."""
        try:
            self.get("/readyz")
        except https.Failure:
            return False
        return True
