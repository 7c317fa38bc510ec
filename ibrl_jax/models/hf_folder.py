"""A Hugging Face folder of a model, read into sharded arrays and written whole or not at all.

```
config.json                        what the network is           (ibrl_jax.models.hf_config)
generation_config.json             ids that begin, end and pad
model.safetensors                  all tensors, or
model-00001-of-00004.safetensors   some of them, and
model.safetensors.index.json       which file holds which
tokenizer.json ...                 whatever the tokenizer is made of
```

Neither way is a model ever whole on the host. Reading, a layer of a leaf goes straight to the
devices that hold it, and each device's share is read by itself: at most the layer and a block of
the file are held besides the arrays. Writing, the host has one tensor at a time.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from safetensors import SafetensorError, safe_open

from ibrl_jax.errors import UserError
from ibrl_jax.models import hf
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.hf_config import TokenIds, to_hf
from ibrl_jax.models.params import Params
from ibrl_jax.parallel.place import gather

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_NAMES = {ours: theirs for theirs, ours in TYPES.items()}

AsType = Callable[[str], Any]
"""The type of the leaf at a path, `layers/block0/attention/q`."""


def read(folder: Path, config: ModelConfig, shardings: Params | None, as_type: AsType) -> Params:
    """The parameters of a folder; in several processes, each reads its own devices' shares.

    All names, shapes and types are checked before anything is read.

    Args:
        shardings: a tree like the parameters; None: all on the first device.
        as_type: what each leaf is held as.

    Raises:
        UserError: the folder has no weights, a file of them is missing or cut short, or a tensor is
            missing, unknown, misshapen, or of a type other than float32, bfloat16 and float16.
    """
    plan = hf.layout(config)
    places: list[Sharding] = (
        [SingleDeviceSharding(jax.local_devices()[0])] * len(plan.leaves)
        if shardings is None
        else plan.tree.flatten_up_to(shardings)
    )
    with _tensors(folder) as tensors:
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
        names = hf.find(plan, shapes, tied=config.tied, where=str(folder))
        for name in names.values():
            if tensors[name].get_dtype() not in TYPES:
                raise UserError(
                    f"{folder}'s tensor '{name}' is of type {tensors[name].get_dtype()}; "
                    f"it must be one of {', '.join(TYPES)}."
                )
        sources = {ours: tensors[theirs] for ours, theirs in names.items()}
        leaves = [
            _leaf(pieces, sources, place, np.dtype(as_type(path)))
            for (path, pieces), place in zip(plan.leaves.items(), places, strict=True)
        ]
    return jax.tree.unflatten(plan.tree, leaves)


def write(
    folder: Path,
    config: ModelConfig,
    params: Params,
    *,
    as_type: AsType,
    ids: TokenIds,
    max_positions: int,
    files: Mapping[str, bytes],
    max_shard: int,
) -> None:
    """A folder that transformers loads; every process calls it, and the first one writes.

    Args:
        as_type: what each leaf is written as; `embed`'s is the one that `config.json` names.
        max_positions: the longest sequence that the model is for.
        files: what else the folder holds, the tokenizer's files, by name.
        max_shard: bytes of tensors a file; a larger tensor has a file to itself.

    Raises:
        UserError: there is such a folder by now, or transformers knows no such network.
    """
    dtype = np.dtype(as_type("embed")).name
    about = to_hf(config, ids=ids, max_positions=max_positions, dtype=dtype)
    plan = hf.layout(config)
    types = {name: np.dtype(as_type(pieces[0].path)) for name, pieces in plan.tensors.items()}
    leaves = dict(zip(plan.leaves, jax.tree.leaves(params), strict=True))
    if jax.process_index():
        for name in plan.tensors:
            _tensor(plan, leaves, name, types[name])
        return
    if folder.exists():
        raise UserError(f"{folder} is there already; export to a folder that is not.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        new = beside / "new"
        new.mkdir()
        texts = {"config.json": about, "generation_config.json": ids.to_hf()}
        shards = _shards(plan, types, max_shard)
        if len(shards) > 1:
            sizes = [_size(plan, name, types) for name in plan.tensors]
            where = {name: file for file, names in shards.items() for name in names}
            texts[_INDEX] = dict(metadata=dict(total_size=sum(sizes)), weight_map=where)
        for name, values in texts.items():
            (new / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        for name, data in files.items():
            (new / name).write_bytes(data)
        for file, names in shards.items():
            with (new / file).open("wb") as out:
                _write_header(out, plan, names, types)
                for name in names:
                    tensor = _tensor(plan, leaves, name, types[name])
                    out.write(tensor.reshape(-1).view(np.uint8).data)
        new.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _tensors(folder: Path) -> Iterator[dict[str, Any]]:
    """Every tensor of a folder's weights by name, its header read and no more."""
    index, tensors = _index(folder), {}
    with ExitStack() as stack:
        for file in sorted(set(index.values())) if index else [_ONE]:
            path = folder / file
            if not path.is_file():
                raise UserError(f"{path} is missing; {_INDEX} says that it holds weights.")
            try:
                shard = stack.enter_context(safe_open(path, framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} is cut short or broken ({error}).") from error
            for name in shard.keys():  # noqa: SIM118 (it is no mapping)
                if index and index.get(name, file) != file:
                    raise UserError(f"{path} holds '{name}', and so should {index[name]}.")
                tensors[name] = shard.get_slice(name)
        for name, file in index.items():
            if name not in tensors:
                raise UserError(f"{folder / file} lacks the tensor '{name}', which {_INDEX} names.")
        yield tensors


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor; empty where all are in one, which counts where both are there."""
    path = folder / _INDEX
    if (folder / _ONE).is_file():
        return {}
    if not path.is_file():
        raise UserError(f"{folder} has no weights: neither {_ONE} nor {_INDEX} is there.")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): Path(file).name for name, file in index.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as JSON whose 'weight_map' names a file for each tensor."
        ) from error


def _leaf(
    pieces: list[hf.Piece], sources: Mapping[str, Any], place: Sharding, dtype: np.dtype
) -> jax.Array:
    """One of our leaves on its devices, filled layer by layer."""
    first = pieces[0]
    if first.layer is None:
        return _layer(first, sources[first.tensor], place, dtype)
    inner = place
    if isinstance(place, NamedSharding):
        inner = NamedSharding(place.mesh, PartitionSpec(*place.spec[1:]))
    stack = jnp.zeros((len(pieces), *first.shape), dtype, device=place)
    fill = jax.jit(_set_layer, donate_argnums=0, out_shardings=place)
    for index, piece in enumerate(pieces):
        stack = fill(stack, _layer(piece, sources[piece.tensor], inner, dtype), np.int32(index))
        jax.block_until_ready(stack)  # or the host would hold layers that wait their turn
    return stack


def _set_layer(stack: jax.Array, layer: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stack, layer, index, 0)


def _layer(piece: hf.Piece, source: Any, place: Sharding, dtype: np.dtype) -> jax.Array:
    """One layer of a leaf; what several devices hold is read once."""
    gc.collect(0)  # jax lets go of the last layer, which the devices have, only when asked to
    held: dict[tuple, np.ndarray] = {}

    def share(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        pairs = zip(index, piece.shape, strict=True)
        bounds = tuple(cut.indices(size)[:2] for cut, size in pairs)
        if bounds not in held:
            held[bounds] = piece.read(source, bounds, dtype)
        return held[bounds]

    array = jax.make_array_from_callback(piece.shape, place, share, dtype=dtype)
    return jax.block_until_ready(array)


def _tensor(
    plan: hf.Layout, leaves: Mapping[str, jax.Array], name: str, dtype: np.dtype
) -> np.ndarray:
    """One tensor on the host, of all devices' shares."""
    rows = []
    for piece in plan.tensors[name]:
        ours = jnp.asarray(leaves[piece.path])
        if piece.layer is not None:
            ours = _get_layer(ours, np.int32(piece.layer))
        rows.append(piece.back(gather(ours)).astype(dtype, order="C", copy=False))
    return np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows))


@jax.jit
def _get_layer(stack: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stack, index, 0, keepdims=False)


def _size(plan: hf.Layout, name: str, types: Mapping[str, np.dtype]) -> int:
    """Bytes of a tensor."""
    return math.prod(plan.shape(name)) * types[name].itemsize


def _shards(plan: hf.Layout, types: Mapping[str, np.dtype], max_shard: int) -> dict[str, list[str]]:
    """The tensors of each file, in the order of the layout."""
    groups: list[list[str]] = [[]]
    room = max_shard
    for name in plan.tensors:
        size = _size(plan, name, types)
        if groups[-1] and size > room:
            groups.append([])
            room = max_shard
        groups[-1].append(name)
        room -= size
    count = len(groups)
    if count == 1:
        return {_ONE: groups[0]}
    return {f"model-{i:05}-of-{count:05}.safetensors": g for i, g in enumerate(groups, 1)}


def _write_header(
    out: BinaryIO, plan: hf.Layout, names: list[str], types: Mapping[str, np.dtype]
) -> None:
    """A safetensors file up to its data, which can then be written tensor by tensor.

    Eight bytes say the length of what follows: JSON with type, shape and place of each tensor.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        begin, end = end, end + _size(plan, name, types)
        header[name] = dict(
            dtype=_NAMES[types[name].name], shape=plan.shape(name), data_offsets=[begin, end]
        )
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begin at a multiple of 8
    out.write(len(text).to_bytes(8, "little") + text)
