"""Who is live and who updates: the paper's proportions, from identities alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.rl.schedule import draw_matchup, updates_now

PAPER = {"all": 0.7, "sales": 0.2, "customer": 0.1}
ROLES = ("sales", "customer")


def matchup(draw="d", rollout=0, iteration=0, **changes: Any):
    options: dict[str, Any] = dict(
        sample_per="rollout", probabilities=PAPER, roles=ROLES, stocked=ROLES
    )
    return draw_matchup(0, iteration, draw, rollout, **(options | changes))


def test_a_role_at_half_the_frequency_updates_five_times_in_ten():
    assert sum(updates_now(k, 1, 0) for k in range(10)) == 10
    assert [k for k in range(10) if updates_now(k, 2, 0)] == [0, 2, 4, 6, 8]
    assert [k for k in range(10) if updates_now(k, 2, 1)] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("every, offset", [(0, 0), (2, 2), (2, -1)])
def test_an_impossible_schedule_is_refused(every, offset):
    with pytest.raises(UserError, match="offset"):
        updates_now(0, every, offset)


def test_matchups_come_in_the_papers_proportions():
    n = 4000
    seen = Counter(matchup(rollout=g) for g in range(n))
    expected = {frozenset(ROLES): 0.7, frozenset({"sales"}): 0.2, frozenset({"customer"}): 0.1}
    assert set(seen) == set(expected)
    for live, p in expected.items():
        assert abs(seen[live] / n - p) < 4 * (p * (1 - p) / n) ** 0.5


def test_sample_per_says_what_shares_one_matchup():
    seats = [(i, f"d{q}", g) for i in range(6) for q in range(6) for g in range(6)]

    def kinds(per, key):
        groups: dict = {}
        for i, d, g in seats:
            groups.setdefault(key(i, d), set()).add(matchup(d, g, i, sample_per=per))
        return [len(v) for v in groups.values()]

    assert max(kinds("rollout", lambda i, d: (i, d))) > 1
    assert max(kinds("scenario", lambda i, d: (i, d))) == 1
    assert max(kinds("scenario", lambda i, d: i)) > 1
    assert max(kinds("iteration", lambda i, d: i)) == 1
    assert max(kinds("iteration", lambda i, d: 0)) > 1


def test_a_seat_that_an_empty_pool_would_fill_makes_all_live():
    only_sales: dict[str, Any] = dict(probabilities={"all": 0.0, "sales": 1.0, "customer": 0.0})
    assert matchup(**only_sales) == {"sales"}
    assert matchup(**only_sales, stocked=["customer"]) == {"sales"}
    assert matchup(**only_sales, stocked=["sales"]) == set(ROLES)
    assert matchup(**only_sales, stocked=[]) == set(ROLES)


def test_three_roles_are_one_more_key():
    p = {"all": 0.0, "a": 0.5, "b": 0.0, "c": 0.5}
    seen = {matchup(rollout=g, probabilities=p, roles="abc", stocked="abc") for g in range(50)}
    assert seen == {frozenset("a"), frozenset("c")}


@pytest.mark.parametrize(
    "bad, says",
    [
        (PAPER | {"all": 0.8}, "sum to 1.1"),
        (PAPER | {"agent1": 0.0}, "`agent1` names no role"),
        ({"all": 0.7, "sales": 0.3}, "`customer` is missing"),
        (PAPER | {"sales": -0.2, "all": 1.1}, "`all` is 1.1"),
        (PAPER | {"sales": float("nan")}, "`sales` is nan"),
    ],
)
def test_bad_probabilities_name_the_key(bad, says):
    with pytest.raises(UserError, match=says):
        matchup(probabilities=bad)


def test_a_role_called_all_and_an_unknown_sample_per_are_refused():
    with pytest.raises(UserError, match="called `all`"):
        matchup(roles=("all", "b"), probabilities={"all": 0.5, "b": 0.5})
    with pytest.raises(UserError, match="per `turn`"):
        matchup(sample_per="turn")
