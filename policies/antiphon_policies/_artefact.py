"""A trained router on disk: `router.json` for facts, `weights.safetensors` for arrays. Loading runs no code of it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError

from ._examples import Arrays

VERSION = 1
FACTS, WEIGHTS = "router.json", "weights.safetensors"


def save(folder: Path, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """Write both files, whole or not at all; an older artefact there is replaced.

    Raises:
        ConfigError: the folder holds something else, or cannot be written.
    """
    import numpy as np
    from safetensors.numpy import save as packed

    if folder.exists() and not (folder / FACTS).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is no trained router; name a new folder")
    weights = packed({name: np.ascontiguousarray(value) for name, value in arrays.items()})
    about = {"antiphon_router": VERSION, **facts, "weights_sha256": hashlib.sha256(weights).hexdigest()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            new = Path(scratch) / "new"
            new.mkdir()
            (new / WEIGHTS).write_bytes(weights)
            (new / FACTS).write_text(json.dumps(about, ensure_ascii=False, indent=1) + "\n", "utf-8")
            if folder.exists():
                os.rename(folder, Path(scratch) / "old")
            os.rename(new, folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from None


def load(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays.

    Raises:
        ConfigError: it is no artefact, of another version, or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as unpacked

    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        weights = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no trained router; make one with `antiphon train-router`") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be read ({error}); train it again") from None
    if not isinstance(facts, dict) or facts.get("antiphon_router") != VERSION:
        raise ConfigError(f"{folder} is of another version of trained routers; train it again")
    if hashlib.sha256(weights).hexdigest() != facts.get("weights_sha256"):
        raise ConfigError(f"{folder / WEIGHTS} is damaged: its SHA-256 is not the one in {FACTS}; train it again")
    try:
        return facts, dict(unpacked(weights))
    except SafetensorError as error:
        raise ConfigError(f"{folder / WEIGHTS} cannot be read ({error}); train it again") from None
