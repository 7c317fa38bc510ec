"""One decoder for the Llama, Qwen2.5, Qwen3 and Qwen3.5 families.

    h <- h + mixer(norm(h)),   h <- h + down(silu(gate n) * up n)  with  n = norm(h)

A mixer is attention over all tokens (`full`) or a Gated DeltaNet (`delta`). RMSNorm, the rotation
of queries and keys, softmax, delta states and logits are computed in float32; matrix products and
caches in `config.dtype`. The layers of one period are a module; the periods are stacked on a
leading axis ("layers") by `nn.scan`.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from ibrl_jax.models.attention import Attention, Context, causal, taken
from ibrl_jax.models.cache import KV, DeltaState, LayerCache
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.delta import GatedDelta
from ibrl_jax.models.layers import Mlp, RMSNorm, named, rotation
from ibrl_jax.models.lora import LoraSettings, fan_in
from ibrl_jax.parallel.rules import constrain

Variables = dict[str, Any]
"""Collections of parameters by name: `params`, and `lora` where there are adapters."""


class Block(nn.Module):
    """One layer: new hidden states, and its cache with the tokens in it."""

    config: ModelConfig
    lora: LoraSettings | None
    kind: str

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        context: Context,
        cache: LayerCache | None,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, LayerCache | None]:
        """[B, T, D] of [B, T, D]; [B, P, D] with `at` [B, P], which only attention can do."""
        c = self.config
        normed = RMSNorm(c.norm_eps, "embed", c.norm_offset, name="mixer_norm")(x)
        if self.kind == "full":
            assert cache is None or isinstance(cache, KV)
            with jax.named_scope("attention"):
                mixer = Attention(c, self.lora, name="attention")
                mixed, after = mixer(normed, context, cache, at)
            if at is not None:
                x = taken(x, at)
        else:
            assert at is None
            assert cache is None or isinstance(cache, DeltaState)
            with jax.named_scope("delta"):
                delta = GatedDelta(c, self.lora, name="delta")
                mixed, after = delta(normed, context.segment_ids, context.real, cache)
        x = x + mixed
        with jax.named_scope("mlp"):
            normed = RMSNorm(c.norm_eps, "embed", c.norm_offset, name="mlp_norm")(x)
            x = x + Mlp(c, self.lora, name="mlp")(normed)
        return constrain(x, "batch", "time", None), after


# Flax makes a class for each of these by taking the base's fields away for a moment, so two threads
# that trace must not make any: they stand here, and `_scanned` makes one at a time.
_REMAT = nn.remat(Block)
_REMAT_IN_SCAN = nn.remat(Block, prevent_cse=False)


class Period(nn.Module):
    """The layers of one period, as a scan's body; it keeps no caches."""

    config: ModelConfig
    lora: LoraSettings | None

    @nn.compact
    def __call__(self, x: jax.Array, context: Context) -> tuple[jax.Array, None]:
        block = _REMAT_IN_SCAN if self.config.remat else Block
        for index, kind in enumerate(self.config.period):
            x, _ = block(self.config, self.lora, kind, name=f"block{index}")(x, context, None)
        return x, None


class Decoder(nn.Module):
    """The network.

    Parameters: `embed` [V, D], `layers/block<j>` stacked [L / p, ...], `norm` [D], `head` [D, V]
    unless tied. With `lora`, a collection of that name holds the adapters.
    """

    config: ModelConfig
    lora: LoraSettings | None

    def setup(self) -> None:
        c = self.config
        embed = nn.initializers.normal(c.hidden**-0.5)
        self.embed = self.param("embed", named(embed, "vocab", "embed"), (c.vocab_size, c.hidden))
        self.layers = _periods(c, self.lora)
        self.norm = RMSNorm(c.norm_eps, "embed", c.norm_offset)
        if not c.tied:
            shape = (c.hidden, c.vocab_size)
            head = nn.initializers.normal(fan_in(shape, 1))
            self.head = self.param("head", named(head, "embed", "vocab"), shape)

    def __call__(
        self, ids: jax.Array, positions: jax.Array, segment_ids: jax.Array | None
    ) -> jax.Array:
        """Final hidden states [B, T, D] of tokens [B, T], for training and scoring (no cache).

        Args:
            ids: [B, T].
            positions: [B, T]; within a segment they ascend with the index.
            segment_ids: [B, T]; a token sees its own segment alone, and 0 is padding. None: one
                segment a row.
        """
        context = among_themselves(ids, positions, segment_ids, self.config)
        x, _ = self.layers(self.embed_tokens(ids), context)
        return self.norm(x)

    def embed_tokens(self, ids: jax.Array) -> jax.Array:
        """The first hidden states [B, T, D]."""
        return constrain(self.embed[ids].astype(self.config.dtype), "batch", "time", None)

    def final_norm(self, x: jax.Array) -> jax.Array:
        """Final hidden states [B, T, D] of what the last layer gives."""
        return self.norm(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Next-token scores [..., V] in float32 of final hidden states [..., D]."""
        kernel = self.embed.T if self.config.tied else self.head
        return jnp.einsum(
            "...d,dv->...v",
            hidden,
            kernel.astype(hidden.dtype),
            preferred_element_type=jnp.float32,
        )


def among_themselves(
    ids: jax.Array, positions: jax.Array, segment_ids: jax.Array | None, config: ModelConfig
) -> Context:
    """What the layers share where tokens [B, T] see one another, and no cache."""
    if segment_ids is None:
        segment_ids = jnp.ones_like(ids)
    cos, sin = rotation(positions, config)
    return Context(
        cos=cos,
        sin=sin,
        mask=causal(segment_ids),
        entries=None,
        segment_ids=segment_ids,
        real=None,
    )


def hidden_at(
    model: Decoder,
    variables: Variables,
    ids: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array | None,
    at: jax.Array,
) -> jax.Array:
    """Final hidden states [B, P, D] of the tokens `at` [B, P]; arguments else as the network's.

    Where the layers are unrolled and the last is attention, it is computed for those tokens alone
    (all at once, not in blocks), which in a network of few layers is a large part of the whole.
    Elsewhere all hidden states are, and it is the head that is spared.
    """
    c = model.config
    if c.unroll is not True or c.kind(c.layers - 1) != "full":
        return taken(cast(Any, model.apply(variables, ids, positions, segment_ids)), at)
    context = among_themselves(ids, positions, segment_ids, c)
    x: Any = model.apply(variables, ids, method=Decoder.embed_tokens)
    block = _REMAT if c.remat else Block
    for i, layer in enumerate(_layers(c, variables)):
        chosen = at if i == c.layers - 1 else None
        x, _ = block(c, model.lora, c.kind(i)).apply(layer, x, context, None, chosen)
    return cast(Any, model.apply(variables, x, method=Decoder.final_norm))


def _layers(config: ModelConfig, variables: Variables) -> list[Variables]:
    """Each layer's variables. `split`, since the gradient of a slice is as large as the stack."""
    p = len(config.period)

    def apart(stack: jax.Array) -> list[jax.Array]:
        pieces = jax.lax.split(stack, [1] * config.periods, axis=0)
        return [piece[0] for piece in pieces]

    layers: list[Variables] = [{} for _ in range(config.layers)]
    for name, tree in variables.items():
        for block, stacked in tree.get("layers", {}).items():
            leaves, structure = jax.tree.flatten(stacked)
            cut = [apart(leaf) for leaf in leaves]
            for n in range(config.periods):
                mine = structure.unflatten([pieces[n] for pieces in cut])
                layers[n * p + int(block.removeprefix("block"))][name] = mine
    return layers


def _periods(config: ModelConfig, lora: LoraSettings | None) -> Any:
    """All layers, their parameters stacked; called with (x, context)."""
    unroll = config.periods if config.unroll is True else max(1, int(config.unroll))
    with _MAKING:
        scanned = _scanned(config.periods, unroll)
    return scanned(config, lora)


_MAKING = Lock()


@cache
def _scanned(length: int, unroll: int) -> Any:
    """The class of so many periods; called under `_MAKING`."""
    return nn.scan(
        Period,
        variable_axes={"params": 0, "lora": 0},
        split_rngs={"params": True},
        in_axes=cast(Any, nn.broadcast),
        length=length,
        unroll=unroll,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
