"""The cluster's token: its two forms and its files. What is derived from it is authorities.py's business."""

from __future__ import annotations

import hashlib
import secrets

from .layout import Layout, write


def secret(token: str) -> str:
    """The secret part of a token: `K10<hash>::<user>:<secret>` or the bare secret."""
    if token.startswith("K10") and "::" in token:
        return token.split("::", 1)[1].partition(":")[2]
    return token


def full(secret_part: str, user: str, ca_pem: bytes) -> str:
    """The long form, which pins the cluster's certificate authority."""
    return f"K10{hashlib.sha256(ca_pem).hexdigest()}::{user}:{secret_part}"


def pin(token: str) -> str:
    """The hash of the certificate authority a long token pins, else nothing."""
    return token[3:].split("::", 1)[0] if token.startswith("K10") and "::" in token else ""


def obtain(given: str, layout: Layout) -> str:
    """The secret of this server: the one given, else the one kept, else a new one (k3s makes one up too)."""
    if given:
        return secret(given)
    kept = layout.server / "token"
    if kept.exists():
        return secret(kept.read_text().strip())
    return secrets.token_hex(16)


def keep(secret_part: str, ca_pem: bytes, layout: Layout) -> None:
    """Write server/token and server/node-token as k3s does."""
    text = full(secret_part, "server", ca_pem) + "\n"
    write(layout.server / "token", text)
    link = layout.server / "node-token"
    if not link.is_symlink():
        link.unlink(missing_ok=True)
        link.symlink_to(layout.server / "token")
