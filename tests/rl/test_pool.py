"""Snapshots are copies, the newest are kept, and which one is met depends on identities alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.rl.pool import OpponentPool, PoolSettings


def pool(role="sales", *, size=3, store: Any = "host", versions=()) -> OpponentPool:
    made = OpponentPool(role, PoolSettings(size=size, store=store))
    for v in versions:
        made.add(v, {"w": jnp.full(3, float(v))})
    return made


def test_an_empty_pool_has_nobody_to_meet():
    assert pool().sample(0, 0) is None
    assert len(pool()) == 0


def test_a_ring_keeps_the_newest():
    assert pool(versions=range(5)).versions == (2, 3, 4)
    assert pool(versions=range(5)).params(3)["w"][0] == 3.0
    with pytest.raises(KeyError, match="version 0 is not in the pool"):
        pool(versions=range(5)).params(0)


def test_a_role_that_did_not_update_is_not_entered_twice():
    made = pool(versions=[1, 4])
    assert not made.add(4, {"w": jnp.zeros(3)})
    assert made.versions == (1, 4)
    with pytest.raises(ValueError, match="version 2 comes after version 4"):
        made.add(2, {"w": jnp.zeros(3)})


def test_the_snapshot_met_is_a_function_of_seed_iteration_and_role():
    a, b = pool(versions=range(3)), pool(versions=range(3))
    first = [a.sample(0, k) for k in range(40)]
    assert [b.sample(0, k) for k in reversed(range(40))] == first[::-1]
    assert set(first) == {0, 1, 2}
    assert [a.sample(1, k) for k in range(40)] != first
    assert [pool("customer", versions=range(3)).sample(0, k) for k in range(40)] != first


def test_with_a_bound_the_live_policy_is_not_its_own_past():
    made = pool(versions=[2, 5, 7])
    assert {made.sample(0, k, below=7) for k in range(40)} == {2, 5}
    assert made.sample(0, 0, below=2) is None


@pytest.mark.parametrize("store", ["host", "device"])
def test_a_snapshot_is_not_aliased_by_a_donated_buffer(store):
    made = pool(store=store)
    live = {"w": jnp.arange(4096, dtype=jnp.float32)}
    made.add(0, live)
    step = jax.jit(lambda p: jax.tree.map(lambda x: x * 0 - 1, p), donate_argnums=0)
    after = step(live)
    jax.block_until_ready(after)
    assert live["w"].is_deleted()
    np.testing.assert_array_equal(made.params(0)["w"], np.arange(4096, dtype=np.float32))


@pytest.mark.parametrize("store, kind", [("host", np.ndarray), ("device", jax.Array)])
def test_state_and_restore_round_trip_to_the_bit(store, kind):
    made = pool(store=store, versions=range(5))
    again = pool(store=store)
    again.restore(made.state())
    assert again.versions == made.versions
    for v in made.versions:
        assert isinstance(again.params(v)["w"], kind)
        np.testing.assert_array_equal(again.params(v)["w"], made.params(v)["w"])
    assert [again.sample(0, k) for k in range(20)] == [made.sample(0, k) for k in range(20)]
    again.add(9, {"w": jnp.zeros(3)})
    assert again.versions == (3, 4, 9)
    assert made.versions == (2, 3, 4)


def test_another_roles_or_a_broken_checkpoint_is_refused():
    state = pool(versions=range(3)).state()
    for bad, says in [
        (state | {"role": "customer"}, "cannot be restored"),
        (state | {"versions": [0, 1]}, "3 snapshots with versions"),
        (state | {"versions": [2, 1, 0]}, "3 snapshots with versions"),
    ]:
        with pytest.raises(ValueError, match=says):
            pool().restore(bad)
    with pytest.raises(ValueError, match="3 snapshots in a pool of 2"):
        pool(size=2).restore(state)


@pytest.mark.parametrize("bad", [dict(size=0), dict(store="disk")])
def test_a_bad_setting_is_named(bad):
    with pytest.raises(UserError, match="pool"):
        pool(**bad)
