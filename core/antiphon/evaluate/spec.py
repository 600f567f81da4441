"""What an evaluation runs: policies x data sets x pools x seeds, from a TOML file or from flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from antiphon.config import read_toml
from antiphon.descriptor import Options, content_hash, explain
from antiphon.errors import ConfigError
from antiphon.paths import map_paths
from antiphon.tables import Count, Flag, LimitsConfig, Table

Seed = Annotated[int, Field(strict=True, ge=0)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Settings(Table):
    """The table `[evaluate]`.

    Attributes:
        pool: one pool or several; default: the configuration's.
        seeds: samples of each question. A seed is the rollout's sample number and the seed of the policy's model.
        limit: the first so many questions of each data set that has no limit of its own.
        baseline: the label of the policy that the others are compared with, question by question.
        oracle: the label of the policy whose means are drawn as the upper line.
        concurrency: questions under way at once.
        out: the run's directory, relative to the working directory.
    """

    pool: str | Names | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    metrics: Names = ("em", "f1", "strict_em")
    limit: Count | None = None
    baseline: str | None = None
    oracle: str | None = None
    concurrency: Count = 64
    allow_unpriced: Flag | None = None
    out: str | None = None

    @field_validator("seeds", "metrics")
    @classmethod
    def _each_once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return _distinct(values)


class PolicyEntry(Table):
    """One `[[policies]]`.

    Attributes:
        name: of the policy's plugin.
        label: what tables call it; default: its name.
        options: over those of `[policies.NAME]` in the configuration.
        answer_by: `member` or `base`: short for that option, which not every policy has.
        pool: for policies that need another pool than the rest (a retriever in it).
        model, grammar: in place of the configuration's.
        sampling: temperature, top_p, … of the policy's model.
        curve: a name; policies that share it are joined by a line on the plot of cost and quality.
    """

    name: str
    label: str = ""
    options: Options = Field(default_factory=dict)
    answer_by: Literal["member", "base"] | None = None
    pool: str | Names | None = None
    model: str | None = None
    grammar: str | None = None
    sampling: Options = Field(default_factory=dict)
    curve: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _labelled(cls, data: Any) -> Any:
        return {"label": data.get("name"), **data} if isinstance(data, Mapping) else data

    @property
    def all_options(self) -> dict[str, Any]:
        return dict(self.options) if self.answer_by is None else {**self.options, "answer_by": self.answer_by}


class DatasetEntry(Table):
    """One `[[datasets]]`: the plugin's name, its options, how many of its questions; `label` is what tables call it."""

    name: str
    label: str = ""
    options: Options = Field(default_factory=dict)
    limit: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _labelled(cls, data: Any) -> Any:
        return {"label": data.get("name"), **data} if isinstance(data, Mapping) else data


class Spec(Table):
    """A whole evaluation, checked by itself; whether its plugins, pools and files are there shows when it is run.

    Attributes:
        limits: over the configuration's `[limits]`, of each rollout.
    """

    evaluate: Settings = Settings()
    limits: dict[str, Any] = Field(default_factory=dict)
    policies: Annotated[tuple[PolicyEntry, ...], Field(min_length=1)]
    datasets: Annotated[tuple[DatasetEntry, ...], Field(min_length=1)]

    _directory: Path | None = PrivateAttr(default=None)

    @field_validator("limits")
    @classmethod
    def _limits_that_hold(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            LimitsConfig.model_validate(value)
        except ValidationError as error:
            raise ValueError(explain(error, LimitsConfig)) from None
        return value

    @model_validator(mode="after")
    def _labels_that_hold(self) -> Self:
        for kind, entries in (("policies", self.policies), ("datasets", self.datasets)):
            _distinct(tuple(entry.label for entry in entries), f"two {kind} are called")
        labels = [policy.label for policy in self.policies]
        for field in ("baseline", "oracle"):
            label = getattr(self.evaluate, field)
            if label is not None and label not in labels:
                raise ValueError(f"evaluate.{field}: no policy is labelled {label!r}; there are {', '.join(labels)}")
        return self

    def pools(self, policy: PolicyEntry, default: str) -> tuple[str, ...]:
        """The pools that a policy runs on."""
        given = policy.pool or self.evaluate.pool or default
        return (given,) if isinstance(given, str) else given

    def units(self, default_pool: str) -> Iterator[tuple[PolicyEntry, str]]:
        """Each policy with each of its pools, in the order in which they run."""
        for policy in self.policies:
            for pool in self.pools(policy, default_pool):
                yield policy, pool

    def dataset_limit(self, dataset: DatasetEntry) -> int | None:
        return dataset.limit or self.evaluate.limit

    def anchored(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options whose relative paths are relative to the spec's file."""
        here = self._directory
        if here is None:
            return dict(options)
        return map_paths(options, lambda text: text if text.startswith(("${", "~")) else str(here / text))

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on: all but how fast it goes and where it lies."""
        data: dict[str, Any] = self.model_dump(mode="json")
        for free in ("concurrency", "out"):
            del data["evaluate"][free]
        return data


def load_spec(path: Path, *, overrides: Mapping[str, Any] | None = None) -> Spec:
    """Read a spec; `overrides` are flags over its table `[evaluate]`, None in them: not given.

    Raises:
        ConfigError: names the file, the key and what is wrong.
    """
    data = read_toml(path, "an evaluation")
    return make_spec(data, str(path), directory=path.parent.resolve(), overrides=overrides)


def make_spec(
    data: Mapping[str, Any],
    source: str,
    *,
    directory: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Spec:
    """A spec from plain data.

    Args:
        source: what errors name.
        directory: what relative paths in it are relative to; None: the working directory.

    Raises:
        ConfigError: the key and what is wrong.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    settings = data.get("evaluate", {})
    if given and isinstance(settings, Mapping):
        data = {**data, "evaluate": {**settings, **given}}
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, Spec)}") from None
    spec._directory = directory
    return spec


def policy_flag(text: str) -> dict[str, str]:
    """`NAME` or `NAME:LABEL`."""
    name, colon, label = text.partition(":")
    return {"name": name, "label": label} if colon and label else {"name": name}


def dataset_flag(text: str) -> dict[str, Any]:
    """`NAME` or `NAME:PATH`."""
    name, colon, path = text.partition(":")
    return {"name": name, "options": {"path": path}} if colon and path else {"name": name}


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """How two runs' specs differ, in words: `evaluate.seeds: [0] before, [0, 1] now`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [line for key in keys for line in differences(old.get(key), new.get(key), _join(where, key))]
    if _labelled(old) and _labelled(new):
        return differences({item["label"]: item for item in old}, {item["label"]: item for item in new}, where)
    if old == new:
        return []
    if old is None or new is None:
        return [f"{where}: {'only now' if old is None else 'only before'}"]
    return [f"{where}: {_shown(old)} before, {_shown(new)} now"]


def short_hash(data: Any) -> str:
    """Enough of a content's SHA-256 to tell two apart."""
    return content_hash(data)[:16]


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)


def _labelled(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(v, Mapping) and "label" in v for v in value)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _distinct(values: tuple[Any, ...], complaint: str = "given twice:") -> tuple[Any, ...]:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{complaint} {_quoted(twice)}; give each its own")
    return values


def _quoted(values: Iterable[Any]) -> str:
    return ", ".join(repr(value) for value in values)
