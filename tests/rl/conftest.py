"""A toy network and short ways to make views and batches, as one fixture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.dialogue.views import PolicyRef, RoleView, Segment, ViewBuilder
from ibrl_jax.rl.advantages import Credit
from ibrl_jax.rl.batches import BatchSettings, RoleBatch, Row, build
from ibrl_jax.rl.learner import Hyper, Learner, LearnerSettings
from ibrl_jax.rl.losses import LossSettings

V = 7


def score(params, frozen, ids, positions, segment_ids, temperature, at=None):
    """A bigram model with a learned position term: logits at t are read from token t - 1."""
    logits = params["table"][ids] + params["bias"] + jnp.cos(positions)[..., None] * params["phase"]
    logits = jax.nn.log_softmax(logits[:, :-1] / temperature)  # [B, T-1, V]
    chosen = jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
    entropy = -(jnp.exp(logits) * logits).sum(-1)
    inside = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0)
    first = ((0, 0), (1, 0))
    if at is not None:
        inside &= (jnp.arange(1, ids.shape[1])[None, None] == at[..., None]).any(1)
    return tuple(jnp.pad(jnp.where(inside, x, 0.0), first) for x in (chosen, entropy))


def params(seed: int = 0):
    k = np.random.default_rng(seed)
    return {
        "table": jnp.asarray(k.normal(size=(V, V)), jnp.float32),
        "bias": jnp.asarray(k.normal(size=V), jnp.float32),
        "phase": jnp.asarray(k.normal(size=V), jnp.float32),
    }


def view(turns=((2, 3), (1, 4)), *, role="agent0", seed=0, prompt=2) -> RoleView:
    """A prompt, then for each (n, m) an own turn of n sampled tokens and a counterpart's of m."""
    k = np.random.default_rng(seed)
    b = ViewBuilder(role=role, policy=PolicyRef(id=role, seat="live", version=0))
    b.read(k.integers(V, size=prompt).tolist(), -1, Segment.TEMPLATE)
    for turn, (own, other) in enumerate(turns):
        b.sampled(k.integers(V, size=own).tolist(), k.uniform(-3, -1, own).tolist(), 2 * turn)
        b.read(k.integers(V, size=other).tolist(), 2 * turn + 1, Segment.COUNTERPART)
    return b.finish()


def credit(advantage: float, degenerate: bool = False) -> Credit:
    return Credit(advantage=advantage, baseline=0.0, spread=1.0, degenerate=degenerate)


def row(advantage=1.0, *, draw="d", rollout=0, degenerate=False, **kw) -> Row:
    return Row(
        view=view(seed=rollout, **kw),
        draw=draw,
        rollout=rollout,
        credit=credit(advantage, degenerate),
    )


def rows(n=6) -> list[Row]:
    """Rows of different lengths and advantages."""
    return [
        row((-1) ** g * (0.5 + g / 4), rollout=g, turns=[(1 + g % 3, 2)] * (1 + g % 2))
        for g in range(n)
    ]


def batch(rows_, *, lengths=(16, 32), rows=8, micro=2, pad_id=0, places=1) -> RoleBatch:
    settings = BatchSettings(
        lengths=lengths, rows=rows, micro_batch=micro, pad_id=pad_id, places=places
    )
    made = build(rows_, settings)
    assert made is not None
    return made


def on_policy(made: RoleBatch, at, temperature=1.0) -> RoleBatch:
    """The same batch as if `at` had sampled it."""
    logp, _ = score(at, None, made.ids, made.positions, made.segment_ids, temperature)
    return made.replace(behaviour_logp=np.where(made.loss_mask, logp, 0.0).astype(np.float32))


def loss_settings(**changes) -> LossSettings:
    base: dict[str, Any] = dict(normalise="tokens", constant=8.0, mask="own", kl_on_degenerate=True)
    return LossSettings(**(base | changes))


def learner(*, score=score, micro=2, stacked=(), lengths=(), share=1.0, lanes=1, **loss) -> Learner:
    settings = LearnerSettings(
        loss=loss_settings(**loss),
        micro_batch=micro,
        lengths=lengths,
        trained_share=share,
        lanes=lanes,
        b1=0.9,
        b2=0.99,
        eps=1e-8,
        stacked=stacked,
    )
    return Learner(score, settings)


def hyper(**changes) -> Hyper:
    base: dict[str, Any] = dict(
        learning_rate=1e-2,
        warmup_updates=0,
        weight_decay=0.0,
        clip_norm=1e6,
        kl=0.02,
        entropy=0.1,
        clip_low=0.2,
        clip_high=0.2,
        temperature=1.0,
    )
    return Hyper(**(base | changes))


def host(tree):
    """A copy on the host that no donation can reach."""
    return jax.tree.map(lambda x: np.array(x, copy=True), tree)


def same(a, b) -> bool:
    """Whether two trees are equal to the bit, in structure, dtypes and values."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(host(a)), jax.tree.leaves(host(b)), strict=True)
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs)


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    return SimpleNamespace(
        score=score,
        params=params,
        view=view,
        credit=credit,
        row=row,
        rows=rows,
        batch=batch,
        on_policy=on_policy,
        loss_settings=loss_settings,
        learner=learner,
        hyper=hyper,
        host=host,
        same=same,
    )


@pytest.fixture(scope="session")
def shared_learner() -> Learner:
    """One learner, compiled once, for all tests that want the usual settings."""
    return learner()
