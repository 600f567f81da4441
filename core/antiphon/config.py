"""The configuration: packaged defaults, antiphon.toml, environment and flags, merged in this order and validated."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, PrivateAttr, ValidationError

from antiphon.card import as_model
from antiphon.descriptor import Descriptor, Options, explain, first_fault
from antiphon.errors import ConfigError, DescriptorError, did_you_mean
from antiphon.log import warn
from antiphon.paths import anchored, map_paths
from antiphon.reward import Composition
from antiphon.tables import Defaults, LimitsConfig, ModelConfig, PluginsConfig, PoolConfig, RetryConfig, Table

T = TypeVar("T")

FILE_NAME = "antiphon.toml"
_VARIABLES = {
    "ANTIPHON_POOL": ("defaults", "pool"),
    "ANTIPHON_POLICY": ("defaults", "policy"),
    "ANTIPHON_MODEL": ("defaults", "model"),
    "ANTIPHON_GRAMMAR": ("defaults", "grammar"),
    "ANTIPHON_DATA": ("defaults", "data"),
    "ANTIPHON_MAX_COST": ("limits", "max_cost_usd"),
    "ANTIPHON_PLUGINS": ("plugins", "only"),
}
_READ_ELSEWHERE = ("ANTIPHON_CONFIG", "ANTIPHON_HOME")


class Config(Table):
    """Everything that can be configured. `load_config` makes one."""

    defaults: Defaults
    limits: LimitsConfig = LimitsConfig()
    retry: RetryConfig = RetryConfig()
    policies: dict[str, Options] = Field(default_factory=dict)
    grammars: dict[str, Options] = Field(default_factory=dict)
    models: dict[str, ModelConfig] = Field(default_factory=dict)
    pools: dict[str, PoolConfig] = Field(default_factory=dict)
    members: dict[str, dict[str, Any]] = Field(default_factory=dict)
    rewards: dict[str, Composition] = Field(default_factory=dict)
    plugins: PluginsConfig = PluginsConfig()

    _path: Path | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path | None:
        """The antiphon.toml that was read, or None."""
        return self._path

    @property
    def directory(self) -> Path:
        """Where antiphon.toml lies, else the working directory; the lock file lies there too."""
        return self._path.parent if self._path is not None else Path.cwd()

    def model(self, name: str | None = None) -> ModelConfig:
        """A model (default: `defaults.model`) with its path options expanded; a folder of weights is one too.

        Raises:
            ConfigError: nobody configured it, and it is no folder.
        """
        name = name or self.defaults.model
        if name not in self.models and (folder := Path(name).expanduser()).is_dir():
            return as_model(folder.resolve(), self.defaults.generator)
        found = _named(self.models, "model", name)
        owner = f"model {name!r}"
        options, grammars = self.expand(found.options, owner), self.expand(found.grammars, owner)
        return found.model_copy(update={"options": options, "grammars": grammars})

    def pool(self, name: str | None = None) -> PoolConfig:
        """A pool (default: `defaults.pool`), as configured.

        Raises:
            ConfigError: nobody configured it.
        """
        return _named(self.pools, "pool", name or self.defaults.pool)

    def reward(self, name: str) -> Composition:
        """A reward's composition.

        Raises:
            ConfigError: nobody configured it.
        """
        return _named(self.rewards, "reward", name)

    def policy_options(self, name: str) -> dict[str, Any]:
        """Options for a policy's factory, its path options expanded; none where nothing is configured."""
        return self.expand(self.policies.get(name, {}), f"policy {name!r}")

    def grammar_options(self, name: str) -> dict[str, Any]:
        """Options for a grammar's factory, its path options expanded; none where nothing is configured."""
        return self.expand(self.grammars.get(name, {}), f"grammar {name!r}")

    def expand(self, options: Mapping[str, Any], owner: str) -> dict[str, Any]:
        """Options with `~` and `${NAME}` expanded where they hold paths.

        Raises:
            ConfigError: a variable is not set; names it, the owner and how to set it.
        """

        def expanded(text: str) -> str:
            return os.path.expanduser(re.sub(r"\$\{(\w*)\}", lambda match: self._variable(match[1], owner), text))

        return map_paths(options, expanded)

    def _variable(self, name: str, owner: str) -> str:
        data = self.defaults.data if name == "ANTIPHON_DATA" else None
        value = data or os.environ.get(name)
        if not value:
            flag = "give --data DIR or " if name == "ANTIPHON_DATA" else ""
            raise ConfigError(
                f"{owner} needs ${{{name}}} for a path, and it is not set; {flag}set the environment variable {name}"
            )
        return value


@dataclass(frozen=True, slots=True)
class _Layer:
    """One source of settings. `names` gives single settings a better name than the source's (`ANTIPHON_POOL`)."""

    source: str
    data: Mapping[str, Any]
    names: Mapping[tuple[str, ...], str]

    def depth(self, path: tuple[str | int, ...]) -> int:
        """How far down this layer follows a path."""
        here: Any = self.data
        for index, part in enumerate(path):
            try:
                here = here[part]
            except (KeyError, IndexError, TypeError):
                return index
        return len(path)


def load_config(path: Path | str | None = None, *, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration; later layers win: packaged defaults, antiphon.toml, environment, overrides.

    Tables merge key by key, lists replace. Relative paths in antiphon.toml are relative to that file.

    Args:
        path: the file; default: $ANTIPHON_CONFIG, else ./antiphon.toml if it is there.
        overrides: flags, as nested tables like those of the file; None in it: not given.

    Raises:
        ConfigError: one clear sentence: the layer, the key, what is wrong.
    """
    packaged = resources.files("antiphon").joinpath("defaults.toml").read_bytes()
    layers = [_Layer("the packaged defaults", _parse(packaged, "the packaged defaults"), {})]
    file = _find(path)
    if file is not None:
        layers.append(_Layer(str(file), anchored(_read(file), file.parent.resolve()), {}))
    layers.append(_environment())
    layers.append(_Layer("flags", _given(overrides or {}), {}))
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer.data)
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(f"{_origin(error, layers)}: {explain(error, Config)}") from None
    for name, override in config.members.items():
        try:
            check_override(name, override)
        except DescriptorError as error:
            source = max(reversed(layers), key=lambda layer: layer.depth(("members", name))).source
            raise ConfigError(f"{source}: {error}") from None
    config._path = file
    return config


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """`high` over `low`: tables merge key by key, everything else replaces."""
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def check_override(name: str, override: Mapping[str, Any]) -> None:
    """Check a `[members."NAME"]` table by itself: what it leaves out is taken to be right.

    Raises:
        DescriptorError: names the member and the field.
    """
    stub: dict[str, Any] = {"name": "-", "description": "-", "price": {"output": 1.0}}
    if "latency" in override:
        stub["latency"] = {"first_token_s": 0, "tokens_per_s": 1}
    if not override.get("endpoints"):
        stub["model"] = "-"
    try:
        Descriptor.model_validate(merge(stub, override))
    except ValidationError as error:
        raise DescriptorError(f'members."{name}": {explain(error, Descriptor)}') from None


def _named(table: Mapping[str, T], kind: str, name: str) -> T:
    if name not in table:
        raise ConfigError(f"no {kind} is called {name!r}{did_you_mean(name, table)}")
    return table[name]


def _find(path: Path | str | None) -> Path | None:
    """The file to read; a file that was asked for must be there."""
    asked, why = (path, "") if path is not None else (os.environ.get("ANTIPHON_CONFIG"), " ($ANTIPHON_CONFIG)")
    if not asked:
        here = Path(FILE_NAME)
        return here if here.is_file() else None
    file = Path(asked).expanduser()
    if not file.is_file():
        what = "is a directory; name the file in it" if file.is_dir() else "is not there; check the path"
        raise ConfigError(f"the configuration {str(file)!r}{why} {what}")
    return file


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """A TOML file that a user named; `what` it describes.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8 or TOML.
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the TOML file of {what}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return _parse(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


def _parse(content: bytes, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source} is not UTF-8 (line {line}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None


def _environment() -> _Layer:
    """What ANTIPHON_* variables say; unknown ones may be a plugin's own. Empty ones count as not set, but for the list
    of plugins, where empty means none beside the built-ins."""
    data: dict[str, Any] = {}
    names: dict[tuple[str, ...], str] = {}
    for variable, (table, key) in _VARIABLES.items():
        text = os.environ.get(variable, "").strip()
        if not text and not (key == "only" and variable in os.environ):
            continue
        value: Any = text
        if key == "max_cost_usd":
            try:
                value = float(text)
            except ValueError:
                raise ConfigError(f"{variable}: give a number of USD, like 0.05") from None
        elif key == "only":
            value = [part.strip() for part in text.split(",") if part.strip()]
        data.setdefault(table, {})[key] = value
        names[(table, key)] = f"environment variable {variable}"
    _warn_of_misspelt_variables()
    return _Layer("the environment", data, names)


def _warn_of_misspelt_variables() -> None:
    known = [*_VARIABLES, *_READ_ELSEWHERE]
    for variable in os.environ:
        if variable.startswith("ANTIPHON_") and variable not in known:
            close = get_close_matches(variable, known, n=1, cutoff=0.9)
            if close:
                warn("antiphon.config", "unknown environment variable", variable=variable, did_you_mean=close[0])


def _given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides without what is None: flags that were not given."""
    return {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in overrides.items()
        if value is not None
    }


def _origin(error: ValidationError, layers: list[_Layer]) -> str:
    """Which layer the fault came from: the last of those that follow its path furthest down."""
    path = first_fault(error)["loc"]
    layer = max(reversed(layers), key=lambda layer: layer.depth(path))
    return layer.names.get(tuple(str(part) for part in path[:2]), layer.source)
