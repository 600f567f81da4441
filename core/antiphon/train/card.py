"""Writes the card of trained weights, and the README that says the same to people; `antiphon.card` checks it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon import __version__, models
from antiphon.card import FILE, Base, Card, Member, Questions, Spoken
from antiphon.contracts import MemberView, Policy
from antiphon.errors import ConfigError
from antiphon.paths import PATH_OPTIONS
from antiphon.reward import Composition

if TYPE_CHECKING:
    from antiphon.train.spec import Data
    from antiphon.train.tasks import Tasks

README = "README.md"
_LIBRARIES = ("torch", "transformers", "peft", "verl")


def make(
    *,
    name: str,
    base: str | Path,
    policy: Policy,
    members: Sequence[MemberView],
    start: Base | None = None,
    reward: Composition | None = None,
    policy_options: Mapping[str, Any] | None = None,
    grammar_options: Mapping[str, Any] | None = None,
    data: Iterable[Questions] = (),
    algorithm: Mapping[str, Any] | None = None,
    rollouts: Mapping[str, Any] | None = None,
    demonstrations: Mapping[str, Any] | None = None,
    fine_tuning: Mapping[str, Any] | None = None,
    lora: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    randomised: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    steps: int = 0,
    results: Mapping[str, float] | None = None,
    license: str | None = None,
) -> Card:
    """A card of weights as they stand; see `antiphon.card.Card` for what is in it.

    Args:
        base: what was trained: a name in the model store, or a folder; its weights are hashed, once a process.
        policy: whose grammar, if it has one, the weights speak.
        policy_options: with which it was made; its grammar and its files are left out.
        grammar_options: with which that grammar was made.
        reward: as data, its alpha filled in.
        data: see `questions`.
    """
    folder = models.find(base)
    grammar = getattr(policy, "grammar", None)
    return Card(
        name=name,
        base=Base(name=folder.name, hash=weights_hash(folder)),
        start=start,
        policy=policy.name,
        policy_options={k: v for k, v in (policy_options or {}).items() if k not in ("grammar", *PATH_OPTIONS)},
        grammar=None if grammar is None else Spoken.of(grammar, _without_files(grammar_options or {})),
        pool=tuple(map(Member.of, members)),
        randomised=dict(randomised or {}),
        reward=reward,
        data=tuple(data),
        algorithm=dict(algorithm or {}),
        rollouts=dict(rollouts or {}),
        demonstrations=dict(demonstrations or {}),
        fine_tuning=dict(fine_tuning or {}),
        lora=None if lora is None else dict(lora),
        limits={key: value for key, value in (limits or {}).items() if value is not None},
        seeds=tuple(seeds),
        steps=steps,
        results=dict(results or {}),
        versions={"antiphon": __version__, **_versions()},
        license=license,
    )


def questions(data: Data, tasks: Tasks) -> Questions:
    """What a card says of a data set; of a file its name alone."""
    return Questions(dataset=Path(data.dataset).name, split=data.split, tasks=len(tasks.tasks), hash=tasks.hash)


@cache
def weights_hash(folder: Path) -> str:
    """SHA-256 of a model's weight files, in the order of their names.

    Raises:
        ConfigError: there are none.
    """
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not files:
        raise ConfigError(f"{folder} holds no weights (*.safetensors)")
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def write(folder: Path, card: Card) -> None:
    """Put `card.json` and `README.md` beside the weights; each is there whole or not at all."""
    for name, text in ((FILE, card.to_json()), (README, readme(card))):
        part = folder / f".{name}.part"
        part.write_text(text, "utf-8")
        os.replace(part, folder / name)


def readme(card: Card) -> str:
    """The card for people, with the metadata that model hubs read."""
    license = f"license: {card.license.lower()}\n" if card.license else ""
    return f"---\nlibrary_name: antiphon\nbase_model: {card.base.name}\n{license}---\n\n{described(card)}"


def described(card: Card) -> str:
    """The card as Markdown."""
    return "\n".join(_lines(card)) + "\n"


def _lines(card: Card) -> Iterator[str]:
    yield from (f"# {card.name}", "")
    kind = "A LoRA adapter" if card.lora and not card.lora.get("merged") else "Weights"
    how = "fine-tuned on demonstrations" if card.demonstrations else "trained"
    yield f"{kind} on {card.base.name}, {how} for the policy `{card.policy}` of Antiphon."
    yield from ("", '    antiphon ask --model FOLDER "…"', "")
    if card.grammar is not None:
        yield f"It speaks grammar {card.grammar}, and no other. Another pool than the one below may be asked."
    if card.results:
        yield from ("", "## What was measured", "", "| what | value |", "| --- | ---: |")
        yield from (f"| {_cell(name)} | {value:.4g} |" for name, value in card.results.items())
    yield from ("", "## Pool in training", "", "| member | USD per million tokens, in / out | description |")
    yield "| --- | ---: | --- |"
    for member in card.pool:
        price = member.price
        said = "unpriced" if price is None else f"{price.input or 0:g} / {price.output:g}"
        yield f"| {_cell(member.name)} | {said} | {_cell(member.descriptor.get('description', ''))} |"
    if card.randomised:
        yield from ("", f"From question to question changed: {_settings(card.randomised)}.")
    yield from ("", "## Training", "")
    yield f"- {card.steps} steps, seeds {', '.join(map(str, card.seeds)) or '-'}"
    if card.reward is not None:
        terms = " + ".join(f"{use.weight} x {use.term}" for use in card.reward.terms)
        yield f"- reward: {terms}, alpha {card.reward.alpha:g}"
    for one in card.data:
        split = f", split {one.split}" if one.split else ""
        yield f"- data: {one.dataset}{split}, {one.tasks} questions, SHA-256 {one.hash}"
    for title, settings in (
        ("policy", card.policy_options),
        ("demonstrations", card.demonstrations),
        ("fine-tuning", card.fine_tuning),
        ("rollouts of a step", card.rollouts),
        ("algorithm", card.algorithm),
        ("LoRA", card.lora),
        ("limits", card.limits),
    ):
        if settings:
            yield f"- {title}: {_settings(settings)}"
    yield f"- base: {card.base.name}, SHA-256 {card.base.hash}"
    if card.start is not None:
        yield f"- start: {card.start.name}, SHA-256 {card.start.hash}"
    yield f"- versions: {_settings(card.versions)}"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _versions() -> dict[str, str]:
    found = {}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def _without_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt's file becomes its text: the card must do without the machine that it was written on."""
    rest = dict(options)
    template = rest.pop("template", None)
    if template is not None:
        rest["prompt"] = Path(template).read_text("utf-8-sig")
    return rest
