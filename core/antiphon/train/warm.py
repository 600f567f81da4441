"""The supervised warm start: a teacher's demonstrations, learnt; weights and their card in the folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon import models
from antiphon.errors import ConfigError
from antiphon.generators._chat import Chat, load_chat
from antiphon.train import card
from antiphon.train.checkpoint import CHECKPOINTS, Checkpoints
from antiphon.train.demonstrations import Demonstrated, Speaker, demonstrate
from antiphon.train.folder import write_spec
from antiphon.train.local import network_of
from antiphon.train.lora import save_weights
from antiphon.train.sft import finetune
from antiphon.train.signals import run_cancellable
from antiphon.train.writers import open_writers

if TYPE_CHECKING:
    from antiphon.card import Card
    from antiphon.train.estimate import Estimate
    from antiphon.train.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Warmed:
    """What came of a warm start.

    Attributes:
        weights: the folder of the checkpoint.
        row: metrics of the last step.
    """

    weights: Path
    demonstrated: Demonstrated
    row: Mapping[str, Any]


def warm_start(
    prepared: Prepared,
    folder: Path,
    *,
    on_bound: Callable[[Estimate], None],
    on_played: Callable[[int, int], None],
    on_demonstrated: Callable[[Demonstrated, int], None],
    on_step: Callable[[Mapping[str, Any]], None],
) -> Warmed:
    """Have the teacher play, learn what it said, and save the weights.

    Args:
        on_bound: told the most that the teacher's playing can take, before anybody is asked.
        on_played: told how many of how many demonstrations have been played.
        on_demonstrated: told what there is to learn from, and in how many steps.
        on_step: told the metrics of each step: loss, grad_norm, lr, tokens.

    Raises:
        ConfigError: the folder holds weights already, or the teacher is not there or never right.
        KeyboardInterrupt: by Ctrl-C or a termination signal; no weights are kept then.
    """
    spec, checkpoints = prepared.spec, Checkpoints(folder / CHECKPOINTS)
    if checkpoints.latest is not None:
        raise ConfigError(f"{folder} holds weights already; choose another folder (--out)")
    chat = load_chat(models.find(spec.model.base), None)
    found = run_cancellable(demonstrate(prepared, chat, on_bound=on_bound, on_played=on_played))
    steps = spec.sft.total_steps(len(found.examples))
    on_demonstrated(found, steps)
    network = network_of(spec)
    write_spec(folder, prepared)
    rows: list[dict[str, Any]] = []
    with closing(open_writers(folder, spec.train.writers, last=-1, config=spec.model_dump(mode="json"))) as writers:
        writers.rollouts(0, found.trajectories)

        def told(step: int, measured: Mapping[str, float]) -> None:
            rows.append({"step": step, **measured})
            writers.step(rows[-1])
            on_step(rows[-1])

        finetune(network, found.examples, spec.sft, on_step=told)
    made = run_cancellable(_card(prepared, chat, folder.name, found, steps, rows[-1]))

    def fill(part: Path) -> None:
        save_weights(network, part)
        card.write(part, made)

    return Warmed(checkpoints.save(steps, fill), found, rows[-1])


async def _card(
    prepared: Prepared, chat: Chat, name: str, found: Demonstrated, steps: int, row: Mapping[str, Any]
) -> Card:
    async with AsyncExitStack() as resources:
        setup = prepared.setup(Speaker(chat, str), resources)
        return prepared.card(setup, name, steps=steps, results={"loss": row["loss"]}, demonstrated=found)
