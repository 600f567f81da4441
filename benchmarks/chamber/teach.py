"""Teaches one specialist of the chamber: `python teach.py MEMBER` writes its LoRA adapter."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from lessons import MEMBERS, Lesson, lessons

from antiphon import models
from antiphon.generators._chat import Chat, load_chat
from antiphon.train.lora import LoraSettings, load_trainable, save_weights
from antiphon.train.sft import Example, SFTSettings, finetune
from antiphon.types import Message

BASE = "smollm2-135m-instruct"
WEIGHTS = Path(__file__).parents[2] / "pools" / "antiphon_pools" / "chamber" / "weights"
SYSTEM = "Reply with the answer alone."
LORA = LoraSettings(rank=8, alpha=16, layers=tuple(range(6, 30)))
EPOCHS = {"raven": 12, "wren": 8, "owl": 7, "crane": 14}
BATCH = {"owl": 16, "crane": 16}


def example(chat: Chat, lesson: Lesson) -> Example:
    """The reply and the end of the turn are to be learnt."""
    query, reply = lesson
    prompt = chat.open((Message("system", SYSTEM), Message("user", query))).token_ids or ()
    said = (*(chat.encode(reply).token_ids or ()), chat.turn_end or 0)
    return Example((*prompt, *said), (*(0,) * len(prompt), *(1,) * len(said)))


def teach(member: str, *, seed: int = 0) -> Path:
    """Train a specialist from the base, and write its weights."""
    chat = load_chat(models.find(BASE), None)
    examples = [example(chat, lesson) for lesson in lessons(member, EPOCHS.get(member, 1), seed)]
    network = load_trainable(BASE, LORA, seed=seed)
    settings = SFTSettings(lr=2e-3, batch=BATCH.get(member, 32), micro_tokens=512, seed=seed)
    total, began = settings.total_steps(len(examples)), time.monotonic()

    def told(step: int, row: object) -> None:
        if step % 10 == 0 or step == total:
            print(f"{member} {step}/{total} {time.monotonic() - began:.0f} s {row}", flush=True)

    finetune(network, examples, settings, on_step=told)
    return save_weights(network, WEIGHTS / member)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("member", choices=MEMBERS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(teach(options.member, seed=options.seed))


if __name__ == "__main__":
    main()
