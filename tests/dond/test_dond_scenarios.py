"""The enumeration, its counts and oracles; splits that never share a scenario."""

import pytest

from ibrl_jax.domains.dond.scenarios import (
    SPLITS,
    check_disjoint,
    count_triples,
    enumerate_ordered,
    enumerate_unordered,
    enumerated_splits,
    make_scenario,
    one_order_each,
    pick_order,
    side_values,
    split_of,
    swapped,
)
from ibrl_jax.domains.dond.scoring import (
    allocations,
    analyse,
    board,
    complement,
    oracles,
    settle,
    worth,
)
from ibrl_jax.errors import UserError


@pytest.mark.parametrize(
    "max_count, triples, contexts, ordered, unordered",
    [(4, 28, 438, 5295, 2706), (5, 31, 492, 5793, 2961)],
)
def test_enumeration_has_the_known_size(max_count, triples, contexts, ordered, unordered):
    scenarios = enumerate_ordered(max_count)
    sides = {(board(s)[0], values) for s in scenarios for values in board(s)[1:]}
    assert len(count_triples(max_count)) == triples
    assert len(sides) == contexts
    assert sum(len(side_values(c)) for c in count_triples(max_count)) >= contexts
    assert len(scenarios) == len({s.id for s in scenarios}) == ordered
    assert len({s.cluster for s in scenarios}) == len(enumerate_unordered(max_count)) == unordered


def test_every_enumerated_scenario_obeys_the_rules_of_the_game():
    for scenario in enumerate_ordered(4):
        counts, first, second = board(scenario)
        assert 5 <= sum(counts) <= 7
        assert worth(counts, first) == worth(counts, second) == 10
        assert all(a or b for a, b in zip(first, second, strict=True))
        assert any(a and b for a, b in zip(first, second, strict=True))


def test_oracles_over_the_enumeration_are_the_known_ones():
    found = oracles(enumerate_unordered(4))
    assert found.scenarios == 2706
    assert round(found.first_best, 4) == 14.9490
    assert round(found.own_utility, 4) == 0.5
    assert round(found.joint_value, 4) == 0.6864
    assert round(found.pareto, 4) == 0.2466


def test_swapping_keeps_the_cluster_and_exchanges_the_private_sides():
    scenario = make_scenario((1, 4, 1), (4, 1, 2), (0, 2, 2))
    mirror = swapped(scenario)
    assert scenario.id == "1.4.1-4.1.2-0.2.2"
    assert mirror.id == mirror.cluster == scenario.cluster == "1.4.1-0.2.2-4.1.2"
    assert mirror.private["agent0"] == scenario.private["agent1"]
    assert swapped(mirror) == scenario
    assert scenario.public == {"counts": [1, 4, 1]}


def test_analysis_agrees_with_its_definition_on_many_scenarios():
    for scenario in enumerate_unordered(4)[::60]:
        counts, a, b = board(scenario)
        pairs = {n: (worth(n, a), worth(complement(n, counts), b)) for n in allocations(counts)}
        best = analyse(counts, a, b)
        assert best.first_best == max(p + q for p, q in pairs.values())
        for n, (p, q) in pairs.items():
            beaten = any(x >= p and y >= q and (x, y) != (p, q) for x, y in pairs.values())
            assert (n in best.pareto) == (not beaten)
            assert settle(scenario, n)["pareto"] == (not beaten)


def test_an_impossible_allocation_is_refused():
    scenario = make_scenario((2, 2, 1), (1, 3, 2), (4, 1, 0))
    for items in ((3, 0, 0), (-1, 0, 0)):
        with pytest.raises(ValueError, match="cannot receive"):
            settle(scenario, items)


def test_splits_are_disjoint_complete_seeded_and_in_proportion():
    shares = (0.8, 0.1, 0.1)
    splits = enumerated_splits(max_count=4, seed=3, fractions=shares)
    check_disjoint(splits)
    clusters = {split: {s.cluster for s in splits[split]} for split in SPLITS}
    assert sum(map(len, clusters.values())) == 2706
    for split, share in zip(SPLITS, shares, strict=True):
        assert abs(len(clusters[split]) / 2706 - share) < 0.03
    assert {s.id for s in splits["train"]} == {swapped(s).id for s in splits["train"]}
    for split in ("val", "test"):
        assert len(splits[split]) == len(clusters[split])
        low = sum(s.id == s.cluster for s in splits[split])
        assert 0.3 < low / len(splits[split]) < 0.7  # neither seat always has the lower values
    assert splits == enumerated_splits(max_count=4, seed=3, fractions=shares)
    assert splits["val"] != enumerated_splits(max_count=4, seed=4, fractions=shares)["val"]


def test_a_scenario_stays_in_its_split_when_more_are_enumerated():
    shares = (0.6, 0.2, 0.2)
    small = enumerated_splits(max_count=4, seed=0, fractions=shares)
    large = enumerated_splits(max_count=5, seed=0, fractions=shares)
    for split in SPLITS:
        assert {s.id for s in small[split]} < {s.id for s in large[split]}


def test_split_of_covers_the_whole_unit_interval():
    found = {split_of(f"c{k}", seed=0, fractions=(0.1, 0.1, 0.8)) for k in range(200)}
    assert found == set(SPLITS)


def test_the_order_of_a_scenario_does_not_depend_on_where_one_starts():
    for scenario in enumerate_ordered(4)[::97]:
        assert pick_order(scenario, 5) == pick_order(swapped(scenario), 5)
    few = enumerate_ordered(4)[:50]
    once = one_order_each([*few, *map(swapped, few)], 5)
    assert [s.cluster for s in once] == list(dict.fromkeys(s.cluster for s in few))


def test_splits_that_share_a_scenario_are_refused_in_either_order():
    scenario = make_scenario((1, 4, 1), (4, 1, 2), (0, 2, 2))
    with pytest.raises(
        UserError, match=r"train and test share 1 scenario.*1\.4\.1-0\.2\.2-4\.1\.2"
    ):
        check_disjoint({"train": [scenario], "val": [], "test": [swapped(scenario)]})


@pytest.mark.parametrize(
    "fractions", [(0.5, 0.5), (0.5, 0.6, 0.1), (1.0, 0.0, 0.0), (0.9, 0.2, -0.1)]
)
def test_bad_split_fractions_are_named(fractions):
    with pytest.raises(UserError, match=r"dond\.split_fractions"):
        enumerated_splits(max_count=4, seed=0, fractions=fractions)


def test_an_empty_split_is_named():
    with pytest.raises(UserError, match="no scenario in test"):
        enumerated_splits(max_count=2, seed=0, fractions=(0.5, 0.5 - 1e-8, 1e-8))
