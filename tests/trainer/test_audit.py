"""The audit itself: isolation holds to the bit, and a leak of any kind would be noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from ibrl_jax.config import load
from ibrl_jax.dialogue.build import build_hall
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.errors import UserError
from ibrl_jax.proofs import audit as audits
from ibrl_jax.proofs.audit import CHANGES, SECOND_VALUES, Finding, audit
from ibrl_jax.proofs.retell import retold, with_other_observation
from ibrl_jax.rewards import types
from ibrl_jax.rewards.types import Scored
from ibrl_jax.rl.advantages import Vote
from ibrl_jax.trainer import algorithm as algorithms
from ibrl_jax.trainer import build as builders
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.session import Stage
from ibrl_jax.trainer.teachers import converse
from ibrl_jax.trainer.weights import Weights
from tests.trainer.conftest import House, quick_compile

AUDIT = Path(__file__).parents[2] / "configs" / "dond" / "audit.py"
ROLES = ("agent0", "agent1")


@pytest.fixture(scope="module")
def config(house: House) -> Any:
    """The audit's own, with the buckets and the few dialogues that the house is compiled for."""
    fixed = house.config()
    config = load(str(AUDIT))
    config.run.root = fixed.run.root
    config.rollout.draws = fixed.rollout.draws
    config.engine = fixed.engine
    config.optimiser = fixed.optimiser
    config.rollout.retries = 12  # such a start says little that is legal; let it be heard
    return config


@pytest.fixture(scope="module")
def scene(house: House, config: Any) -> Iterator[Any]:
    """The iteration that is audited, played once; what can be shared is not compiled again."""
    build_learner = builders.build_learner

    def shared(config: Any, speech: Any) -> Any:
        usual = config.isolation.mask == "own" and config.isolation["update"] == "separate"
        return house.learner if usual else build_learner(config, speech)

    def stage(config: Any, note: Any) -> Stage:
        algorithm = Algorithm(config, house.cast, house.start, {})
        return Stage(
            config=config,
            domain=house.cast.domain,
            speech=house.cast.speech,
            start=house.start,
            algorithm=algorithm,
        )

    with pytest.MonkeyPatch.context() as patch, quick_compile():
        patch.setattr(builders, "build_learner", shared)
        patch.setattr(audits, "set_up", stage)
        found = audits._Scene(config, lambda note: None)
        patch.setattr(audits, "_Scene", lambda config, note: found)
        yield found


@pytest.fixture(scope="module")
def findings(scene: Any, config: Any) -> list[Finding]:
    return audit(config, lambda note: None)


def test_every_comparison_comes_out_as_it_must(findings: list[Finding]) -> None:
    assert [f for f in findings if not f.holds] == []
    assert len(findings) == 2 * (2 * len(CHANGES) + len(SECOND_VALUES))


def test_both_roles_are_audited_for_every_change_and_flag(findings: list[Finding]) -> None:
    for role, other in (ROLES, ROLES[::-1]):
        isolated = [f for f in findings if f.role == role and not f.should_move]
        assert {f.changed for f in isolated} == {f"{other}: {name}" for name in CHANGES}
        felt = [f for f in findings if f.role == role and f.should_move]
        flags = {f.flag for f in felt}
        assert flags == {
            *("all isolated", "reward=shared", "advantage=joint", "mask=all", "update=tied")
        }
        own = {f.changed for f in felt if f.flag == "all isolated"}
        assert own == {f"{role}: {name}" for name in CHANGES}


def test_a_change_that_reaches_nobody_is_noticed(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave A's update alone whatever leaked, so B's own must move by it."""
    monkeypatch.setattr(
        audits, "CHANGES", {"nothing": lambda algorithm, dialogues, role: dialogues}
    )
    monkeypatch.setattr(audits, "SECOND_VALUES", ())
    wrong = [f for f in audit(config, lambda note: None) if not f.holds]
    assert {(f.role, f.changed) for f in wrong} == {(r, f"{r}: nothing") for r in ROLES}
    assert all(f.should_move for f in wrong)


def test_another_observation_makes_anew_what_the_role_is_shown_and_nothing_else(scene: Any) -> None:
    algorithm = scene._algorithm({})
    changed, other = ROLES
    again = audits.observation(algorithm, scene._dialogues, changed)
    prompt = algorithm.cast.domain.prompt
    for t, u in zip(scene._dialogues, again, strict=True):
        assert u.turns == t.turns
        assert u.scenario.public == t.scenario.public
        assert u.scenario.private[other] == t.scenario.private[other]
        assert prompt(u.scenario, changed) != prompt(t.scenario, changed)
        assert u.outcome.end_reason == t.outcome.end_reason
        for name in ("ids", "segment", "turn_index", "loss_mask", "behaviour_logp"):
            one, two = (getattr(x.views[other], name) for x in (t, u))
            assert one.dtype == two.dtype
            assert one.tobytes() == two.tobytes()
        one, two = (x.views[changed] for x in (t, u))
        said = [view.ids[view.turn_index >= 0].tobytes() for view in (one, two)]
        assert said[0] == said[1]
        assert one.ids.tobytes() != two.ids.tobytes()
        assert len(two.ids) <= len(one.ids)


def test_a_deal_told_again_pays_by_the_other_values(house: House, config: Any) -> None:
    """The fair split of one scenario; agent0's values then change, and its points with them."""
    domain = house.cast.domain
    hall = build_hall(config, domain, retries=0, concurrency=1)
    moved = 0
    for index, scenario in enumerate(domain.scenarios("train")[::40]):
        families: dict[str, str] = dict.fromkeys(ROLES, "splitter")
        referee = converse(domain, scenario, families, ROLES[0], index)
        assert referee.outcome is not None
        told = Trajectory(
            scenario=scenario,
            draw="0.0",
            rollout=0,
            first=ROLES[0],
            matchup=frozenset(),
            speakers={},
            turns=referee.turns,
            views={},
            outcome=referee.outcome,
            rewards={role: Scored(value=domain.reward(referee.outcome, role)) for role in ROLES},
            retries={},
        )
        another = with_other_observation(house.cast, scenario, ROLES[0])
        again = retold(house.cast, hall, told, another)
        assert again.rewards[ROLES[1]] == told.rewards[ROLES[1]]
        for role in ROLES:
            assert again.rewards[role] == Scored(value=again.outcome.facts["points"][role] / 10)
        moved += again.rewards[ROLES[0]] != told.rewards[ROLES[0]]
    assert moved > 3


def test_mask_all_learns_from_the_counterparts_words_too(scene: Any) -> None:
    algorithm = scene._algorithm({"mask": "all"})
    _, updates = algorithm.learn(scene._dialogues)
    for role in ROLES:
        views = [t.views[role] for t in scene._dialogues if role in t.matchup]
        own = sum(int(view.loss_mask.sum()) for view in views)
        heard = sum(int((view.segment == 2).sum()) for view in views)
        assert heard > 0
        assert updates[role]["tokens"] == own + heard


# ------------------------------------------------------------------------- leaks


def leaks(scene: Any, config: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the audit, cut down to one change, says that isolation does not hold."""
    monkeypatch.setattr(audits, "CHANGES", {name: CHANGES[name]})
    monkeypatch.setattr(audits, "SECOND_VALUES", ())
    found = audit(config, lambda note: None)
    assert len(found) == 4
    return not all(f.holds for f in found if not f.should_move)


def test_a_leak_of_rewards_is_noticed(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundredth of the other role's reward in one's own."""
    credit = algorithms.credit

    def leaky(votes: list[Vote], settings: Any) -> Any:
        paid = {v.seat: v.reward for v in votes}
        mixed = []
        for v in votes:
            other = paid[ROLES[v.role == ROLES[0]], v.draw, v.rollout]
            mixed.append(Vote(**{**vars(v), "reward": (v.reward or 0.0) + 0.01 * (other or 0.0)}))
        return credit(mixed, settings)

    assert not leaks(scene, config, "rewards", monkeypatch)
    monkeypatch.setattr(algorithms, "credit", leaky)
    assert leaks(scene, config, "rewards", monkeypatch)


def test_a_leak_of_observations_is_noticed(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of all the other role's prompt, as one token of one's own."""
    rows_of = algorithms.rows_of

    def leaky(trajectories: Any, credits: Any, role: str) -> Any:
        rows = rows_of(trajectories, credits, role)
        views = {(t.draw, t.rollout): t.views[ROLES[role == ROLES[0]]] for t in trajectories}
        for row in rows:
            theirs = views[row.draw, row.rollout]
            row.view.ids[1] = theirs.ids[theirs.turn_index == -1].sum() % 600
        return rows

    changed = scene._dialogues
    try:
        scene._dialogues = [_copied(t) for t in changed]
        monkeypatch.setattr(algorithms, "rows_of", leaky)
        assert leaks(scene, config, "private observation", monkeypatch)
    finally:
        scene._dialogues = changed


def test_a_leak_into_a_judges_case_is_noticed(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole outcome, joint facts and all; rules would pay the same for it."""
    monkeypatch.setattr(types, "_seen_by", lambda role, outcome, roles: outcome)
    assert leaks(scene, config, "private observation", monkeypatch)


def test_a_leak_into_a_prompt_is_noticed(
    scene: Any, house: House, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = house.cast.domain
    prompt = domain.prompt

    def leaky(scenario: Any, role: str) -> str:
        return f"{prompt(scenario, role)}{scenario.private[ROLES[role == ROLES[0]]]['values'][0]}"

    monkeypatch.setattr(domain, "prompt", leaky)
    assert leaks(scene, config, "private observation", monkeypatch)


def _copied(t: Any) -> Any:
    views = {role: replace(view, ids=np.array(view.ids)) for role, view in t.views.items()}
    return replace(t, views=views)


def test_a_leak_of_settings_is_noticed(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first role's learning rate, and the other's."""
    learn = Algorithm._learn

    def leaky(self: Any, owner: str, lesson: Any) -> Any:
        self.hyper = {**self.hyper, owner: self.hyper[ROLES[owner == ROLES[0]]]}
        return learn(self, owner, lesson)

    monkeypatch.setattr(Algorithm, "_learn", leaky)
    name = "learning rate, KL and entropy weights"
    assert leaks(scene, config, name, monkeypatch)


def test_a_leak_of_schedules_is_noticed(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody updates unless all do."""
    turn_of = Algorithm._turn_of
    monkeypatch.setattr(
        Algorithm, "_turn_of", lambda self, owner: all(turn_of(self, o) for o in ROLES)
    )
    assert leaks(scene, config, "schedule", monkeypatch)


def test_a_leak_of_optimisers_is_noticed(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other role's parameters in the place of one's reference."""
    learn = Algorithm._learn

    def leaky(self: Any, owner: str, lesson: Any) -> Any:
        self._start[owner] = Weights(trained=frozen[owner == ROLES[0]], frozen=None)
        return learn(self, owner, lesson)

    learned = Algorithm.learn

    def keep(self: Any, trajectories: Any) -> Any:
        frozen[:] = [jax.tree.map(np.array, self.states[role].params) for role in ROLES]
        return learned(self, trajectories)

    frozen: list[Any] = []
    monkeypatch.setattr(Algorithm, "_learn", leaky)
    monkeypatch.setattr(Algorithm, "learn", keep)
    assert leaks(scene, config, "optimiser state and parameters", monkeypatch)


def test_an_audit_that_does_not_hold_is_a_failure_with_its_count(
    scene: Any, config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the findings are written down all the same."""
    wrong = Finding(role="agent0", flag="all isolated", changed="x", moved=True, should_move=False)
    right = Finding(role="agent1", flag="all isolated", changed="x", moved=False, should_move=False)
    monkeypatch.setattr(audits, "audit", lambda config, note: [wrong, right])
    options = [f"--config={AUDIT}", f"--config.run.root={tmp_path}"]
    with pytest.raises(UserError, match="isolation: 1 of 2 comparisons came out as they must"):
        audits.main(options, Console(quiet=True))
    (summary,) = tmp_path.rglob("summary.json")
    assert '"holds": 1' in summary.read_text()
