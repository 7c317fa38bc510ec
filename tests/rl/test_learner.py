"""An update is one role's, exact however it is cut up, and leaves no trace where it should not."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ibrl_jax.rl.batches import abstract_batch, to_micro
from ibrl_jax.rl.learner import (
    TrainingError,
    check_finite,
)
from ibrl_jax.rl.losses import grpo
from ibrl_jax.rl.optimiser import learning_rate, matrices
from ibrl_jax.rl.pool import OpponentPool, PoolSettings
from ibrl_jax.rl.schedule import updates_now


def moments(state, name="mu"):
    return optax.tree.get(state.opt_state, name)


def whole_gradient(toy, params, batch, hyper, **loss):
    """The loss and its gradient over all rows at once, divided at the end; no learner involved."""
    return _whole_gradient(toy.score, toy.loss_settings(**loss), params, batch, hyper)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _whole_gradient(score, settings, params, batch, hyper):
    def mean(p):
        logp, entropy = score(
            p, None, batch.ids, batch.positions, batch.segment_ids, hyper.temperature
        )
        sums = grpo(
            logp,
            entropy,
            batch,
            kl=hyper.kl,
            entropy_bonus=hyper.entropy,
            clip_low=hyper.clip_low,
            clip_high=hyper.clip_high,
            settings=settings,
        )
        return sums.loss / sums.count

    return jax.value_and_grad(mean)(params)


def assert_close(a, b, rtol=1e-5, atol=1e-7):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


@pytest.mark.parametrize("mode, micro", [("tokens", 1), ("sequences", 2), ("constant", 4)])
def test_micro_batches_change_neither_loss_nor_gradient(toy, mode, micro):
    batch, hyper = toy.batch(toy.rows(7)), toy.hyper()
    loss, grads = whole_gradient(toy, toy.params(), batch, hyper, normalise=mode)
    learner = toy.learner(micro=micro, normalise=mode)
    state, metrics = learner.update(learner.init(toy.params()), None, batch, hyper)
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(float(optax.tree.norm(grads)), rel=1e-5)
    assert_close(jax.tree.map(lambda m: m / 0.1, moments(state)), grads)  # mu = (1 - b1) g


def test_padding_tokens_padding_rows_and_their_content_change_nothing(toy, shared_learner):
    rows, hyper = toy.rows(), toy.hyper()
    results = []
    for options in (
        dict(),
        dict(pad_id=3),
        dict(lengths=(32,), rows=16),
    ):
        state, metrics = shared_learner.update(
            shared_learner.init(toy.params()), None, toy.batch(rows, **options), hyper
        )
        results.append((moments(state), metrics))
    for mu, metrics in results[1:]:
        assert_close(mu, results[0][0])
        assert_close(metrics, results[0][1])


def test_batch_already_in_micro_batches_gives_the_same_bits(toy, shared_learner):
    batch, hyper = toy.batch(toy.rows()), toy.hyper()
    one = shared_learner.update(shared_learner.init(toy.params()), None, batch, hyper)
    two = shared_learner.update(shared_learner.init(toy.params()), None, to_micro(batch, 2), hyper)
    assert toy.same(one, two)


def test_micro_batches_of_padding_are_not_run(toy):
    seen = []

    def score(params, frozen, ids, *rest):
        jax.debug.callback(lambda x: seen.append(int(x)), ids[0, 0])
        return toy.score(params, frozen, ids, *rest)

    learner = toy.learner(score=score)
    _, metrics = learner.update(
        learner.init(toy.params()), None, toy.batch(toy.rows(3), rows=8), toy.hyper()
    )
    jax.block_until_ready(metrics)
    jax.effects_barrier()
    assert len(seen) == 2  # of four


def test_both_roles_and_all_their_numbers_share_one_program_a_bucket(toy):
    learner = toy.learner()
    sales, customer = learner.init(toy.params(0)), learner.init(toy.params(1))
    batch, long = toy.batch(toy.rows()), toy.batch(toy.rows(), lengths=(32,))
    for k in range(2):
        sales, _ = learner.update(sales, None, batch, toy.hyper(learning_rate=1e-6))
        customer, _ = learner.update(
            customer, None, batch, toy.hyper(learning_rate=1e-7 * k, temperature=0.6, clip_norm=1)
        )
    assert learner.compilations == 1
    learner.update(sales, None, long, toy.hyper())
    learner.update(customer, None, long, toy.hyper(kl=0.0))
    assert learner.compilations == 2


def test_warmup_compiles_all_that_the_run_will_need(toy):
    learner = toy.learner()
    state = learner.init(toy.params())
    learner.warmup(state, None, [abstract_batch(8, 16)], toy.hyper(), reference=True)
    assert learner.compilations == 2
    batch = toy.batch(toy.rows())
    learner.reference_logp(state.params, None, batch, 1.0)
    for _ in range(2):
        state, _ = learner.update(state, None, batch, toy.hyper())
    assert learner.compilations == 2


def test_adamw_is_optax_s_own_with_decay_on_matrices_alone(toy, shared_learner):
    batch = toy.batch(toy.rows())
    hyper = toy.hyper(weight_decay=0.3, clip_norm=0.05, warmup_updates=3)
    state = shared_learner.init(toy.params())
    params = toy.params()
    expected = optax.chain(
        optax.clip_by_global_norm(0.05),
        optax.adamw(
            lambda u: learning_rate(hyper, u),
            b1=0.9,
            b2=0.99,
            eps=1e-8,
            weight_decay=0.3,
            mask=jax.tree.map(lambda x: x.ndim == 2, params),
        ),
    )
    opt_state = expected.init(params)
    for _ in range(3):
        _, grads = whole_gradient(toy, params, batch, hyper)
        steps, opt_state = expected.update(grads, opt_state, params)
        params = optax.apply_updates(params, steps)
        state, metrics = shared_learner.update(state, None, batch, hyper)
        assert metrics["grad_norm"] > 0.05
    assert_close(state.params, params, rtol=1e-4, atol=1e-6)


def test_stacked_vectors_are_no_matrices():
    tree = {"layers": {"w": jnp.ones((2, 3, 3)), "norm": jnp.ones((2, 3))}, "out": jnp.ones((3, 3))}
    assert matrices(tree, ("layers",)) == {"layers": {"w": True, "norm": False}, "out": True}
    assert matrices(tree, ())["layers"]["norm"]


def test_zero_gradient_is_an_update_and_no_update_is_not(toy, shared_learner):
    hyper = toy.hyper(kl=0.0, entropy=0.0, weight_decay=0.1)
    batch = toy.batch(toy.rows())
    state, _ = shared_learner.update(shared_learner.init(toy.params()), None, batch, hyper)
    before = toy.host(state)
    still = batch.replace(advantage=np.zeros_like(batch.advantage))
    state, metrics = shared_learner.update(state, None, still, hyper)
    assert metrics["grad_norm"] == 0.0
    assert metrics["finite"]
    assert state.updates == before.updates + 1
    for name in ("mu", "nu"):
        assert not toy.same(moments(state, name), moments(before, name))
    assert not toy.same(state.params, before.params)


def test_a_role_that_skips_an_iteration_stays_bitwise_and_counts_five_after_ten(
    toy, shared_learner
):
    batch = toy.batch(toy.rows())
    numbers = {
        "sales": toy.hyper(weight_decay=0.1, learning_rate=1e-2),
        "customer": toy.hyper(weight_decay=0.1, learning_rate=1e-3, warmup_updates=10),
    }
    every = {"sales": 1, "customer": 2}
    states = {role: shared_learner.init(toy.params(k)) for k, role in enumerate(numbers)}
    for k in range(10):
        before = toy.host(states)
        for role in states:
            if updates_now(k, every[role], 0):
                states[role], _ = shared_learner.update(states[role], None, batch, numbers[role])
        assert not toy.same(states["sales"], before["sales"])
        assert toy.same(states["customer"], before["customer"]) == (k % 2 == 1)
    assert [int(states[r].updates) for r in states] == [10, 5]
    assert [int(moments(states[r], "count")) for r in states] == [10, 5]


def test_one_roles_update_does_not_move_with_the_others(toy, shared_learner):
    batch = toy.batch(toy.rows())

    def customer_after(sales_seed, sales_rate):
        sales = shared_learner.init(toy.params(sales_seed))
        customer = shared_learner.init(toy.params(1))
        for _ in range(2):
            sales, _ = shared_learner.update(
                sales, None, batch, toy.hyper(learning_rate=sales_rate)
            )
            customer, _ = shared_learner.update(customer, None, batch, toy.hyper())
        return toy.host(customer)

    assert toy.same(customer_after(0, 1e-2), customer_after(5, 1.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["advantage", "reference_logp"])
def test_a_loss_that_is_not_finite_is_refused_and_leaves_every_bit(toy, shared_learner, bad, where):
    batch, hyper = toy.batch(toy.rows()), toy.hyper(weight_decay=0.1)
    state, fine = shared_learner.update(shared_learner.init(toy.params()), None, batch, hyper)
    check_finite(fine, "sales")
    before = toy.host(state)
    values = np.array(getattr(batch, where))
    values[1] = bad
    state, metrics = shared_learner.update(state, None, batch.replace(**{where: values}), hyper)
    assert toy.same(state, before)
    with pytest.raises(TrainingError, match="sales: after 1 updates the loss is"):
        check_finite(metrics, "sales")


def test_a_gradient_that_is_not_finite_under_a_finite_loss_is_refused(toy):
    def score(params, *rest):
        logp, entropy = toy.score(params, *rest)
        return logp + jnp.sqrt(params["zero"]), entropy  # finite at 0, slope infinite

    learner = toy.learner(score=score)
    state = learner.init(toy.params() | {"zero": jnp.zeros(())})
    before = toy.host(state)
    state, metrics = learner.update(state, None, toy.batch(toy.rows()), toy.hyper())
    assert np.isfinite(metrics["loss"])
    assert toy.same(state, before)
    with pytest.raises(TrainingError, match=r"norm (inf|nan)"):
        check_finite(metrics, "agent0")


@pytest.mark.parametrize("lanes", [1, 2])
def test_parameters_that_overflow_under_a_finite_gradient_are_refused(toy, lanes):
    learner = toy.learner(micro=2, lanes=lanes)
    hyper = toy.hyper(learning_rate=3e38, warmup_updates=0)
    _, metrics = learner.update(learner.init(toy.params()), None, toy.batch(toy.rows()), hyper)
    assert np.isfinite(metrics["loss"])
    assert np.isfinite(metrics["grad_norm"])
    with pytest.raises(TrainingError, match="and the parameters' inf; this pass was refused"):
        check_finite(metrics, "agent0")


def test_degenerate_groups_alone_give_a_finite_step(toy, shared_learner):
    rows = [toy.row(0.0, rollout=g, degenerate=True) for g in range(4)]
    _, metrics = shared_learner.update(
        shared_learner.init(toy.params()), None, toy.batch(rows), toy.hyper()
    )
    check_finite(metrics, "agent0")
    assert metrics["surrogate"] == 0.0


def test_init_copies_and_update_donates(toy, shared_learner):
    params = toy.params()
    before = toy.host(params)
    state = shared_learner.init(params)
    after, _ = shared_learner.update(state, None, toy.batch(toy.rows()), toy.hyper())
    jax.block_until_ready(after)
    assert all(x.is_deleted() for x in jax.tree.leaves(state.params))
    assert toy.same(params, before)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    state = shared_learner.init(half)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {np.dtype("float32")}


@pytest.mark.parametrize("store", ["host", "device"])
def test_a_snapshot_outlives_the_state_that_it_was_taken_of(toy, shared_learner, store):
    pool = OpponentPool("sales", PoolSettings(size=2, store=store))
    state = shared_learner.init(toy.params())
    pool.add(0, state.params)
    for _ in range(3):
        state, _ = shared_learner.update(state, None, toy.batch(toy.rows()), toy.hyper())
    assert toy.same(pool.params(0), toy.params())
    assert not toy.same(state.params, toy.params())


def test_a_snapshot_changes_nothing_in_training(toy, shared_learner):
    def run(snapshots):
        pool = OpponentPool("sales", PoolSettings(size=4, store="host"))
        state = shared_learner.init(toy.params())
        for k in range(3):
            state, _ = shared_learner.update(state, None, toy.batch(toy.rows()), toy.hyper())
            if snapshots:
                pool.add(k, state.params)
        return toy.host(state)

    assert toy.same(run(True), run(False))


def test_first_epoch_has_ratio_one_and_the_second_clips(toy, shared_learner):
    batch = toy.on_policy(toy.batch(toy.rows()), toy.params())
    hyper = toy.hyper(learning_rate=0.3)
    state, first = shared_learner.update(shared_learner.init(toy.params()), None, batch, hyper)
    assert first["ratio_deviation_max"] < 1e-5
    assert first["clip_low"] == first["clip_high"] == 0.0
    _, second = shared_learner.update(state, None, batch, hyper)
    assert second["ratio_deviation_max"] > 0.2
    assert second["clip_low"] + second["clip_high"] > 0.0


def test_ratio_is_one_at_the_sampling_temperature_and_not_at_another(toy, shared_learner):
    batch = toy.on_policy(toy.batch(toy.rows()), toy.params(), temperature=0.6)
    for temperature, equal in ((0.6, True), (1.0, False)):
        _, metrics = shared_learner.update(
            shared_learner.init(toy.params()), None, batch, toy.hyper(temperature=temperature)
        )
        assert (metrics["ratio_deviation_max"] < 1e-5) == equal
        assert (metrics["logp_gap_max"] < 1e-5) == equal


def test_reference_log_probs_are_the_references_and_do_not_move_with_the_policy(
    toy, shared_learner
):
    batch, reference = toy.batch(toy.rows()), toy.params(3)
    logp = shared_learner.reference_logp(reference, None, batch, 0.6)
    expected, _ = toy.score(reference, None, batch.ids, batch.positions, batch.segment_ids, 0.6)
    real = batch.weight > 0
    np.testing.assert_allclose(np.asarray(logp)[real], np.asarray(expected)[real], rtol=1e-6)
    state = shared_learner.init(reference)
    start = batch.replace(reference_logp=logp)
    state, metrics = shared_learner.update(state, None, start, toy.hyper(temperature=0.6))
    assert metrics["kl"] < 1e-9
    state, metrics = shared_learner.update(state, None, start, toy.hyper(temperature=0.6))
    assert metrics["kl"] > 1e-5
    again = shared_learner.reference_logp(reference, None, batch, 0.6)
    np.testing.assert_array_equal(again, logp)


def test_a_token_is_learned_from_what_stands_before_it(toy, shared_learner):
    row = toy.row(1.0, turns=[(1, 3)])
    row.view.ids[:] = [1, 2, 3, 4, 5, 6]  # the one sampled token, 3, follows 2
    hyper = toy.hyper(kl=0.0, entropy=0.0)
    state, _ = shared_learner.update(
        shared_learner.init(toy.params()), None, toy.batch([row]), hyper
    )
    touched = np.abs(moments(state)["table"]).sum(axis=1) > 0
    assert touched.tolist() == [False, False, True, False, False, False, False]
    gained = np.asarray(state.params["table"] - toy.params()["table"])[2]
    assert gained[3] > 0
    assert (np.delete(gained, 3) < 0).all()


def test_the_rate_warms_up_by_the_roles_own_updates_and_stays(toy):
    hyper = toy.hyper(learning_rate=1.0, warmup_updates=4)
    rates = [float(learning_rate(hyper, u)) for u in range(14)]
    assert rates == [0.25, 0.5, 0.75, *[1.0] * 11]
    flat = toy.hyper(learning_rate=1.0, warmup_updates=0)
    assert [float(learning_rate(flat, u)) for u in (0, 5)] == [1.0, 1.0]


def test_metrics_name_the_rate_and_count_of_this_update(toy, shared_learner):
    hyper = toy.hyper(learning_rate=1.0, warmup_updates=4)
    state, metrics = shared_learner.update(
        shared_learner.init(toy.params()), None, toy.batch(toy.rows()), hyper
    )
    assert metrics["learning_rate"] == 0.25
    assert metrics["updates"] == state.updates == 1


@pytest.mark.parametrize("mode", ["tokens", "sequences"])
def test_cutting_micro_batches_to_their_longest_row_changes_nothing(toy, mode):
    batch, hyper = toy.batch(toy.rows(7), lengths=(64,)), toy.hyper()
    loss, grads = whole_gradient(toy, toy.params(), batch, hyper, normalise=mode)
    cut = toy.learner(micro=2, normalise=mode, lengths=(4, 8, 12))
    state, metrics = cut.update(cut.init(toy.params()), None, batch, hyper)
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert_close(jax.tree.map(lambda m: m / 0.1, moments(state)), grads)
    whole = toy.learner(micro=2, normalise=mode)
    one, two = (x.reference_logp(toy.params(), None, batch, 1.0) for x in (cut, whole))
    real = batch.segment_ids > 0
    assert_close(np.where(real, one, 0), np.where(real, two, 0))


@pytest.mark.parametrize("mode", ["tokens", "sequences", "constant"])
def test_lanes_change_neither_loss_nor_gradient_and_give_the_same_bits_again(toy, mode):
    batch, hyper = (
        toy.batch(toy.rows(7)),
        toy.hyper(),
    )  # the last of four micro-batches is half full
    one, two = toy.learner(normalise=mode), toy.learner(normalise=mode, lanes=2)
    state, said = one.update(one.init(toy.params()), None, batch, hyper)
    dealt, says = two.update(two.init(toy.params()), None, batch, hyper)
    assert_close(moments(dealt), moments(state))
    assert_close(says, said)
    again = two.update(two.init(toy.params()), None, batch, hyper)
    assert toy.same((dealt, says), again)


def test_reference_log_probs_do_not_depend_on_lanes(toy):
    batch = toy.batch(toy.rows(5))
    one, two = (toy.learner(lanes=n).reference_logp(toy.params(), None, batch, 1.0) for n in (1, 2))
    assert np.asarray(one)[batch.loss_mask].all()
    np.testing.assert_array_equal(one, two)


def test_a_batch_that_cannot_be_dealt_out_evenly_is_learned_by_fewer_lanes(toy):
    learner = toy.learner(lanes=3)  # four micro-batches: two lanes
    learner.update(learner.init(toy.params()), None, toy.batch(toy.rows()), toy.hyper())
    assert {name.split()[0] for name in learner.programs} == {"gradient", "step"}
    whole = toy.learner(lanes=2, micro=8)
    whole.update(whole.init(toy.params()), None, toy.batch(toy.rows(), micro=8), toy.hyper())
    assert {name.split()[0] for name in whole.programs} == {"update"}


def test_warmup_compiles_all_that_lanes_need(toy):
    learner = toy.learner(lanes=2)
    state = learner.init(toy.params())
    learner.warmup(state, None, [abstract_batch(8, 16)], toy.hyper(), reference=True)
    assert learner.compilations == 3
    batch = toy.batch(toy.rows())
    learner.reference_logp(state.params, None, batch, 1.0)
    for _ in range(2):
        state, _ = learner.update(state, None, batch, toy.hyper())
    assert learner.compilations == 3


def test_a_loss_that_is_not_finite_in_one_lane_is_refused_and_leaves_every_bit(toy):
    learner, batch = toy.learner(lanes=2), toy.batch(toy.rows())
    state = learner.init(toy.params())
    before = toy.host(state)
    advantage = np.array(batch.advantage)
    advantage[2] = np.nan  # the second lane's
    state, metrics = learner.update(state, None, batch.replace(advantage=advantage), toy.hyper())
    assert not metrics["finite"]
    assert toy.same(state, before)


def test_reference_log_probs_of_one_micro_batch_are_those_of_the_whole_batch(toy):
    """To the bit: it does not matter whether they are computed as dialogues end."""
    batch = toy.batch(toy.rows(8))
    learner = toy.learner(lengths=(8,))
    whole = np.asarray(learner.reference_logp(toy.params(), None, batch, 1.0))
    for b in range(0, 8, 2):
        part = jax.tree.map(lambda x, b=b: x[b : b + 2], batch)
        logp = np.asarray(learner.reference_logp(toy.params(), None, part, 1.0))
        np.testing.assert_array_equal(logp, whole[b : b + 2])
