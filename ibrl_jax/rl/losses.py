"""The token loss: clipped GRPO, KL to the reference, entropy bonus (paper, sections 4.1 and 5.1).

For a token t of row b that is trained on, with advantage A_b, r = exp(logp - behaviour_logp):

    l(b, t) = -i min(r A_b, clip(r, 1 - clip_low, 1 + clip_high) A_b) + kl k3 - entropy H
    k3 = exp(d) - d - 1,  d = reference_logp - logp
    i = importance(b, t), 1 for a batch that the present parameters sampled
    L = sum_(b, t) w(b, t) l(b, t) / C

    normalise    w(b, t)           C
    tokens       1                 trained tokens
    sequences    1 / tokens of b   rows with a trained token
    constant     1 / constant      rows with a trained token

all times the row's weight; where views are packed, a segment is what is called a row here. Sum and
C are returned apart and summed over the whole batch before the one division, so micro-batches,
padding rows, padding tokens and packing change neither the loss nor its gradient.

A token not trained on may hold anything, NaN included: inputs are replaced before they are used,
and results once more, so that neither the value nor the gradient sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp

from ibrl_jax.dialogue.views import Segment
from ibrl_jax.errors import UserError
from ibrl_jax.rl.batches import RoleBatch

LARGEST_EXPONENT = 20.0
"""Exponents are held below this: e^20 = 4.9e8, far outside any clip range, far inside fp32's."""

SUMS = ("surrogate", "kl", "entropy", "clip_low", "clip_high", "logp", "logp_gap")
PEAKS = ("ratio_deviation_max", "logp_gap_max")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What is compiled into the loss.

    `normalise`: the module's table; `constant` is in tokens, and read in that mode alone. `mask`:
    `own` trains on what this role's policy sampled; `all` on the counterpart's tokens too.
    `kl_on_degenerate`: whether rows of a group without signal (advantage 0) still feel the KL and
    the entropy bonus. Either way they count in C.
    """

    normalise: Literal["tokens", "sequences", "constant"]
    constant: float
    mask: Literal["own", "all"]
    kl_on_degenerate: bool

    def __post_init__(self) -> None:
        if self.normalise not in ("tokens", "sequences", "constant"):
            raise UserError(
                f"loss.normalise is `{self.normalise}`: it must be `tokens`, `sequences` or "
                "`constant`."
            )
        if self.normalise == "constant" and not self.constant > 0:
            raise UserError(f"loss.constant is {self.constant}: it must be a positive token count.")
        if self.mask not in ("own", "all"):
            raise UserError(f"isolation.mask is `{self.mask}`: it must be `own` or `all`.")


class LossSums(flax.struct.PyTreeNode):
    """The loss of some rows before any division; all scalars, float32.

    `loss` / `count` is L. `sums` are plain sums over trained tokens, to be divided by `tokens`: the
    clipped objective, k3, entropy, tokens whose gradient the clip stopped at either end, logp, and
    |logp - behaviour_logp|. `peaks` are largest values over the tokens that this policy sampled:
    |ratio - 1|, and |logp - behaviour_logp|, which at the first update after a rollout is the
    difference between sampler and trainer.
    """

    loss: Any
    count: Any
    tokens: Any
    sums: dict[str, Any]
    peaks: dict[str, Any]

    @classmethod
    def zeros(cls) -> LossSums:
        zero = jnp.zeros((), jnp.float32)
        return cls(
            loss=zero,
            count=zero,
            tokens=zero,
            sums=dict.fromkeys(SUMS, zero),
            peaks=dict.fromkeys(PEAKS, zero),
        )

    def merge(self, other: LossSums) -> LossSums:
        """The sums of both sets of rows together."""
        return LossSums(
            loss=self.loss + other.loss,
            count=self.count + other.count,
            tokens=self.tokens + other.tokens,
            sums=jax.tree.map(jnp.add, self.sums, other.sums),
            peaks=jax.tree.map(jnp.maximum, self.peaks, other.peaks),
        )

    def metrics(self) -> dict[str, Any]:
        """The loss L, means over trained tokens, peaks, and the number of tokens; 0 for no rows."""
        means = {k: v / jnp.maximum(self.tokens, 1.0) for k, v in self.sums.items()}
        return {"loss": self.loss / self.divisor, "tokens": self.tokens} | means | self.peaks

    @property
    def divisor(self) -> Any:
        """C, or 1 where there is nothing to divide."""
        return jnp.where(self.count > 0, self.count, 1.0)


def k3(logp: jax.Array, reference: jax.Array) -> jax.Array:
    """Estimate [...] a token, exp(d) - d - 1, of KL(policy || reference); d = reference - logp.

    Zero only at equality, never negative. Near 0, where the difference would cancel, its series is
    used. Above LARGEST_EXPONENT the exponential goes on as its tangent: finite at any difference,
    and its gradient still pulls the policy back to the reference (a plain clamp would let it go).
    """
    d = reference - logp
    held = jnp.minimum(d, LARGEST_EXPONENT)
    far = jnp.expm1(held) + jnp.exp(held) * (d - held) - d
    small = jnp.where(jnp.abs(d) < 0.02, d, 0.0)
    near = small * small * (1 / 2 + small * (1 / 6 + small / 24))
    return jnp.where(jnp.abs(d) < 0.02, near, far)


def truncated_importance(
    proximal_logp: jax.Array, behaviour_logp: jax.Array, truncate: Any
) -> jax.Array:
    """min(exp(proximal - behaviour), truncate) [...], fixed weights of tokens sampled earlier.

    `proximal_logp` are the tokens' log-probs under the parameters that an update starts from,
    `behaviour_logp` those of the distribution that they were sampled from, in nats. Tokens that are
    not trained on may be given anything that is equal in both: their weight is 1.
    """
    difference = jnp.minimum(proximal_logp - behaviour_logp, LARGEST_EXPONENT)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(difference), truncate))


def of_tokens(values: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """A figure of views, [B] or [B, S], for each token: [B, 1] or [B, T]; padding gets any."""
    if values.ndim == 1:
        return values[:, None]
    return jnp.take_along_axis(values, jnp.maximum(segment_ids - 1, 0), axis=1)


def trained_tokens(batch: RoleBatch, mask: str) -> tuple[jax.Array, jax.Array]:
    """(trained, sampled), both [B, T] bool: what the loss is on, and what this policy sampled."""
    real = of_tokens(batch.weight > 0, batch.segment_ids) & (batch.segment_ids > 0)  # [B, T]
    sampled = real & batch.loss_mask.astype(bool)
    if mask == "own":
        return sampled, sampled
    return sampled | (real & (batch.segment == Segment.COUNTERPART)), sampled


def token_weights(
    trained: jax.Array, segment_ids: jax.Array, weight: jax.Array, settings: LossSettings
) -> tuple[jax.Array, jax.Array]:
    """w [B, T] and C [] of the module's table, from trained and segment_ids [B, T] and the views'
    weight, [B] or [B, S]."""
    on = trained.astype(jnp.float32)  # [B, T]
    if weight.ndim == 1:
        lengths = on.sum(axis=1)  # [B]
    else:
        places = jax.nn.one_hot(segment_ids - 1, weight.shape[1], dtype=jnp.float32)
        lengths = jnp.einsum("bt,bts->bs", on, places, precision="highest")  # [B, S]
    views = jnp.where(lengths > 0, weight, 0.0)
    on = on * of_tokens(views, segment_ids)
    match settings.normalise:
        case "tokens":
            return on, on.sum()
        case "sequences":
            return on / of_tokens(jnp.maximum(lengths, 1.0), segment_ids), views.sum()
        case "constant":
            return on / settings.constant, views.sum()


def grpo(
    logp: jax.Array,
    entropy: jax.Array,
    batch: RoleBatch,
    *,
    kl: Any,
    entropy_bonus: Any,
    clip_low: Any,
    clip_high: Any,
    settings: LossSettings,
) -> LossSums:
    """The module's loss over the rows of a batch, as sums.

    `logp` and `entropy` [B, T] are the network's, for the token at t given those before it. The
    four coefficients are scalars and may be traced; `kl` and `entropy_bonus` are per nat.

    With `mask = all`, nobody of this policy sampled the counterpart's tokens, so there is no
    behaviour log-prob to compare with: the policy's own present one stands in, its ratio is 1, its
    gradient is A times that of the log-prob, and no epoch clips it.
    """
    trained, sampled = trained_tokens(batch, settings.mask)
    weights, count = token_weights(trained, batch.segment_ids, batch.weight, settings)

    def safe(x: jax.Array) -> jax.Array:
        return jnp.where(trained, x.astype(jnp.float32), 0.0)

    logp, entropy, reference = safe(logp), safe(entropy), safe(batch.reference_logp)
    own = jnp.where(sampled, batch.behaviour_logp, 0.0)
    behaviour = jnp.where(sampled, own, jax.lax.stop_gradient(logp))
    advantage = of_tokens(batch.advantage, batch.segment_ids)  # [B, 1] or [B, T]
    importance = jax.lax.stop_gradient(jnp.where(trained, batch.importance, 1.0))

    gap = logp - behaviour
    ratio = jnp.exp(jnp.clip(gap, -LARGEST_EXPONENT, LARGEST_EXPONENT))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    divergence = k3(logp, reference)
    pull = kl * divergence - entropy_bonus * entropy
    if not settings.kl_on_degenerate:
        pull = jnp.where(of_tokens(batch.degenerate, batch.segment_ids), 0.0, pull)
    loss = jnp.where(trained, weights * (pull - importance * surrogate), 0.0)

    def total(x: jax.Array) -> jax.Array:
        return jnp.where(trained, x, 0.0).sum(dtype=jnp.float32)

    def peak(x: jax.Array) -> jax.Array:
        return jnp.where(sampled, jnp.abs(x), 0.0).max()

    sums = {
        "surrogate": surrogate,
        "kl": divergence,
        "entropy": entropy,
        "clip_low": (ratio < 1.0 - clip_low) & (advantage < 0),
        "clip_high": (ratio > 1.0 + clip_high) & (advantage > 0),
        "logp": logp,
        "logp_gap": jnp.abs(gap),
    }
    return LossSums(
        loss=loss.sum(),
        count=count,
        tokens=total(trained),
        sums={name: total(value) for name, value in sums.items()},
        peaks={"ratio_deviation_max": peak(ratio - 1.0), "logp_gap_max": peak(gap)},
    )
