"""`make audit`: shows, bitwise, that of the other role only its utterances reach a role's update.

A real iteration is played once, and its dialogues are then learned from again and again. Each time
one thing of role B is changed, the utterances held fixed. Of role A every bit must be the same: its
parameters, moments and counters after its update, the snapshot that holds its next past seat, and
what its policy and its judge are shown. Of role B something must differ, or the change was none.
Under the second value of each isolation flag A's update must differ too, or the audit could not see
a leak.
"""

from __future__ import annotations

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
from ibrl_jax.dialogue.build import build_hall
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.entry import Options, notes, run
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator
from ibrl_jax.proofs.retell import retold, with_other_observation
from ibrl_jax.rewards.types import Case, Scored
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.run import RunFolder, write_json
from ibrl_jax.trainer.session import set_up

Change = Callable[[Algorithm, list[Trajectory], Role], list[Trajectory]]
"""Changes something of a role, in the algorithm or in the dialogues that it gives back."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison: what was changed, whether `role` moved by it, and whether it should have."""

    role: Role
    flag: str
    changed: str
    moved: bool
    should_move: bool

    @property
    def holds(self) -> bool:
        return self.moved == self.should_move


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is compared of a role, on the host.

    `learned`: its learner state after the update, and the parameters of its next past seat.
    `shown`: the prompt and the judge's case of each dialogue.
    """

    learned: Any
    shown: Any


def rewards(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """Other rewards for the role, wherever it was paid one."""
    rng = generator(0, "audit", "rewards", role)
    return [
        replace(t, rewards={**t.rewards, role: Scored(value=float(rng.uniform(-1, 1)))})
        if isinstance(t.rewards[role], Scored)
        else t
        for t in dialogues
    ]


def observation(algorithm: Algorithm, dialogues: list[Trajectory], role: Role) -> list[Trajectory]:
    """Another private observation for the role, and anew whatever is made of the scenario."""
    cast = algorithm.cast
    hall = build_hall(algorithm.config, cast.domain, retries=0, concurrency=1)
    return [
        retold(cast, hall, t, with_other_observation(cast, t.scenario, role)) for t in dialogues
    ]


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
    """Other parameters in every snapshot of the role's pool."""
    state = algorithm.pools[role].state()
    state["params"] = jax.tree.map(lambda x: x + np.asarray(1, x.dtype), state["params"])
    algorithm.pools[role].restore(state)
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
    before = scene.after({}, None, "")
    findings = []
    for role in scene.roles:
        other = next(r for r in scene.roles if r != role)
        for name, change in CHANGES.items():
            after = scene.after({}, change, other)
            what = f"{other}: {name}"
            findings.append(_finding(role, "all isolated", what, before, after, False))
            findings.append(_finding(other, "all isolated", what, before, after, True))
        for flag, value, change in SECOND_VALUES:
            flags = {flag: value}
            base = before if change is None else scene.after(flags, None, "")
            after = scene.after(flags, change, other)
            what = f"{other}: {_name(change)}" if change else f"{other}: words trained on"
            findings.append(_finding(role, f"{flag}={value}", what, base, after, True))
    return findings


class _Scene:
    """One iteration in mid-course: two updates behind, pools filled, its dialogues played."""

    def __init__(self, config: ConfigDict, note: Callable[[str], None]) -> None:
        stage = set_up(config, note)
        self._stage = stage
        note("compiling, then two iterations to fill the pools and the optimisers")
        for _ in range(2):
            stage.algorithm.iterate()
        self._dialogues = stage.algorithm.rollouts()
        self.roles = stage.algorithm.roles
        self._states = jax.device_get(stage.algorithm.states)
        self._pools = {role: pool.state() for role, pool in stage.algorithm.pools.items()}
        self._learners = {config.isolation.mask: stage.algorithm.learner}

    def after(
        self, flags: dict[str, str], change: Change | None, changed: Role
    ) -> dict[Role, Kept]:
        """Every role after the update; `change` is made to the role `changed` before."""
        algorithm = self._algorithm(flags)
        dialogues = list(self._dialogues)
        if change is not None:
            dialogues = change(algorithm, dialogues, changed)
        algorithm.learn(dialogues)
        return {role: _kept(algorithm, dialogues, role) for role in self.roles}

    def _algorithm(self, flags: dict[str, str]) -> Algorithm:
        """An algorithm in the scene's state, under other isolation flags."""
        config = configs.from_dict(configs.to_dict(self._stage.algorithm.config))
        for flag, value in flags.items():
            config.isolation[flag] = value
        algorithm = Algorithm(config, self._stage.algorithm.cast, self._stage.start, {})
        algorithm.iteration = self._stage.algorithm.iteration
        # Of the flags the mask alone is in its programs; they are compiled once for each.
        mask = config.isolation.mask
        algorithm.learner = self._learners.setdefault(mask, algorithm.learner)
        for owner in algorithm.members:
            algorithm.states[owner] = jax.tree.map(
                lambda kept, new: jax.device_put(jnp.array(kept), new.sharding),
                self._states[owner],
                algorithm.states[owner],
            )
        for name, state in self._pools.items():
            algorithm.pools[name].restore(state)
        return algorithm


def _kept(algorithm: Algorithm, dialogues: Sequence[Trajectory], role: Role) -> Kept:
    snapshots, seed = algorithm.pools[role], algorithm.config.seed
    past = snapshots.sample(seed, algorithm.iteration + 1, below=algorithm.version(role))
    state = jax.device_get(algorithm.states[algorithm.owner(role)])
    prompt = algorithm.cast.domain.prompt
    return Kept(
        learned=(state, None if past is None else snapshots.params(past)),
        shown=[
            (prompt(t.scenario, role), Case.of(t.scenario, role, t.turns, t.outcome))
            for t in dialogues
        ],
    )


def _finding(
    role: Role,
    flag: str,
    changed: str,
    before: dict[Role, Kept],
    after: dict[Role, Kept],
    should_move: bool,
) -> Finding:
    """What should move must be what is learned; what should not, all."""
    one, other = before[role], after[role]
    moved = _bits(one.learned) != _bits(other.learned)
    if not should_move:
        moved = moved or one.shown != other.shown
    return Finding(role=role, flag=flag, changed=changed, moved=moved, should_move=should_move)


def _bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def _name(change: Change) -> str:
    return next(name for name, function in CHANGES.items() if function is change)


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config",))
    config = configs.load(options.get("config", "configs/dond/audit.py"), options.overrides)
    findings = audit(config, notes(console))
    table = Table("isolation", "changed, utterances fixed", "of", "after the update", "")
    for f in findings:
        moved = "moves" if f.moved else "the same, bit for bit"
        table.add_row(f.flag, f.changed, f.role, moved, "ok" if f.holds else "WRONG")
    console.print(table)
    folder = RunFolder.of(config).path
    holding = sum(f.holds for f in findings)
    rows = [{**vars(f), "holds": f.holds} for f in findings]
    sentence = (
        f"isolation: {holding} of {len(findings)} comparisons came out as they must ({folder})"
    )
    found = {"holds": holding, "comparisons": len(findings), "sentence": sentence, "rows": rows}
    write_json(folder / "summary.json", found)
    if holding < len(findings):
        raise UserError(sentence)
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
