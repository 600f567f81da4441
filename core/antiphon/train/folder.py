"""The folder of a run: held by one process at a time, and of one spec for all its life."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon import __version__, card
from antiphon.errors import ConfigError
from antiphon.evaluate.files import locked, make_directory
from antiphon.evaluate.spec import differences
from antiphon.train.checkpoint import CHECKPOINTS, Checkpoints
from antiphon.train.writers import METRICS

if TYPE_CHECKING:
    from antiphon.card import Card
    from antiphon.contracts import MemberView
    from antiphon.train.prepare import Prepared

SPEC, LOCK, UNDER_WAY = "spec.json", ".lock", ".under-way"


@contextmanager
def open_folder(folder: Path, prepared: Prepared, *, resume: bool) -> Iterator[bool]:
    """Hold the folder of a new run, or of one that goes on; whether its last part was killed or failed in a step.

    Raises:
        ConfigError: another process holds it; it holds a run that has begun and `resume` was not asked for, or none and
            it was; or the run in it was made of something else.
    """
    path = folder / SPEC
    if resume and not path.is_file():
        raise ConfigError(f"{folder} holds no run to resume; leave --resume out to start one")
    make_directory(folder)
    with locked(folder / LOCK):
        if path.is_file() and not resume and _has_begun(folder):
            raise ConfigError(f"{folder} holds a run; go on with it (--resume), or choose another folder (--out)")
        now = {**prepared.spec.identity(), "hashes": {"tasks": prepared.tasks.hash}}
        if resume:
            _compare(path, now)
        _write(path, now, prepared)
        under_way = folder / UNDER_WAY
        was_cut_off = under_way.exists()
        under_way.touch()
        yield was_cut_off
        under_way.unlink()


def write_spec(folder: Path, prepared: Prepared) -> None:
    """Say in the folder what was fine-tuned there; as no run of reinforcement learning it cannot be resumed as one."""
    spec = prepared.spec
    learnt = spec.model_dump(mode="json", include={"demonstrations", "sft"})
    make_directory(folder)
    _write(folder / SPEC, {**spec.identity(), **learnt, "hashes": {"tasks": prepared.tasks.hash}}, prepared)


def compare_cards(checkpoint: Path, now: Card, members: Sequence[MemberView]) -> Card | None:
    """The card of the checkpoint that a run goes on from; None: it has none. A pool that has changed is logged.

    Args:
        now: that of the weights that would be trained on.
        members: who can be asked now.

    Raises:
        ConfigError: the base, or what the configuration says of policy, grammar, reward or limits, has changed.
    """
    before = card.read(checkpoint)
    if before is None:
        return None
    _refuse(checkpoint.parent.parent, differences(_fixed(before), _fixed(now)))
    card.log_pool_changes(before, checkpoint, members)
    return before


def _fixed(of: Card) -> dict[str, Any]:
    """What of a card must be the same for a run to go on, beside what its spec says."""
    data = of.model_dump(mode="json", include={"base", "policy", "policy_options", "grammar", "reward", "limits"})
    for term in (data["reward"] or {}).get("terms", ()):
        term["label"] = term["term"]  # so that a difference names it
    return data


def _has_begun(folder: Path) -> bool:
    """Whether there is anything to go on from: a run may end before, by a model that cannot be loaded."""
    metrics = folder / METRICS
    return (metrics.is_file() and metrics.stat().st_size > 0) or Checkpoints(folder / CHECKPOINTS).latest is not None


def _compare(path: Path, now: Mapping[str, Any]) -> None:
    try:
        before = json.loads(path.read_bytes())["identity"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); start a new run in another folder (--out)") from None
    _refuse(path.parent, differences(before, now))


def _refuse(folder: Path, changes: Sequence[str]) -> None:
    if changes:
        raise ConfigError(
            f"the run in {folder} was made of something else: {'; '.join(changes)}; resume it with what it was "
            "made of, or start a new run in another folder (--out)"
        )


def _write(path: Path, identity: Mapping[str, Any], prepared: Prepared) -> None:
    data = {"identity": identity, "spec": prepared.spec.model_dump(mode="json"), "antiphon": __version__}
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=False, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
