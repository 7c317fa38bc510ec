"""Who meets whom in an evaluation, and that its table counts what was played, no more, no less."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import endpoint, load
from ibrl_jax.dialogue.agents import ScriptedSpeaker, SeatContext, Speaker
from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.endpoints.errors import EndpointError, Kind
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches
from ibrl_jax.evaluation.cells import Contestant
from ibrl_jax.evaluation.columns import columns_of
from ibrl_jax.evaluation.table import compared
from tests.evaluation.held import Kept, hold, local_policy

MINI = str(Path(__file__).parents[2] / "configs" / "dond" / "mini.py")
POLICIES = {"SFT start": "wanderer", "agent0": "conceder", "agent1": "splitter"}
"""Scripted families that stand for policies: they play real dialogues, and no network is needed."""


@dataclass(frozen=True, kw_only=True)
class _Policy:
    """A family under a policy's name."""

    ref: PolicyRef
    speaker: ScriptedSpeaker

    @property
    def name(self) -> str:
        return f"frozen:{self.ref.id}@{self.ref.version}"

    def sit(self, seat: SeatContext, conductor: Conductor) -> Any:
        return self.speaker.sit(seat, conductor)


@dataclass(frozen=True, kw_only=True)
class FakeCast(Cast):
    """Holds families where a cast holds parameters."""

    held: dict[tuple[Role, str], Any] = field(default_factory=dict)

    def load(self, role: Role, params: str, values: Any) -> None:
        self.held[role, params] = values

    def local(self, role: Role, params: str, ref: PolicyRef, temperature: float) -> Speaker:
        family = self.held[role, params]
        return _Policy(ref=ref, speaker=ScriptedSpeaker(domain=self.domain, family=family))


class HalfDown:
    """Walks away from half of all conversations, and cannot be reached in the others."""

    settings = SimpleNamespace(name="shaky")

    async def chat(self, messages: Sequence[Any], *, sample_index: int) -> Any:
        await asyncio.sleep(0)
        if sample_index % 2:
            raise EndpointError(Kind.TIMEOUT, "shaky", "no answer", 1)
        return SimpleNamespace(text="<disagree>", finish="stop")


class Down(HalfDown):
    async def chat(self, messages: Sequence[Any], *, sample_index: int) -> Any:
        raise EndpointError(Kind.CONNECTION, "down", "no connection", 1)


@pytest.fixture(scope="module")
def domain() -> Domain:
    return build_domain(settings())


@pytest.fixture(scope="module")
def cast(domain: Domain) -> FakeCast:
    endpoints: Any = {"shaky": HalfDown(), "down": Down()}
    speech = build_speech(settings())
    return FakeCast(domain=domain, speech=speech, engines={}, endpoints=endpoints, max_new=32)


def settings(counterparts: Sequence[str] = ("fair", "conceder"), **changes: Any) -> ConfigDict:
    """mini's, with a small evaluation."""
    config = load(MINI)
    config.evaluation.scenarios = 6
    config.evaluation.seeds = 2
    config.statistics.resamples = 100
    config.evaluation.counterparts = tuple(counterparts)
    with config.unlocked():
        for name in ("shaky", "down"):
            config.endpoints[name] = endpoint(base_url="http://127.0.0.1:9/v1")
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        node = config[section] if section else config
        node[name] = value
    return config


def contestants(*names: str) -> list[Contestant]:
    partners = {"SFT start": "SFT start", "agent0": "agent1", "agent1": "agent0"}
    return [
        local_policy(name, None if name == "SFT start" else name, 3, f"frozen:{partners[name]}")
        for name in names or POLICIES
    ]


def run(cast: Cast, config: ConfigDict, *names: str) -> tuple[dict[str, Any], Kept]:
    return hold(config, cast, contestants(*names), POLICIES)


@pytest.fixture(scope="module")
def whole(cast: FakeCast) -> tuple[dict[str, Any], Kept]:
    """All three policies, against a held-out family and a development one."""
    return run(cast, settings(["fair", "mirror", "conceder"]))


# ------------------------------------------------------------------------- who meets whom


def test_every_cell_plays_every_scenario_and_seed_in_both_seats(whole) -> None:
    table, kept = whole
    assert [row["policy"] for row in table["rows"]] == list(POLICIES)
    for row in table["rows"]:
        for column in ("fair", "mirror", "conceder", "in-system", "self-play"):
            cell = row["cells"][column]
            assert cell["planned"] == cell["n"] == 6 * 2 * 2
            assert cell["coverage"] == 1.0
            played = kept[row["policy"], column]
            times = Counter((t.scenario.id, t.draw) for t in played)
            assert len(times) == 12
            assert set(times.values()) == {2}
            assert len({t.scenario.id for t in played}) == cell["clusters"] == 6


def test_a_policy_sits_in_both_seats_and_opens_in_each_equally_often(whole) -> None:
    _, kept = whole
    for policy in POLICIES:
        for column in ("fair", "mirror", "conceder"):
            own = f"frozen:{policy}@3"
            seats = Counter(
                (role, t.first == role)
                for t in kept[policy, column]
                for role, name in t.speakers.items()
                if name == own
            )
            assert seats == {(r, o): 6 for r in ("agent0", "agent1") for o in (True, False)}


def test_the_same_dialogues_are_planned_for_every_policy_and_column(whole) -> None:
    _, kept = whole
    plans = {tuple((t.draw, t.rollout, t.first) for t in played) for played in kept.values()}
    assert len(plans) == 1


def test_in_system_meets_its_partner_and_self_play_itself(whole) -> None:
    _, kept = whole
    for policy, partner in (("agent0", "agent1"), ("agent1", "agent0"), ("SFT start", "SFT start")):
        met = {frozenset(t.speakers.values()) for t in kept[policy, "in-system"]}
        assert met == {frozenset({f"frozen:{policy}@3", f"frozen:{partner}@3"})}
        alone = {frozenset(t.speakers.values()) for t in kept[policy, "self-play"]}
        assert alone == {frozenset({f"frozen:{policy}@3"})}


def test_several_partners_are_met_in_turn(cast: FakeCast) -> None:
    pair = contestants("SFT start", "agent0")
    pair[1] = replace(pair[1], partners=("frozen:SFT start", "scripted:trader"))
    _, kept = hold(settings(["fair"]), cast, pair, POLICIES)
    others = Counter(name for t in kept["agent0", "in-system"] for name in t.speakers.values())
    assert others == {"frozen:agent0@3": 24, "frozen:SFT start@3": 12, "scripted:trader": 12}


def test_nobody_is_live_in_an_evaluation(whole) -> None:
    assert {t.matchup for played in whole[1].values() for t in played} == {frozenset()}


def test_the_scenarios_are_the_splits_and_no_runs_seed_changes_them(cast: FakeCast) -> None:
    found = []
    for seed in (0, 5):
        _, kept = run(cast, settings(["fair"], seed=seed), "SFT start")
        found.append([t.scenario.id for t in kept["SFT start", "fair"]])
    assert found[0] == found[1]
    test = {s.id for s in cast.domain.scenarios("test")}
    assert set(found[0]) <= test
    _, kept = run(cast, settings(["fair"], evaluation__split="val"), "SFT start")
    assert not test & {t.scenario.id for t in kept["SFT start", "fair"]}


def test_more_scenarios_than_a_split_has_are_refused(cast: FakeCast) -> None:
    config = settings(["fair"], evaluation__scenarios=10**6)
    with pytest.raises(UserError, match="config.evaluation.scenarios is 1000000, and test has"):
        run(cast, config, "SFT start")


# ------------------------------------------------------------------------- columns


def kinds(config: ConfigDict) -> dict[str, str]:
    return {column.name: column.kind for column in columns_of(config)}


def test_who_was_met_in_training_is_no_held_out_counterpart() -> None:
    rest = {"in-system": "in-system", "self-play": "self-play"}
    names = ["fair", "conceder", "scripted:lexi"]
    held_out = {"fair": "held-out", "conceder": "held-out", "lexi": "held-out"}
    taught = {**held_out, "conceder": "development"}
    assert kinds(settings(names)) == taught | rest
    assert kinds(settings(names, policy__start="some/folder")) == taught | rest
    for start in ("random", "pretrained"):  # neither was taught by anybody of ours
        assert kinds(settings(names, policy__start=start)) == held_out | rest
    alone = settings(names)
    alone.roles.agent1.counterpart = ("scripted:lexi",)
    assert kinds(alone) == {**taught, "lexi": "development"} | rest


def test_two_columns_of_one_name_are_refused() -> None:
    for names in (["fair", "scripted:fair"], ["shaky", "api:shaky"]):
        with pytest.raises(UserError, match="makes two columns named"):
            columns_of(settings(names))


def test_all_held_out_pools_the_held_out_columns_alone(whole) -> None:
    table, _ = whole
    assert table["columns"][0] == {"name": "all held-out", "kind": "held-out", "counterpart": None}
    for row in table["rows"]:
        pooled, fair, mirror = (row["cells"][c] for c in ("all held-out", "fair", "mirror"))
        assert pooled["planned"] == pooled["n"] == 48
        assert pooled["clusters"] == 6
        assert pooled["agreement"] == pytest.approx((fair["agreement"] + mirror["agreement"]) / 2)
        reasons = Counter(fair["end_reasons"]) + Counter(mirror["end_reasons"])
        assert pooled["end_reasons"] == reasons


def test_without_held_out_counterparts_nothing_is_called_held_out(cast: FakeCast) -> None:
    table, _ = run(cast, settings(["conceder"]), "SFT start")
    assert [column["kind"] for column in table["columns"]] == [
        "development",
        "in-system",
        "self-play",
    ]


# ------------------------------------------------------------------------- the table


def test_a_cell_says_what_its_dialogues_say(whole) -> None:
    table, kept = whole
    for row in table["rows"]:
        for column in ("fair", "conceder"):
            played, cell = kept[row["policy"], column], row["cells"][column]
            deals = [t for t in played if t.outcome.success]
            assert 0 < len(deals) <= len(played)
            assert cell["agreement"] == len(deals) / len(played)
            own = []
            for t in deals:
                (seat,) = (r for r, name in t.speakers.items() if name.startswith("frozen"))
                own.append(t.outcome.facts["points"][seat] / t.outcome.facts["total"][seat])
            assert cell["own_utility"] == pytest.approx(sum(own) / len(own))
            assert cell["expected_utility"] == pytest.approx(sum(own) / len(played))
            low, high = cell["expected_utility_ci"]
            assert low <= cell["expected_utility"] <= high
            assert sum(cell["end_reasons"].values()) == 24


def test_every_policy_is_compared_with_the_first_in_every_column(whole, domain: Domain) -> None:
    table, _ = whole
    cells = {row["policy"]: row["cells"] for row in table["rows"]}
    names = [column["name"] for column in table["columns"]]
    assert len(table["comparisons"]) == 2 * len(names) * len(compared(domain))
    for found in table["comparisons"]:
        assert found["reference"] == "SFT start"
        column, measure = found["column"], found["measure"]
        mine, theirs = cells[found["policy"]][column], cells["SFT start"][column]
        assert found["difference"] == pytest.approx(mine[measure] - theirs[measure])
        assert found["ci"][0] <= found["difference"] <= found["ci"][1]


def test_the_same_call_gives_the_same_table(cast: FakeCast, whole) -> None:
    again, _ = run(cast, settings(["fair", "mirror", "conceder"]))
    assert json.dumps(again) == json.dumps(whole[0])


def test_a_cell_does_not_depend_on_what_else_is_evaluated(cast: FakeCast, whole) -> None:
    alone, _ = run(cast, settings(["mirror"]), "agent1", "agent0")
    full = {row["policy"]: row["cells"] for row in whole[0]["rows"]}
    for row in alone["rows"]:
        for name in ("mirror", "in-system", "self-play"):
            assert row["cells"][name] == full[row["policy"]][name]


def test_the_table_names_the_settings_that_made_it(whole) -> None:
    used = whole[0]["settings"]
    assert used["evaluation"]["scenarios"] == 6
    assert used["domain"]["select_rule"] == "last_try"
    assert used["in_system"]["agent0"] == ["frozen:agent1"]
    json.dumps(whole[0], allow_nan=False)


# ------------------------------------------------------------------------- what is missing


def test_a_missing_result_is_coverage_and_no_zero(cast: FakeCast) -> None:
    """Half of the dialogues fail: the shares are over the others, and the cell says so."""
    config = settings(["fair", "api:shaky"])
    config.rewards.min_coverage = 0.0
    table, kept = run(cast, config, "SFT start")
    cell = table["rows"][0]["cells"]["shaky"]
    aborted = [t for t in kept["SFT start", "shaky"] if t.outcome.end_reason == "aborted"]
    assert 0 < len(aborted) < 24
    assert cell["planned"] == 24
    assert cell["n"] == 24 - len(aborted)
    assert cell["coverage"] == pytest.approx(1 - len(aborted) / 24)
    assert cell["end_reasons"]["aborted"] == len(aborted)
    assert cell["agreement"] == 0.0  # it walks away from whatever it answers
    pooled, fair = (table["rows"][0]["cells"][name] for name in ("all held-out", "fair"))
    deals = fair["agreement"] * 24
    assert pooled["agreement"] == pytest.approx(deals / (48 - len(aborted)))
    assert pooled["coverage"] == pytest.approx(1 - len(aborted) / 48)


def test_a_cell_without_any_result_is_empty_and_no_zero(cast: FakeCast) -> None:
    config = settings(["api:down"])
    config.rewards.min_coverage = 0.0
    table, _ = run(cast, config)
    for row in table["rows"]:
        cell = row["cells"]["down"]
        assert (cell["n"], cell["planned"], cell["coverage"]) == (0, 24, 0.0)
        for name in ("agreement", "own_utility", "expected_utility", "joint_value", "pareto"):
            assert cell[name] is None
        assert cell["agreement_ci"] is None
        assert cell["expected_utility_ci"] is None
    for found in table["comparisons"]:
        if found["column"] in ("down", "all held-out"):
            assert found["difference"] is None
            assert found["ci"] is None
            assert found["note"]
    json.dumps(table, allow_nan=False)


@pytest.mark.parametrize("cut", [slice(1, None), slice(0, 0)], ids=["one missing", "all missing"])
def test_fewer_results_than_asked_for_are_an_error(
    cast: FakeCast, monkeypatch: pytest.MonkeyPatch, cut: slice
) -> None:
    play: Callable[..., list[Trajectory]] = matches.play
    monkeypatch.setattr(matches, "play", lambda *args: play(*args)[cut])
    with pytest.raises(RuntimeError, match="dialogues of 24 asked for"):
        run(cast, settings(["fair"]), "SFT start")


def test_an_unknown_counterpart_is_one_sentence(cast: FakeCast) -> None:
    with pytest.raises(UserError, match="There is no scripted family 'nobody'"):
        run(cast, settings(["nobody"]), "SFT start")


def test_without_resampling_a_dialogue_with_a_refused_turn_is_no_agreement(whole) -> None:
    table, _ = whole
    for row in table["rows"]:
        for cell in row["cells"].values():
            assert cell["first_try_agreement"] <= cell["agreement"] + 1e-9
            assert cell["first_try_expected_utility"] <= cell["expected_utility"] + 1e-9
            if not cell["retries"]:
                assert cell["first_try_agreement"] == pytest.approx(cell["agreement"])


def test_a_counterpart_that_does_not_answer_ends_the_evaluation(cast: FakeCast) -> None:
    """A table of the few dialogues that ended before it spoke would be a biased one."""
    with pytest.raises(UserError, match=r"only 0% of the dialogues of SFT start against down"):
        run(cast, settings(["api:down"]))
