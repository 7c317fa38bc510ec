"""One role's learning: a state, and one compiled program that takes a batch to the next state.

    g = sum over micro-batches of d(loss sum)/d(params), / C        one division, fp32
    g <- g min(1, clip_norm / |g|)
    params <- params - lr(updates) (adam(g) + weight_decay params)  decay on matrices alone

Whatever differs between roles (learning rate, schedule, coefficients, temperature) is traced, so
all roles share one program a bucket; whatever shapes the program is in `LearnerSettings`.
Micro-batches of nothing but padding rows are not run. If the loss or the gradient is not finite,
the program returns the state it was given, bit for bit, and says so; `check_finite` turns that into
an error.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ibrl_jax.errors import UserError
from ibrl_jax.models.params import Params
from ibrl_jax.parallel.rules import mesh_of, use
from ibrl_jax.rl.batches import RoleBatch, to_micro
from ibrl_jax.rl.losses import LossSettings, LossSums, grpo

Metrics = dict[str, Any]


class TrainingError(UserError):
    """A loss or a gradient was not finite; the parameters are those of the last good update."""


class Score(Protocol):
    """The network, as the learner sees it: (logp [B, T], entropy [B, T]), in nats.

    `params` is what an update moves, `frozen` what it does not (None: there is nothing such).
    logp[b, t] is the log-prob of ids[b, t] given ids[b, :t], 0 at a row's first token; entropy[b,
    t] is that of the same distribution. Both are at `temperature` [].
    """

    def __call__(
        self,
        params: Params,
        frozen: Params | None,
        ids: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        temperature: jax.Array,
        /,
    ) -> tuple[jax.Array, jax.Array]: ...


class Hyper(flax.struct.PyTreeNode):
    """One role's numbers, all scalars and all traced: changing one recompiles nothing.

    The learning rate rises linearly over `warmup_updates`, then follows a half cosine to
    `final_fraction` of itself at `total_updates` (final_fraction 1: constant), counted in this
    role's own updates. `kl` and `entropy` are per nat. `temperature` is the one that the role
    samples at.
    """

    learning_rate: Any
    warmup_updates: Any
    total_updates: Any
    final_fraction: Any
    weight_decay: Any
    clip_norm: Any
    kl: Any
    entropy: Any
    clip_low: Any
    clip_high: Any
    temperature: Any


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """What is compiled in. `micro_batch` in rows; `b1`, `b2`, `eps` are AdamW's.

    `lengths`: columns, ascending, that a micro-batch may be cut to; it takes the least that holds
    its longest row. Empty: never cut.

    `stacked`: keys of subtrees whose leaves carry a leading layer axis (layers under `nn.scan`). A
    stack of vectors is two-dimensional and yet no matrix, so it must not decay.
    """

    loss: LossSettings
    micro_batch: int
    lengths: tuple[int, ...]
    b1: float
    b2: float
    eps: float
    stacked: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.micro_batch < 1:
            raise UserError(f"micro_batch is {self.micro_batch}: it must be 1 or more.")


class LearnerState(flax.struct.PyTreeNode):
    """What one role trains (fp32), its optimiser state and count of updates [] int32; donated."""

    params: Params
    opt_state: Any
    updates: Any


def learning_rate(hyper: Hyper, updates: Any) -> jax.Array:
    """The rate of the update that follows `updates` earlier ones (see `Hyper`); a scalar."""
    done = jnp.asarray(updates, jnp.float32)
    warm = jnp.minimum((done + 1.0) / jnp.maximum(hyper.warmup_updates, 1.0), 1.0)
    horizon = jnp.maximum(hyper.total_updates - hyper.warmup_updates, 1.0)
    progress = jnp.clip((done - hyper.warmup_updates) / horizon, 0.0, 1.0)
    cosine = 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return hyper.learning_rate * warm * (hyper.final_fraction + (1 - hyper.final_fraction) * cosine)


def matrices(params: Params, stacked: tuple[str, ...]) -> Any:
    """A tree of bools: which leaves are matrices (two axes or more beside a leading layer axis)."""

    def is_matrix(path: tuple[Any, ...], leaf: Any) -> bool:
        keys = {str(getattr(k, "key", getattr(k, "name", k))) for k in path}
        return leaf.ndim - bool(keys & set(stacked)) >= 2

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def abstract_optimiser(optimiser: optax.GradientTransformation, params: Params) -> Any:
    """The shapes and shardings of an optimiser's state: moments lie where their parameters do.

    `params` are arrays, or their shapes with shardings.
    """

    def at(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return optax.tree.map_params(
        optimiser,
        lambda x, like: at(x, like.sharding),
        jax.eval_shape(optimiser.init, params),
        params,
        transform_non_params=lambda x: at(x, _beside(params)),
    )


def check_finite(metrics: Mapping[str, Any], role: str) -> None:
    """Raises TrainingError if the update behind these metrics was refused; waits for the device."""
    if not bool(metrics["finite"]):
        raise TrainingError(
            f"{role}: after {int(metrics['updates'])} updates the loss is "
            f"{float(metrics['loss']):g} and the gradient's norm {float(metrics['grad_norm']):g}; "
            "the update was refused and the parameters are as they were."
        )


class Learner:
    """Compiles and runs the updates of every role that shares a network.

    It holds programs and no state: roles, ids and snapshots are its caller's, and several threads
    may use it at once (each with a state of its own). `score` and `settings` must not change after
    construction.
    """

    def __init__(self, score: Score, settings: LearnerSettings) -> None:
        self._score = score
        self._settings = settings
        self._programs: dict[tuple[str, Hashable], Callable[..., Any]] = {}
        self._compiling = Lock()

    @property
    def compilations(self) -> int:
        """Programs compiled so far: a bucket has one for updates, one for reference log-probs."""
        return len(self._programs)

    @property
    def programs(self) -> dict[str, Any]:
        """The compiled programs, by name (`update` or `logp`, and a number)."""
        return {f"{key[0]} {i}": p for i, (key, p) in enumerate(self._programs.items())}

    def init(self, params: Params) -> LearnerState:
        """A fresh state on the parameters' devices and shardings; buffers are its own, in fp32."""
        params = jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)
        placed = jax.tree.map(lambda x: x.sharding, self.abstract(params))
        opt_state = jax.jit(self._fresh().init, out_shardings=placed.opt_state)(params)
        updates = jax.device_put(np.zeros((), np.int32), placed.updates)
        return LearnerState(params=params, opt_state=opt_state, updates=updates)

    def abstract(self, params: Params) -> LearnerState:
        """The shapes and shardings of `init`'s state, from parameters or from their shapes."""
        params = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), params
        )
        updates = jax.ShapeDtypeStruct((), np.int32, sharding=_beside(params))
        opt_state = abstract_optimiser(self._fresh(), params)
        return LearnerState(params=params, opt_state=opt_state, updates=updates)

    def update(
        self, state: LearnerState, frozen: Params | None, batch: RoleBatch, hyper: Hyper
    ) -> tuple[LearnerState, Metrics]:
        """One update. `state` is donated: its arrays are gone afterwards, whatever came of it.

        `frozen` is read and may be shared: the base under adapters, or None.
        `batch` is [B, T], or [M, b, T] already (for one that is sharded over b). Metrics are
        scalars on the device: `LossSums.metrics`, and `finite`, `grad_norm` (before clipping),
        `learning_rate`, `updates` (after this one).
        """
        args = (state, frozen, batch, _traced(hyper))
        return self._program("update", args)(*args)

    def reference_logp(
        self, params: Params, frozen: Params | None, batch: RoleBatch, temperature: Any
    ) -> jax.Array:
        """Log-probs [B, T] (or [M, b, T]), fp32, of the batch's ids under `params`.

        Micro-batches of padding rows are 0. Put the result in with
        `batch.replace(reference_logp=...)`.
        """
        args = (params, frozen, batch, _traced(temperature))
        return self._program("logp", args)(*args)

    def warmup(
        self,
        state: LearnerState,
        frozen: Params | None,
        batches: Iterable[RoleBatch],
        hyper: Hyper,
        reference: bool,
    ) -> None:
        """Compile for each batch shape ahead of time (`abstract_batch`), the update and, with
        `reference`, the reference log-probs too. Nothing is run; `state` may be abstract as well.
        """
        for batch in batches:
            self._program("update", (state, frozen, batch, _traced(hyper)))
            if reference:
                self._program("logp", (state.params, frozen, batch, _traced(hyper.temperature)))

    def _program(self, name: str, args: tuple[Any, ...]) -> Callable[..., Any]:
        key = (name, _signature(args))
        with self._compiling:
            if key not in self._programs:
                with use(mesh_of(args)):
                    self._programs[key] = self._jitted(name, args).lower(*args).compile()
        return self._programs[key]

    def _jitted(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "logp":
            return jax.jit(self._logp)
        # The next call must find the state placed as this one did.
        placed = jax.tree.map(_placement, args[0])
        on_default = any(p is None for p in jax.tree.leaves(placed, is_leaf=lambda p: p is None))
        shardings = None if on_default else (placed, None)
        return jax.jit(self._update, donate_argnums=0, out_shardings=shardings)

    def _update(
        self, state: LearnerState, frozen: Params | None, batch: RoleBatch, hyper: Hyper
    ) -> tuple[LearnerState, Metrics]:
        micro = self._micro(batch)

        def loss_sum(params: Params, rows: RoleBatch) -> tuple[jax.Array, LossSums]:
            logp, entropy = self._score(
                params, frozen, rows.ids, rows.positions, rows.segment_ids, hyper.temperature
            )
            sums = grpo(
                logp,
                entropy,
                rows,
                kl=hyper.kl,
                entropy_bonus=hyper.entropy,
                clip_low=hyper.clip_low,
                clip_high=hyper.clip_high,
                settings=self._settings.loss,
            )
            return sums.loss, sums

        def accumulate(m: jax.Array, carry: tuple[Params, LossSums]) -> tuple[Params, LossSums]:
            grads, sums = carry
            with jax.named_scope("micro_batch"):
                new, here = self._cut(
                    lambda rows: jax.grad(loss_sum, has_aux=True)(state.params, rows), _at(micro, m)
                )
            return jax.tree.map(jnp.add, grads, new), sums.merge(here)

        zeros = jax.tree.map(jnp.zeros_like, state.params)
        grads, sums = jax.lax.fori_loop(0, _used(micro), accumulate, (zeros, LossSums.zeros()))
        grads = jax.tree.map(lambda g: g / sums.divisor, grads)

        with jax.named_scope("adamw"):
            rate = learning_rate(hyper, state.updates)
            optimiser = self._optimiser(rate, hyper.weight_decay, hyper.clip_norm)
            steps, opt_state = optimiser.update(grads, state.opt_state, state.params)
            after = LearnerState(
                params=optax.apply_updates(state.params, steps),
                opt_state=opt_state,
                updates=state.updates + 1,
            )
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
        extra = {
            "finite": finite,
            "grad_norm": norm,
            "learning_rate": rate,
            "updates": after.updates,
        }
        return after, sums.metrics() | extra

    def _logp(
        self, params: Params, frozen: Params | None, batch: RoleBatch, temperature: jax.Array
    ) -> jax.Array:
        micro = self._micro(batch)

        def fill(m: jax.Array, out: jax.Array) -> jax.Array:
            def scored(rows: RoleBatch) -> jax.Array:
                logp, _ = self._score(
                    params, frozen, rows.ids, rows.positions, rows.segment_ids, temperature
                )
                spare = out.shape[-1] - logp.shape[-1]
                return jnp.pad(logp.astype(jnp.float32), ((0, 0), (0, spare)))

            with jax.named_scope("micro_batch"):
                logp = self._cut(scored, _at(micro, m))
            return jax.lax.dynamic_update_index_in_dim(out, logp, m, 0)

        zeros = jnp.zeros_like(micro.reference_logp, jnp.float32)
        return jax.lax.fori_loop(0, _used(micro), fill, zeros).reshape(batch.ids.shape)

    def _cut(self, work: Callable[[RoleBatch], Any], rows: RoleBatch) -> Any:
        """`work` on a micro-batch [b, T] without the columns that are padding in all of its rows.

        One branch a length of the settings, one of which runs; what is cut weighs in no sum.
        """
        whole = rows.ids.shape[1]
        lengths = [n for n in self._settings.lengths if n < whole] + [whole]
        if len(lengths) == 1:
            return work(rows)
        columns = jnp.any(rows.segment_ids > 0, axis=0)  # [T]
        needed = jnp.max(jnp.where(columns, jnp.arange(1, whole + 1), 0))
        branch = jnp.searchsorted(jnp.asarray(lengths), needed)

        def at(length: int) -> Callable[[RoleBatch], Any]:
            return lambda rows: work(
                jax.tree.map(lambda x: x[:, :length] if x.ndim == 2 else x, rows)
            )

        return jax.lax.switch(branch, [at(n) for n in lengths], rows)

    def _micro(self, batch: RoleBatch) -> RoleBatch:
        return to_micro(batch, self._settings.micro_batch) if batch.ids.ndim == 2 else batch

    def _fresh(self) -> optax.GradientTransformation:
        """The optimiser as far as its state goes."""
        return self._optimiser(learning_rate=0.0, weight_decay=0.0, clip_norm=1.0)

    def _optimiser(
        self, learning_rate: Any, weight_decay: Any, clip_norm: Any
    ) -> optax.GradientTransformation:
        s = self._settings
        return optax.chain(
            optax.clip_by_global_norm(clip_norm),
            optax.scale_by_adam(b1=s.b1, b2=s.b2, eps=s.eps, mu_dtype=jnp.float32),
            optax.add_decayed_weights(weight_decay, mask=lambda p: matrices(p, s.stacked)),
            optax.scale_by_learning_rate(learning_rate),
        )


def _beside(params: Params) -> Any:
    """Where a scalar lies beside parameters: whole on each of their devices."""
    first = jax.tree.leaves(params)[0].sharding
    return NamedSharding(first.mesh, PartitionSpec()) if isinstance(first, NamedSharding) else first


def _used(micro: RoleBatch) -> jax.Array:
    """One more than the index of the last micro-batch that holds a real row."""
    real = jnp.any(micro.weight > 0, axis=1)  # [M]
    return jnp.max(jnp.where(real, jnp.arange(1, real.shape[0] + 1), 0))


def _at(micro: RoleBatch, m: jax.Array) -> RoleBatch:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, m, 0, keepdims=False), micro)


def _traced(tree: Any) -> Any:
    """Scalars as fp32 arrays: Python's numbers would be weakly typed, and another signature."""
    return jax.tree.map(lambda x: x if hasattr(x, "dtype") else np.float32(x), tree)


def _placement(x: Any) -> Any:
    """The sharding that a program must be compiled for; None for the default device."""
    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, SingleDeviceSharding):
        return None if sharding.device_set == {jax.local_devices()[0]} else sharding
    return sharding


def _signature(tree: Any) -> Hashable:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((x.shape, np.dtype(x.dtype).name, _placement(x)) for x in leaves)
