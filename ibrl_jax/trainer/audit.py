"""`make audit`: shows, bitwise, that of the other role only its utterances reach a role's update.

A real iteration is played once, and its dialogues are then learned from again and again. Each time
one thing of role B is changed, the utterances held fixed, and every bit of role A's parameters,
moments and counters after its update is compared. Under the second value of each isolation flag the
same comparison must fail, or the audit could not see a leak.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from ibrl_jax import config as configs
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator
from ibrl_jax.rewards.types import Scored
from ibrl_jax.rl.learner import LearnerState
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.run import RunFolder, write_json
from ibrl_jax.trainer.session import set_up

Dialogues = Sequence[Trajectory]
Change = Callable[[Algorithm, list[Trajectory], Role], list[Trajectory]]
"""Changes something of a role, in the algorithm or in the dialogues that it gives back."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison: what was changed, whether A's update moved, and whether it should have."""

    role: Role
    flag: str
    changed: str
    moved: bool
    should_move: bool

    @property
    def holds(self) -> bool:
        return self.moved == self.should_move


def rewards(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """Other rewards for the role, in every dialogue."""
    rng = generator(0, "audit", "rewards", role)
    return [
        replace(t, rewards={**t.rewards, role: Scored(value=float(rng.uniform(-1, 1)))})
        for t in dialogues
    ]


def observation(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """Another private observation for the role, in the scenario and in its own prompt's tokens."""
    changed = []
    for t, other in zip(dialogues, reversed(dialogues), strict=True):
        private = {**t.scenario.private, role: {"counts": [9, 9, 9], "values": [9, 9, 9]}}
        views = dict(t.views)
        if role in views and role in other.views:
            view, donor = views[role], other.views[role]
            prompt = view.turn_index == -1
            ids = view.ids.copy()
            ids[prompt] = np.resize(donor.ids[donor.turn_index == -1][::-1], int(prompt.sum()))
            views[role] = replace(view, ids=ids)
        changed.append(replace(t, scenario=replace(t.scenario, private=private), views=views))
    return changed


def learning_rate(
    algorithm: Algorithm, dialogues: list[Trajectory], role: Role
) -> list[Trajectory]:
    """A learning rate, KL and entropy weight of the role that are ten times larger."""
    hyper = algorithm.hyper[role]
    algorithm.hyper[role] = hyper.replace(
        learning_rate=10 * hyper.learning_rate, kl=10 * hyper.kl + 1.0, entropy=hyper.entropy + 1.0
    )
    return dialogues


def schedule(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """A schedule by which the role does not update now."""
    with algorithm.config.unlocked():
        own = algorithm.config.roles[role]
        own.update_every = 2
        own.update_offset = (algorithm.iteration + 1) % 2
    return dialogues


def pool(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """Another policy in the role's pool."""
    noise = jax.tree.map(lambda x: np.full(x.shape, 0.5, x.dtype), algorithm.params(role))
    algorithm.pools[role].add(10_000, noise)
    return dialogues


def optimiser(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """Other moments and another count in the role's optimiser, and other parameters."""
    state = algorithm.states[algorithm.owner(role)]
    shifted = jax.tree.map(lambda x: x + jnp.asarray(1, x.dtype), state)
    algorithm.states[algorithm.owner(role)] = shifted
    return dialogues


def sampled(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """Other behaviour log-probabilities and another mask in the role's own view."""
    changed = []
    for t in dialogues:
        views = dict(t.views)
        if role in views:
            view = views[role]
            mask = view.loss_mask.copy()
            mask[1:] = mask[:0:-1]
            views[role] = replace(view, behaviour_logp=view.behaviour_logp - 1.0, loss_mask=mask)
        changed.append(replace(t, views=views))
    return changed


CHANGES: dict[str, Change] = {
    "rewards": rewards,
    "private observation": observation,
    "learning rate, KL and entropy weights": learning_rate,
    "schedule": schedule,
    "pool": pool,
    "optimiser state and parameters": optimiser,
    "log-probabilities and mask": sampled,
}

SECOND_VALUES = (
    ("reward", "shared", rewards),
    ("advantage", "joint", rewards),
    ("mask", "all", None),
    ("update", "tied", rewards),
)
"""Each flag's second value, and what of B must then move A (None: the flag itself must)."""


def audit(config: ConfigDict, note: Callable[[str], None]) -> list[Finding]:
    """All comparisons, for each role in A's place."""
    scene = _Scene(config, note)
    findings = []
    for role in scene.roles:
        other = next(r for r in scene.roles if r != role)
        before = scene.after(role, {}, None, other)
        for name, change in CHANGES.items():
            after = scene.after(role, {}, change, other)
            findings.append(
                _finding(role, "all isolated", f"{other}: {name}", before, after, False)
            )
        for flag, value, change in SECOND_VALUES:
            flags = {flag: value}
            base = before if change is None else scene.after(role, flags, None, other)
            after = scene.after(role, flags, change, other)
            what = f"{other}: {_name(change)}" if change else f"{other}: words trained on"
            findings.append(_finding(role, f"{flag}={value}", what, base, after, True))
    return findings


class _Scene:
    """One iteration in mid-course: two updates behind, pools filled, its dialogues played."""

    def __init__(self, config: ConfigDict, note: Callable[[str], None]) -> None:
        self._config = config
        self._note = note
        stage = set_up(config, note)
        self._stage = stage
        note("compiling, then two iterations to fill the pools and the optimisers")
        for _ in range(2):
            stage.algorithm.iterate()
        self._dialogues = stage.algorithm.rollouts()
        self.roles = stage.algorithm.roles
        self._states = jax.device_get(stage.algorithm.states)
        self._pools = {role: pool.state() for role, pool in stage.algorithm.pools.items()}
        self._algorithms: dict[tuple[tuple[str, str], ...], Algorithm] = {}

    def after(
        self, role: Role, flags: dict[str, str], change: Change | None, other: Role
    ) -> LearnerState:
        """The state of `role` after the update, on the host; `change` is made to `other` before."""
        algorithm = self._algorithm(flags)
        dialogues = list(self._dialogues)
        if change is not None:
            dialogues = change(algorithm, dialogues, other)
        algorithm.learn(dialogues)
        return jax.device_get(algorithm.states[algorithm.owner(role)])

    def _algorithm(self, flags: dict[str, str]) -> Algorithm:
        """An algorithm in the scene's state, under other isolation flags."""
        config = configs.from_dict(configs.to_dict(self._config))
        for flag, value in flags.items():
            config.isolation[flag] = value
        algorithm = Algorithm(config, self._stage.algorithm.cast, self._stage.start, {})
        algorithm.iteration = self._stage.algorithm.iteration
        if not flags:
            algorithm.learner = self._stage.algorithm.learner
        else:
            key = tuple(sorted(flags.items()))
            algorithm.learner = self._algorithms.setdefault(key, algorithm).learner
        for owner in algorithm.owners:
            algorithm.states[owner] = jax.tree.map(jnp.array, self._states[owner])
        for name, state in self._pools.items():
            algorithm.pools[name].restore(state)
        return algorithm


def _finding(
    role: Role, flag: str, changed: str, before: Any, after: Any, should_move: bool
) -> Finding:
    same = jax.tree.map(
        lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), before, after
    )
    moved = not all(jax.tree.leaves(same))
    return Finding(role=role, flag=flag, changed=changed, moved=moved, should_move=should_move)


def _name(change: Change) -> str:
    return next(name for name, function in CHANGES.items() if function is change)


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config",))
    config = configs.load(options.get("config", "configs/dond/audit.py"), options.overrides)
    findings = audit(config, lambda text: console.print(f"[dim]· {text}[/]", highlight=False))
    table = Table("role A", "isolation", "changed, utterances fixed", "A's update", "")
    for f in findings:
        moved = "moves" if f.moved else "the same, bit for bit"
        table.add_row(f.role, f.flag, f.changed, moved, "ok" if f.holds else "WRONG")
    console.print(table)
    folder = RunFolder.of(config).path
    holding = sum(f.holds for f in findings)
    rows = [{**vars(f), "holds": f.holds} for f in findings]
    write_json(
        folder / "summary.json", {"holds": holding, "comparisons": len(findings), "rows": rows}
    )
    sentence = (
        f"isolation: {holding} of {len(findings)} comparisons came out as they must ({folder})"
    )
    if holding < len(findings):
        raise UserError(sentence)
    console.print(sentence, highlight=False)


if __name__ == "__main__":
    run(main)
    sys.exit(0)
