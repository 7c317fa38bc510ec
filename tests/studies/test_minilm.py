"""The sentence encoder: networks so small that answers can be written down, and the real one."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ibrl_jax.errors import UserError
from ibrl_jax.studies import minilm
from ibrl_jax.studies.minilm import Bert


def tiny(layers: int, seed: int = 0) -> tuple[Bert, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    width, inner = 4, 6
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (5, width),
        "embeddings.position_embeddings.weight": (8, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for n in range(layers):
        at = f"encoder.layer.{n}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{at}.attention.{name}.weight"] = (width, width)
            shapes[f"{at}.attention.{name}.bias"] = (width,)
        shapes |= {f"{at}.intermediate.dense.weight": (inner, width)}
        shapes |= {f"{at}.intermediate.dense.bias": (inner,), f"{at}.output.dense.bias": (width,)}
        shapes |= {f"{at}.output.dense.weight": (width, inner)}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    weights = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    for name in norms:
        weights |= {f"{name}.weight": np.ones(width, np.float32)}
        weights |= {f"{name}.bias": np.zeros(width, np.float32)}
    config = {"num_hidden_layers": layers, "num_attention_heads": 2, "layer_norm_eps": 1e-12}
    return Bert(config, weights), weights


def normed(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def test_without_layers_a_text_is_the_mean_of_its_normed_embeddings() -> None:
    bert, w = tiny(0)
    x = normed(
        w["embeddings.word_embeddings.weight"][[3, 1]]
        + w["embeddings.position_embeddings.weight"][:2]
        + w["embeddings.token_type_embeddings.weight"][0]
    ).mean(0)
    assert bert.embed([[3, 1]])[0] == pytest.approx(x / np.linalg.norm(x), abs=1e-5)


def test_a_layer_that_adds_nothing_changes_nothing() -> None:
    bert, weights = tiny(1)
    for name, w in weights.items():
        if ".output.dense." in name:
            w[:] = 0.0
    plain, _ = tiny(0)
    assert bert.embed([[2, 0, 4]]) == pytest.approx(plain.embed([[2, 0, 4]]), abs=1e-5)


def test_a_text_does_not_depend_on_what_else_is_embedded() -> None:
    bert, _ = tiny(2)
    texts = [[1, 2, 3], [4, 0], [0, 0, 4], [4, 0]]
    together = bert.embed(texts)
    for one, text in zip(together, texts, strict=True):
        assert one == pytest.approx(bert.embed([text])[0], abs=1e-5)
    assert np.linalg.norm(together, axis=1) == pytest.approx(1.0)
    assert bert.embed([[3, 2, 1]])[0] != pytest.approx(together[0], abs=1e-3), "order counts"


def test_without_a_copy_there_is_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(minilm.VARIABLE, raising=False)
    monkeypatch.setattr(minilm, "_installed", lambda: None)
    assert minilm.encoder() is None


@pytest.mark.parametrize("kind", ["missing", "empty folder", "other zip", "damaged zip"])
def test_a_wrong_copy_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "copy"
    if kind == "empty folder":
        place.mkdir()
    elif kind == "other zip":
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("readme.txt", "nothing")
    elif kind == "damaged zip":
        place.write_bytes(b"PK no more")
    monkeypatch.setenv(minilm.VARIABLE, str(place))
    with pytest.raises(UserError, match="is no copy of all-MiniLM-L6-v2") as said:
        minilm.encoder()
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "file, content",
    [
        ("config.json", b"{"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b"[]"),
        ("model.safetensors", b"no tensors"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff\xfe"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: bytes
) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / file).write_bytes(content)
    monkeypatch.setenv(minilm.VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=rf"is no copy of all-MiniLM-L6-v2 \({file}: ") as said:
        minilm.encoder()
    assert "\n" not in str(said.value)


def stands_in(
    monkeypatch: pytest.MonkeyPatch,
    config: Mapping[str, Any] = {},
    weights: Mapping[str, np.ndarray] = {},
    without: str = "",
) -> None:
    """What is read is the model's configuration and shapes but for these."""
    tensors = {name: np.broadcast_to(np.float32(0), s) for name, s in minilm.shapes().items()}
    tensors = {n: w for n, w in {**tensors, **weights}.items() if n != without}
    read = SimpleNamespace(encode_batch=lambda texts: [SimpleNamespace(ids=[1]) for _ in texts])
    values = {**minilm._CONFIG, **config}
    monkeypatch.setenv(minilm.VARIABLE, "copy")
    monkeypatch.setattr(minilm, "_read", lambda place: (values, tensors, read))


NORM = "encoder.layer.5.output.LayerNorm.bias"


@pytest.mark.parametrize(
    "other, says",
    [
        ({"config": {"hidden_size": 768}}, "its config.json has hidden_size 768, not 384"),
        ({"config": {"num_attention_heads": 6}}, "has num_attention_heads 6, not 12"),
        ({"config": {"layer_norm_eps": None}}, "has layer_norm_eps None, not 1e-12"),
        ({"without": NORM}, f"it has no tensor {NORM}"),
        ({"weights": {NORM: np.zeros(768)}}, f"its tensor {NORM} is \\(768,\\), not \\(384,\\)"),
    ],
)
def test_another_network_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], says: str
) -> None:
    stands_in(monkeypatch, **other)
    with pytest.raises(UserError, match=f"copy holds another network than .*{says}"):
        minilm.encoder()


def test_nor_is_one_of_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    stands_in(monkeypatch)
    alike = SimpleNamespace(embed=lambda ids: np.tile([1.0, 0.0], (len(ids), 1)))
    monkeypatch.setattr(minilm, "Bert", lambda config, weights: alike)
    with pytest.raises(UserError, match="'That is a happy dog' 1.000 alike, not 0.695"):
        minilm.encoder()


def test_the_published_model_gives_its_published_similarities() -> None:
    """Those of the hosted model for these four sentences."""
    embed = minilm.encoder()
    if embed is None:
        pytest.skip(
            "no copy of all-MiniLM-L6-v2: IBRL_MINILM is not set, its package not installed"
        )
    happy, *others = embed(
        [
            "That is a happy person",
            "That is a happy dog",
            "That is a very happy person",
            "Today is a sunny day",
        ]
    )
    found = np.array(others) @ happy
    assert found == pytest.approx([0.6945773, 0.9429150, 0.2568761], abs=1e-5)
