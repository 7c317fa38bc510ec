"""The dialogues of an evaluation, cell by cell: played, or read where an earlier start played them.

A cell is one policy against one counterpart: every scenario of the split, every seed, the policy
once in each seat where seats are interchangeable, and else in its own; who opens alternates. Its
unit of statistics is the scenario's cluster, whichever side sat where.

Dialogues are played in blocks, and local policies' are kept so, since what they say depends in its
last bits on who speaks beside them. Where an endpoint speaks, each dialogue is kept as it ends. An
auditor behind an endpoint is asked of dialogues that are kept, and each of its audits is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import at_once, build_hall
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Watch, play
from ibrl_jax.dialogue.record import record
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.audits import Audits
from ibrl_jax.evaluation.bench import Bench
from ibrl_jax.evaluation.cells import Cell, Contestant, Local, Planned, plan_cell
from ibrl_jax.evaluation.columns import SELF_PLAY, Column
from ibrl_jax.evaluation.keys import Keys
from ibrl_jax.evaluation.store import BLOCK, KeptCell, Store, outcome_of, played_of
from ibrl_jax.evaluation.table import Cells
from ibrl_jax.names import kind_of
from ibrl_jax.rewards.types import Failed, Reward


def playable(cast: Cast, columns: Sequence[Column]) -> list[Column]:
    """Without self-play where a policy cannot hold both seats."""
    return [c for c in columns if c.kind != SELF_PLAY or cast.domain.interchangeable]


class Games:
    """Plays cells, or reads what was played of them by an earlier start.

    Args:
        locals: the policies of this machine, by the names that contestants and columns have.
        store: where dialogues are kept as they come.
        note: told of what takes long.
    """

    def __init__(
        self,
        config: ConfigDict,
        cast: Cast,
        locals: Mapping[str, Local],
        store: Store,
        note: Callable[[str], None],
    ) -> None:
        self._config, self._store, self._note = config, store, note
        temperature = dict.fromkeys(cast.domain.roles, float(config.evaluation.temperature))
        self._bench = Bench(cast, locals, temperature, note)
        self._audits = Audits(config, cast)
        self._hall = build_hall(
            config, cast.domain, retries=config.evaluation.retries, concurrency=at_once(config)
        )
        self.auditor = self._audits.by
        """Who audits: `rules`, an endpoint's name, or nobody (empty)."""
        self.keys = Keys(config, cast, {name: one.fingerprint for name, one in locals.items()})
        """What each cell's dialogues must have been played with to be taken."""
        self.anew = 0
        """Dialogues that were played, not read."""

    def cells(self, contestants: Sequence[Contestant], columns: Sequence[Column]) -> Cells:
        """Every contestant in every column in which it has a seat.

        Raises:
            UserError: as `cell`.
        """
        cells: Cells = {}
        for contestant in contestants:
            self._note(f"evaluating {contestant.label} in {len(columns)} columns")
            found = {c.name: self.cell(contestant, c) for c in columns}
            cells[contestant.label] = {n: cell for n, cell in found.items() if cell is not None}
        return cells

    def cell(self, contestant: Contestant, column: Column, folder: str = "") -> Cell | None:
        """One policy in one column; None where it has no seat there.

        Dialogues that the failure of an endpoint broke off in an earlier start are played again.

        Args:
            folder: of the store's, to keep the dialogues in.

        Raises:
            UserError: too few dialogues came to an end, or an endpoint cannot be used.
        """
        domain = self._bench.cast.domain
        planned = plan_cell(self._config, domain, contestant, column, self._bench.role_of)
        if not planned:
            return None
        key = self.keys.of(contestant, column, planned)
        kept = self._store.open(contestant.label, column.name, key, len(planned), folder)
        where = f"{contestant.label} against {column.name}"
        if broken := kept.broken_off:
            self._note(f"{where}: playing {len(broken)} dialogues again that were broken off")
        for begin in range(0, len(broken), BLOCK):
            kept.replace(self._play(kept, planned, broken[begin : begin + BLOCK], where, 0.0))
        if 0 < len(kept.rows) < len(planned):
            self._note(f"{where}: going on from dialogue {len(kept.rows)} of {len(planned)}")
        least = self._config.rewards.min_coverage
        while (begin := len(kept.rows)) < len(planned):
            block = range(begin, min(begin + BLOCK, len(planned)))
            kept.append(self._play(kept, planned, block, where, least))
        self._audit(kept, planned, where)
        played = [played_of(p, row) for p, row in zip(planned, kept.rows, strict=True)]
        several = len(column.counterparts) > 1
        against = [f"{column.name}, {p.counterpart}" if several else column.name for p in planned]
        return Cell(played=played, against=against)

    def _play(
        self,
        kept: KeptCell,
        planned: Sequence[Planned],
        indices: Sequence[int],
        where: str,
        least: float,
    ) -> list[dict[str, Any]]:
        """Some of a cell's dialogues as lines of its file; those that ended early are taken.

        Raises:
            UserError: a smaller share than `least` came to an end.
        """
        rows = {i: kept.early.rows[i] for i in indices if i in kept.early.rows}
        left = [i for i in indices if i not in rows]
        block = [planned[i] for i in left]

        def row(at: int, t: Trajectory) -> dict[str, Any]:
            about = kept.about(left[at], planned[left[at]])
            speech = self._bench.cast.speech
            return record(self._audits.at_its_end(t), speech.tokenizer, {}, **about)

        def keep(at: int, t: Trajectory) -> None:
            if _failure(t) is None:
                kept.early.keep(left[at], row(at, t))

        abroad = any(kind_of(name) == "api" for p in block for name in p.holders.values())
        watch = _AsTheyEnd(self._hall.domain.roles, keep) if abroad else None
        played = play(self._hall, self._bench.matches(block), watch) if block else []
        if len(played) != len(block):
            raise RuntimeError(f"{len(played)} dialogues of {len(block)} asked for")
        aborted = [reason for t in played if (reason := _failure(t)) is not None]
        coverage = 1 - len(aborted) / len(indices)
        if coverage < least:
            raise UserError(
                f"only {coverage:.0%} of the dialogues of {where} came to "
                f"an end, less than config.rewards.min_coverage; the first failure: {aborted[0]}"
            )
        self.anew += len(played)
        rows |= {left[at]: row(at, t) for at, t in enumerate(played)}
        return [rows[i] for i in indices]

    def _audit(self, kept: KeptCell, planned: Sequence[Planned], where: str) -> None:
        """Ask the auditor, if it is an endpoint, of all that it has not answered yet.

        Raises:
            UserError: the endpoint as a whole is at fault; what it had answered is kept.
        """
        left = [i for i, row in enumerate(kept.rows) if self._audits.awaits(outcome_of(row))]
        if left:
            self._note(f"auditing {len(left)} calls of {where}")
        for begin in range(0, len(left), BLOCK):
            calls = kept.calls(planned, left[begin : begin + BLOCK])
            self._audits.ask(calls, kept.audited)
        kept.settle()


class _AsTheyEnd(Watch):
    """Gives each dialogue to `keep`, with its place among the matches, as soon as it is whole."""

    def __init__(self, roles: Sequence[Role], keep: Callable[[int, Trajectory], None]) -> None:
        self._roles, self._keep = roles, keep
        self._ended: dict[int, tuple[Trajectory, dict[Role, Reward]]] = {}

    def ended(self, index: int, trajectory: Trajectory) -> None:
        self._ended[index] = (trajectory, {})

    def paid(self, index: int, role: Role, reward: Reward) -> None:
        trajectory, rewards = self._ended[index]
        rewards[role] = reward
        if len(rewards) == len(self._roles):
            del self._ended[index]
            ordered = {role: rewards[role] for role in self._roles}
            self._keep(index, replace(trajectory, rewards=ordered))


def _failure(t: Trajectory) -> str | None:
    return next((r.reason for r in t.rewards.values() if isinstance(r, Failed)), None)
