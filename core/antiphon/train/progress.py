"""A training step in one line for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def line(row: Mapping[str, Any]) -> str:
    """What a row of metrics says: reward with its parts, quality, cost, the policy's spread, speed and validation."""
    said = [f"step {row['step']}"]
    for key, label, write in _FIGURES:
        value = row.get(key)
        if isinstance(value, int | float):
            parts = _parts(row) if key == "reward" else ""
            said.append(f"{label} {write(value)}{parts}")
    return "  ".join(said)


def _parts(row: Mapping[str, Any]) -> str:
    """The reward's terms: what `reward_TERM` keys say."""
    parts = [
        f"{key.removeprefix('reward_')} {value:+.3f}"
        for key, value in row.items()
        if key.startswith("reward_") and isinstance(value, int | float)
    ]
    return f" ({', '.join(parts)})" if len(parts) > 1 else ""


def _three(value: float) -> str:
    return f"{value:.3f}"


def _short(value: float) -> str:
    return f"{value:.3g}"


def _share(value: float) -> str:
    return f"{value:.0%}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("reward", "reward", _three),
    ("format_ok", "format", _share),
    ("em", "EM", _three),
    ("cost", "cost", _short),
    ("calls", "calls", _short),
    ("entropy", "entropy", _short),
    ("kl", "KL", _short),
    ("val_reward", "val reward", _three),
    ("val_em", "val EM", _three),
    ("tokens_per_s", "tokens/s", _short),
    ("left_s", "left", duration),
)
