"""One role's learning: a state, and one compiled program that takes a batch to the next state.

    g = sum over micro-batches of d(loss sum)/d(params), / C        one division, fp32
    g <- g min(1, clip_norm / |g|)
    params <- params - lr(updates) (adam(g) + weight_decay params)  decay on matrices alone

Whatever differs between roles (learning rate, schedule, coefficients, temperature) is traced, so
all roles share one program a bucket; whatever shapes the program is in `LearnerSettings`.
Micro-batches of nothing but padding rows are not run. On a CPU a small network's operations are too
short to be split over cores; with `lanes`, micro-batches are dealt out to programs that run side by
side, and their sums are added in one order:

    lane 0   micro-batches 0, 2, 4 ..    gradient sum --+--> one step
    lane 1   micro-batches 1, 3, 5 ..    gradient sum --+

If the loss or the gradient is not finite, the program returns the state it was given, bit for bit,
and says so; it also says so of a step that parameters overflow by. `check_finite` turns that into
an error.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, reduce
from threading import Lock
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import SingleDeviceSharding

from ibrl_jax.errors import UserError
from ibrl_jax.models.params import Params
from ibrl_jax.parallel.rules import mesh_of, use
from ibrl_jax.rl.batches import RoleBatch, to_micro
from ibrl_jax.rl.cut import Work, cut_to_need
from ibrl_jax.rl.losses import LossSettings, LossSums, grpo
from ibrl_jax.rl.optimiser import Hyper, abstract_optimiser, adamw, beside, learning_rate

Metrics = dict[str, Any]
Lane = tuple[Any, Any]
"""Which of how many: its micro-batches are `index`, `index + count`, and so on; int32 scalars."""


class TrainingError(UserError):
    """A loss, a gradient or what a step came to was not finite; the last checkpoint is good."""


class Score(Protocol):
    """The network, as the learner sees it: (logp [B, T], entropy [B, T]), in nats.

    `params` is what an update moves, `frozen` what it does not (None: there is nothing such).
    logp[b, t] is the log-prob of ids[b, t] given ids[b, :t], 0 at a row's first token; entropy[b,
    t] is that of the same distribution. Both are at `temperature` []. With `at` [b, P], indices of
    tokens (T stands for none), only these are asked for, and what stands elsewhere is finite.
    """

    def __call__(
        self,
        params: Params,
        frozen: Params | None,
        ids: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        temperature: jax.Array,
        at: jax.Array | None,
        /,
    ) -> tuple[jax.Array, jax.Array]: ...


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """What is compiled in. `micro_batch` in rows; `b1`, `b2`, `eps` are AdamW's.

    `lengths`, `trained_share`: see `ibrl_jax.rl.cut`; no lengths: never cut.

    `lanes`: programs of one update that run side by side, where micro-batches can be dealt out to
    them evenly, and never on a mesh. Losses and gradients are those of one but for rounding.

    `stacked`: keys of subtrees whose leaves carry a leading layer axis (layers under `nn.scan`). A
    stack of vectors is two-dimensional and yet no matrix, so it must not decay.
    """

    loss: LossSettings
    micro_batch: int
    lengths: tuple[int, ...]
    trained_share: float = 1.0
    lanes: int = 1
    b1: float
    b2: float
    eps: float
    stacked: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.micro_batch < 1:
            raise UserError(f"micro_batch is {self.micro_batch}: it must be 1 or more.")
        if self.lanes < 1:
            raise UserError(f"lanes is {self.lanes}: it must be 1 or more.")
        if not 0 < self.trained_share <= 1:
            raise UserError(
                f"trained_share is {self.trained_share}: it must be above 0, at most 1."
            )


class LearnerState(flax.struct.PyTreeNode):
    """What one role trains (fp32), its optimiser state and count of updates [] int32; donated."""

    params: Params
    opt_state: Any
    updates: Any


def check_finite(metrics: Mapping[str, Any], role: str) -> None:
    """Raises TrainingError if the update behind these metrics was refused; waits for the device."""
    if not bool(metrics["finite"]):
        raise TrainingError(
            f"{role}: after {int(metrics['updates'])} updates the loss is "
            f"{float(metrics['loss']):g}, the gradient's norm {float(metrics['grad_norm']):g} and "
            f"the parameters' {float(metrics['params_norm']):g}; this pass was refused; the last "
            "checkpoint is as it was."
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
        # What one thread gives to a device runs in turn; what two give, side by side.
        self._lanes = [
            ThreadPoolExecutor(1, thread_name_prefix=f"lane{index}")
            for index in range(settings.lanes)
        ]

    @property
    def compilations(self) -> int:
        """Programs compiled so far: a bucket has one for updates, one for reference log-probs;
        with lanes, one for gradients, one for steps, and one for log-probs."""
        return len(self._programs)

    @property
    def programs(self) -> dict[str, Any]:
        """The compiled programs, by name (`update`, `gradient`, `step` or `logp`) and number."""
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
        updates = jax.ShapeDtypeStruct((), np.int32, sharding=beside(params))
        opt_state = abstract_optimiser(self._fresh(), params)
        return LearnerState(params=params, opt_state=opt_state, updates=updates)

    def update(
        self, state: LearnerState, frozen: Params | None, batch: RoleBatch, hyper: Hyper
    ) -> tuple[LearnerState, Metrics]:
        """One update. `state` is donated: its arrays are gone afterwards, whatever came of it.

        `frozen` is read and may be shared: the base under adapters, or None.
        `batch` is [B, T], or [M, b, T] already (for one that is sharded over b). Metrics are
        scalars on the device: `LossSums.metrics`, and `finite`, `grad_norm` (before clipping),
        `params_norm`, `learning_rate`, `updates` (these after this one).
        """
        hyper = _traced(hyper)
        lanes = self._lanes_of(state.params, batch)
        if lanes == 1:
            args = (state, frozen, batch, hyper)
            return self._program("update", args)(*args)
        parts = self._dealt("gradient", (state.params, frozen, batch, hyper), lanes)
        args = (state, parts, hyper)
        return self._program("step", args)(*args)

    def reference_logp(
        self, params: Params, frozen: Params | None, batch: RoleBatch, temperature: Any
    ) -> jax.Array:
        """Log-probs [B, T] (or [M, b, T]), fp32, of the batch's ids under `params`.

        They mean something where the loss is on a token; micro-batches of padding rows are 0. Put
        the result in with `batch.replace(reference_logp=...)`.
        """
        args = (params, frozen, batch, _traced(temperature))
        lanes = self._lanes_of(params, batch)
        if lanes == 1:
            return self._program("logp", args)(*args)
        return reduce(jnp.add, self._dealt("logp", args, lanes))  # each has 0 where others have not

    def gradient(
        self, params: Params, frozen: Params | None, batch: RoleBatch, hyper: Hyper, lanes: int
    ) -> list[Any]:
        """What an update computes before its step, by so many lanes: for whoever takes its time.

        One program serves any number of lanes up to the settings'; see `compile_gradient`.
        """
        return self._dealt("gradient", (params, frozen, batch, _traced(hyper)), lanes)

    def compile_gradient(
        self, params: Params, frozen: Params | None, batch: RoleBatch, hyper: Hyper
    ) -> Any:
        """The program that `gradient` calls; nothing is run."""
        return self._program("gradient", (params, frozen, batch, _traced(hyper), _lane(0, 1)))

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
        hyper = _traced(hyper)
        for batch in batches:
            lanes = self._lanes_of(state.params, batch)
            lane = () if lanes == 1 else (_lane(0, lanes),)
            whole = (state.params, frozen, batch)
            if lanes == 1:
                self._program("update", (state, frozen, batch, hyper))
            else:
                part = (state.params, jax.eval_shape(LossSums.zeros))
                parts = [_beside_params(part, state.params)] * lanes
                self._program("gradient", (*whole, hyper, *lane))
                self._program("step", (state, parts, hyper))
            if reference:
                self._program("logp", (*whole, hyper.temperature, *lane))

    def _lanes_of(self, params: Params, batch: RoleBatch) -> int:
        """The programs among which a batch's micro-batches are dealt."""
        if mesh_of(params) is not None:
            return 1
        shape = batch.ids.shape
        count = shape[0] // self._settings.micro_batch if len(shape) == 2 else shape[0]
        return next(n for n in range(self._settings.lanes, 0, -1) if count % n == 0)

    def _dealt(self, name: str, args: tuple[Any, ...], lanes: int) -> list[Any]:
        """What each lane's program gives, in order; nobody waits for the device."""
        calls = [(*args, _lane(index, lanes)) for index in range(lanes)]
        program = self._program(name, calls[0])
        jobs = [lane.submit(program, *call) for lane, call in zip(self._lanes, calls, strict=False)]
        return [job.result() for job in jobs]

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
        if name == "gradient":
            return jax.jit(self._gradient)
        # The next call must find the state placed as this one did.
        placed = jax.tree.map(_placement, args[0])
        on_default = any(p is None for p in jax.tree.leaves(placed, is_leaf=lambda p: p is None))
        shardings = None if on_default else (placed, None)
        work = self._update if name == "update" else self._added
        return jax.jit(work, donate_argnums=0, out_shardings=shardings)

    def _update(
        self, state: LearnerState, frozen: Params | None, batch: RoleBatch, hyper: Hyper
    ) -> tuple[LearnerState, Metrics]:
        grads, sums = self._gradient(state.params, frozen, batch, hyper)
        return self._step(state, grads, sums, hyper)

    def _added(
        self, state: LearnerState, parts: list[tuple[Params, LossSums]], hyper: Hyper
    ) -> tuple[LearnerState, Metrics]:
        grads, sums = parts[0]
        for more_grads, more_sums in parts[1:]:
            grads, sums = jax.tree.map(jnp.add, grads, more_grads), sums.merge(more_sums)
        return self._step(state, grads, sums, hyper)

    def _gradient(
        self,
        params: Params,
        frozen: Params | None,
        batch: RoleBatch,
        hyper: Hyper,
        lane: Lane | None = None,
    ) -> tuple[Params, LossSums]:
        """The gradient of the loss sum, and the sums, of a lane's micro-batches (None: of all)."""
        micro = self._micro(batch)

        def loss_sum(params: Params, rows: RoleBatch, at: Any) -> tuple[jax.Array, LossSums]:
            tokens = (rows.ids, rows.positions, rows.segment_ids)
            logp, entropy = self._score(params, frozen, *tokens, hyper.temperature, at)
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
                    lambda rows, at: jax.grad(loss_sum, has_aux=True)(params, rows, at),
                    _at(micro, m),
                )
            return jax.tree.map(jnp.add, grads, new), sums.merge(here)

        zeros = jax.tree.map(jnp.zeros_like, params)
        return _each(micro, lane, accumulate, (zeros, LossSums.zeros()))

    def _step(
        self, state: LearnerState, grads: Params, sums: LossSums, hyper: Hyper
    ) -> tuple[LearnerState, Metrics]:
        """AdamW, given the gradient of the whole loss sum; nothing, if that is not finite."""
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
        # Behind a barrier: in one piece with the step, XLA would round the step otherwise.
        params_norm = optax.tree.norm(jax.lax.optimization_barrier(after.params))
        extra = {
            "finite": finite & jnp.isfinite(params_norm),
            "grad_norm": norm,
            "params_norm": params_norm,
            "learning_rate": rate,
            "updates": after.updates,
        }
        return after, sums.metrics() | extra

    def _logp(
        self,
        params: Params,
        frozen: Params | None,
        batch: RoleBatch,
        temperature: jax.Array,
        lane: Lane | None = None,
    ) -> jax.Array:
        micro = self._micro(batch)

        def fill(m: jax.Array, out: jax.Array) -> jax.Array:
            def scored(rows: RoleBatch, at: jax.Array | None) -> jax.Array:
                tokens = (rows.ids, rows.positions, rows.segment_ids)
                logp, _ = self._score(params, frozen, *tokens, temperature, at)
                spare = out.shape[-1] - logp.shape[-1]
                return jnp.pad(logp.astype(jnp.float32), ((0, 0), (0, spare)))

            with jax.named_scope("micro_batch"):
                logp = self._cut(scored, _at(micro, m))
            return jax.lax.dynamic_update_index_in_dim(out, logp, m, 0)

        zeros = jnp.zeros_like(micro.reference_logp, jnp.float32)
        return _each(micro, lane, fill, zeros).reshape(batch.ids.shape)

    def _cut(self, work: Work, rows: RoleBatch) -> Any:
        s = self._settings
        return cut_to_need(work, rows, s.lengths, s.trained_share, s.loss.mask)

    def _micro(self, batch: RoleBatch) -> RoleBatch:
        return to_micro(batch, self._settings.micro_batch) if batch.ids.ndim == 2 else batch

    def _optimiser(
        self, learning_rate: Any, weight_decay: Any, clip_norm: Any
    ) -> optax.GradientTransformation:
        s = self._settings
        moments = (s.b1, s.b2, s.eps)
        return adamw(learning_rate, weight_decay, clip_norm, moments=moments, stacked=s.stacked)

    def _fresh(self) -> optax.GradientTransformation:
        """The optimiser as far as its state goes."""
        s = self._settings
        return _fresh((s.b1, s.b2, s.eps), s.stacked)


@cache
def _fresh(
    moments: tuple[float, float, float], stacked: tuple[str, ...]
) -> optax.GradientTransformation:
    """One object for all states, roles and learners, so that JAX traces its `init` once."""
    return adamw(0.0, 0.0, 1.0, moments=moments, stacked=stacked)


def _beside_params(tree: Any, params: Params) -> Any:
    """Shapes, on the device of the parameters."""
    at = jax.tree.leaves(params)[0].sharding
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), tree)


def _lane(index: int, count: int) -> Lane:
    return np.int32(index), np.int32(count)


def _each(
    micro: RoleBatch, lane: Lane | None, work: Callable[[jax.Array, Any], Any], start: Any
) -> Any:
    """`work(m, carry)` for each micro-batch m that holds a row, of a lane or of all."""
    used = _used(micro)
    if lane is None:
        return jax.lax.fori_loop(0, used, work, start)
    first, stride = lane
    turns = (used - first + stride - 1) // stride
    return jax.lax.fori_loop(0, turns, lambda i, carry: work(first + stride * i, carry), start)


def _used(micro: RoleBatch) -> jax.Array:
    """One more than the index of the last micro-batch that holds a real row."""
    real = jnp.any(micro.weight > 0, axis=range(1, micro.weight.ndim))  # [M]
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
