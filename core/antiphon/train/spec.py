"""What a training run is made of: a TOML file, checked before anything heavy is loaded."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from antiphon.config import merge, read_toml
from antiphon.descriptor import Options, explain
from antiphon.errors import ConfigError
from antiphon.models import CACHE_TOKENS, MAX_BATCH
from antiphon.paths import anchored, map_paths
from antiphon.reward import Composition
from antiphon.tables import Count, Flag, LimitsConfig, Table, Usd
from antiphon.train.collapse import CollapseSettings
from antiphon.train.environment import Randomise
from antiphon.train.lora import LoraSettings
from antiphon.train.settings import AlgorithmSettings
from antiphon.train.sft import SFTSettings

Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(strict=True, ge=0)]


class RunSettings(Table):
    """The table `[train]`: how much, and with what luck.

    Attributes:
        engine: what trains: `local` is one process with torch, on the CPU or one GPU; `verl` is verl on Ray with vLLM.
        steps: updates of the whole run.
        tasks: questions a step.
        samples: rollouts of each; what GRPO and RLOO compare.
        temperature: at which they are sampled, and log-probabilities are taken; below 1 they stray less from what the
            policy does at its best.
        seed: of the order of the questions, of every rollout's sampling, and of new weights.
        max_cost_usd: USD for all that the run asks of members, earlier parts of it included; for all that
            `antiphon train sft` asks.
        max_failed: the largest share of a step's rollouts that may fail by an error before the run stops.
        rollouts_every: steps; trajectories of their multiples are kept in the run's folder.
        out: the run's folder, relative to the working directory; default: `runs/` and the name of the spec's file.
        writers: what shows the metrics beside `metrics.jsonl`: tensorboard, wandb, mlflow; default: tensorboard where
            it is installed.
    """

    engine: str = "local"
    steps: Count = 100
    tasks: Count = 8
    samples: Count = 4
    temperature: Annotated[float, Field(gt=0)] = 1.0
    seed: Seed = 0
    max_cost_usd: Usd | None = None
    max_failed: Share = 0.25
    rollouts_every: Count = 10
    out: str | None = None
    writers: tuple[str, ...] | None = None


class Data(Table):
    """Questions with golden answers: `[data]`, and `[validation]` where it differs.

    Attributes:
        dataset: name of a data set, or the path of a JSONL or parquet file.
        split: short for the option `split` of a data set that has splits.
        options: of the data set's plugin.
        limit: the first so many.
    """

    dataset: str
    split: str | None = None
    options: Options = Field(default_factory=dict)
    limit: Count | None = None


class EnvironmentSettings(Table):
    """Who answers: `[environment]`.

    Attributes:
        pool: a configured pool; default: the configuration's.
        allow_unpriced: take members without a price; they count as free.
        memo: keep each reply in memory and give it again to an equal question to the same member: for members that
            always say the same (temperature 0). Recorded members are asked for each task.
        randomise: what of the pool is drawn anew for each task of each step; validation sees the pool as it is.
    """

    pool: str | None = None
    allow_unpriced: Flag | None = None
    memo: Flag = False
    randomise: Randomise = Randomise()


class PolicySettings(Table):
    """Who decides: `[policy]`; what is left out is the configuration's.

    Attributes:
        options: of the policy, over those of `[policies.NAME]` in the configuration.
        grammar_options: likewise, over `[grammars.NAME]`.
    """

    name: str | None = None
    grammar: str | None = None
    options: Options = Field(default_factory=dict)
    grammar_options: Options = Field(default_factory=dict)


class ModelSettings(Table):
    """The policy's model: `[model]`.

    Attributes:
        base: a name in the model store, or a Hugging Face folder.
        start: weights to start from: a folder of weights, or a run's: its best checkpoint, else its latest.
        lora: train low-rank adapters (their settings: `[lora]`); false: every weight.
        dtype: of the base; auto: as saved, float32 where the CPU has no arithmetic in 16 bits (verl: bfloat16).
        device: of torch: cpu, cuda, cuda:1.
        threads: torch threads; default: torch's own choice.
        max_batch: rollouts decoded at once.
        max_context: most tokens of a context; default: as many as the model was made for.
        cache_tokens: tokens of contexts whose keys and values are kept while a member is asked; less than all rollouts
            of a step come to: some are encoded again.
    """

    base: str
    start: str | None = None
    lora: Flag = True
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "cpu"
    threads: Count | None = None
    max_batch: Count = MAX_BATCH
    max_context: Count | None = None
    cache_tokens: Count = CACHE_TOKENS


class RewardSettings(Table):
    """What a rollout earns: `[reward]`.

    Attributes:
        name: of a composition in the configuration; default: paper.
        terms: the terms of one of your own, in place of a name.
        alpha: the weight of cost against outcome; default: the composition's own.
    """

    name: str | None = None
    terms: tuple[dict[str, Any], ...] | None = None
    alpha: Share | None = None

    @model_validator(mode="after")
    def _one_composition(self) -> Self:
        if self.terms is not None:
            if self.name is not None:
                raise ValueError("give the `name` of a composition, or the `terms` of one of your own")
            try:
                self.composition(lambda name: Composition(terms=()))
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self

    def composition(self, named: Callable[[str], Composition]) -> Composition:
        """The composition, its alpha filled in; `named` knows those of the configuration."""
        if self.terms is not None:
            return Composition.of({"terms": self.terms, "alpha": self.alpha or 0.0}, source="reward")
        found = named(self.name or "paper")
        return found if self.alpha is None else found.model_copy(update={"alpha": self.alpha})


class Validation(Table):
    """Greedy rollouts on a fixed slice, before the first step and then every so many: `[validation]`.

    Attributes:
        every: steps.
        tasks: the first so many questions.
        dataset, split, options: in place of those of `[data]`.
        best: the metric by which the best checkpoint is known; the highest counts.
    """

    every: Count = 20
    tasks: Count = 64
    dataset: str | None = None
    split: str | None = None
    options: Options | None = None
    best: Literal["em", "reward"] = "em"


class CheckpointSettings(Table):
    """`[checkpoints]`.

    Attributes:
        every: steps; what a kill can cost at most, beside the step in flight.
        keep: how many of the last are kept.
        keep_every: the weights of the multiples of so many steps are kept for good, as are the best.
    """

    every: Count = 1
    keep: Count = 2
    keep_every: Count | None = None


class Demonstrations(Table):
    """What `antiphon train sft` learns from: `[demonstrations]`.

    Attributes:
        teacher: `module:attr` of a teacher (see `antiphon.train.demonstrations`).
        tasks: the first so many questions, in the order of the seed.
        correct: keep only those that ended in a right answer and are well-formed.
    """

    teacher: str
    tasks: Count = 256
    correct: Flag = True


class TrainSpec(Table):
    """A whole run, checked by itself; whether its plugins, pools and files are there shows when it starts.

    Attributes:
        limits: over the configuration's `[limits]`, of each rollout.
        verl: keys of verl's own configuration, for `engine = "verl"`: all but what other tables decide.
    """

    train: RunSettings = RunSettings()
    data: Data
    environment: EnvironmentSettings = EnvironmentSettings()
    policy: PolicySettings = PolicySettings()
    model: ModelSettings
    lora: LoraSettings = LoraSettings()
    reward: RewardSettings = RewardSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    limits: dict[str, Any] = Field(default_factory=dict)
    validation: Validation | None = None
    checkpoints: CheckpointSettings = CheckpointSettings()
    collapse: CollapseSettings | None = CollapseSettings()
    demonstrations: Demonstrations | None = None
    sft: SFTSettings = SFTSettings()
    verl: dict[str, Any] = Field(default_factory=dict)

    @field_validator("limits")
    @classmethod
    def _limits_that_hold(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            LimitsConfig.model_validate(value)
        except ValidationError as error:
            raise ValueError(explain(error, LimitsConfig)) from None
        return value

    @property
    def validation_data(self) -> Data | None:
        """The questions of validation; None: there is none."""
        given, data = self.validation, self.data
        if given is None:
            return None
        return Data(
            dataset=given.dataset or data.dataset,
            split=given.split or data.split,
            options=data.options if given.options is None else given.options,
            limit=given.tasks,
        )

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on: all but how long, how fast and how it is kept and shown."""
        data: dict[str, Any] = self.model_dump(mode="json")
        for free in ("steps", "max_cost_usd", "max_failed", "rollouts_every", "out", "writers"):
            del data["train"][free]
        for free in ("threads", "max_batch", "cache_tokens", "device"):
            del data["model"][free]
        for free in ("validation", "checkpoints", "collapse", "demonstrations", "sft"):
            del data[free]
        data["verl"].pop("ray_kwargs", None)
        if not data["verl"]:
            del data["verl"]
        return data


def presets() -> dict[str, Path]:
    """Training files that come with the package, by the names that they are asked for."""
    folder = Path(str(resources.files("antiphon.train").joinpath("presets")))
    return {path.name.removesuffix(".toml"): path for path in sorted(folder.glob("*.toml"))}


def load_spec(path: Path, settings: Sequence[str] = ()) -> TrainSpec:
    """Read a spec.

    Args:
        path: a TOML file, or a preset's name.
        settings: `table.key=value`, over the file; a value is TOML (`8`, `true`, `"text"`) or a plain text.

    Raises:
        ConfigError: names the file, the key and what is wrong.
    """
    if not path.exists():
        path = presets().get(str(path), path)
    data = read_toml(path, "a training run")
    return make_spec(data, str(path), directory=path.parent.resolve(), settings=settings)


def make_spec(
    data: Mapping[str, Any], source: str, *, directory: Path | None = None, settings: Sequence[str] = ()
) -> TrainSpec:
    """A spec from plain data; `source` is what errors name, `directory` what relative paths are relative to.

    Raises:
        ConfigError: the key and what is wrong.
    """
    merged: Mapping[str, Any] = data if directory is None else _anchored(data, directory)
    for setting in settings:
        merged = merge(merged, _setting(setting))
    try:
        spec = TrainSpec.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, TrainSpec)}") from None
    return spec


def is_file(dataset: str) -> bool:
    """Whether a data set is named by its file."""
    return Path(dataset).suffix in (".jsonl", ".parquet")


def _anchored(data: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The file's own relative paths made absolute."""

    def near(text: str) -> str:
        return str(directory / text) if text.startswith(("./", "../")) or is_file(text) else text

    return map_paths(anchored(dict(data), directory), near, ("base", "start", "dataset"))


def _setting(text: str) -> dict[str, Any]:
    """`a.b=1` as the table `{"a": {"b": 1}}`."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: write table.key=value, like train.steps=50")
    table: Any = _value(value.strip())
    for part in reversed(parts):
        table = {part: table}
    return dict(table)


def _value(text: str) -> Any:
    for written in (text, json.dumps(text)):
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text
