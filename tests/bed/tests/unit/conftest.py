"""Makes the launcher's package and the build's modules importable; needs no Docker engine."""

from __future__ import annotations

import sys
from pathlib import Path

IMAGE = Path(__file__).resolve().parents[2] / "image"
sys.path[:0] = [str(IMAGE / "launcher"), str(IMAGE)]
