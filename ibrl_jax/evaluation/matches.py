"""Frozen policies against counterparts, in both seats: who meets whom, and the resulting table.

A cell is one policy against one counterpart: every scenario of the split, every seed, the policy
once in each seat where seats are interchangeable, and else in its own; who opens alternates. Its
unit of statistics is the scenario's cluster, whichever side sat where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import at_once, build_hall
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Hall, play
from ibrl_jax.dialogue.record import record
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.audits import Audit, build_audit
from ibrl_jax.evaluation.bench import Bench
from ibrl_jax.evaluation.cells import Cell, Contestant, Local, Planned, Played, plan_cell
from ibrl_jax.evaluation.columns import SELF_PLAY, Column, columns_of
from ibrl_jax.evaluation.store import BLOCK, Store, about_dialogue, played_of
from ibrl_jax.evaluation.table import Cells, table_of
from ibrl_jax.models.params import Params
from ibrl_jax.rewards.types import Failed

Keep = Callable[[str, str, Sequence[Trajectory]], None]
"""Is given each cell's policy, column and dialogues."""


def evaluate(
    config: ConfigDict,
    cast: Cast,
    contestants: Sequence[Contestant],
    note: Callable[[str], None],
    keep: Keep,
    partners: Mapping[str, Params] | None = None,
    met: Callable[[str], bool] | None = None,
) -> dict[str, Any]:
    """The table, JSON-able. `keep` is given every cell's dialogues.

    `partners` are the policies, by name, that contestants meet and that are no rows. `met`: whether
    training has met a counterpart (see `columns_of`).

    Raises:
        UserError: a counterpart is unknown or an endpoint cannot be used.
    """
    locals_ = {c.holder: local(c) for c in contestants}
    for name, found in (partners or {}).items():
        locals_[name] = Local(id=name, role=None, version=0, params=partial(_same, found))
    bench = Bench(cast, locals_, config.evaluation.temperature, note)
    columns = playable(cast, columns_of(config, met))
    cells = Games(config, bench, note).cells(contestants, columns, keep)
    return table_of(config, cast, contestants, columns, cells)


def playable(cast: Cast, columns: Sequence[Column]) -> list[Column]:
    """Without self-play where a policy cannot hold both seats."""
    return [c for c in columns if c.kind != SELF_PLAY or cast.domain.interchangeable]


class Games:
    """Plays cells, or reads what was played of them by an earlier start.

    Args:
        store: where dialogues are kept as they come; None: nowhere.
        key_of: what a stored cell must have been played with to be taken; a hash.
    """

    def __init__(
        self,
        config: ConfigDict,
        bench: Bench,
        note: Callable[[str], None],
        store: Store | None = None,
        key_of: Callable[[Contestant, Column, Sequence[Planned]], str] | None = None,
    ) -> None:
        self._config, self._bench, self._note = config, bench, note
        self._store, self._key_of = store, key_of
        self._audit: Audit | None = build_audit(config, bench.cast)
        self._hall: Hall = build_hall(
            config,
            bench.cast.domain,
            retries=config.evaluation.retries,
            concurrency=at_once(config),
        )
        self.anew = 0
        """Dialogues that were played, not read."""

    def cells(
        self,
        contestants: Sequence[Contestant],
        columns: Sequence[Column],
        keep: Keep | None = None,
    ) -> Cells:
        """Every contestant in every column in which it has a seat.

        Raises:
            UserError: as `cell`.
        """
        cells: Cells = {}
        for contestant in contestants:
            self._note(f"evaluating {contestant.label} in {len(columns)} columns")
            found = {c.name: self.cell(contestant, c, keep=keep) for c in columns}
            cells[contestant.label] = {n: cell for n, cell in found.items() if cell is not None}
        return cells

    def cell(
        self,
        contestant: Contestant,
        column: Column,
        keep: Keep | None = None,
        folder: str = "",
    ) -> Cell | None:
        """One policy in one column; None where it has no seat there.

        Args:
            folder: of the store's, to keep the dialogues in.

        Raises:
            UserError: too few dialogues came to an end, or an endpoint cannot be used.
        """
        domain = self._bench.cast.domain
        planned = plan_cell(self._config, domain, contestant, column, self._bench.role_of)
        if not planned:
            return None
        where = f"{contestant.label} against {column.name}"
        if self._store is None or self._key_of is None:
            trajectories = self._play(planned, where)
            if keep is not None:
                keep(contestant.label, column.name, trajectories)
            played = [_played(p, t) for p, t in zip(planned, trajectories, strict=True)]
        else:
            key = self._key_of(contestant, column, planned)
            played = self._stored(contestant, column, planned, key, where, folder)
        several = len(column.counterparts) > 1
        against = [f"{column.name}, {p.counterpart}" if several else column.name for p in planned]
        return Cell(played=played, against=against)

    def _stored(
        self,
        contestant: Contestant,
        column: Column,
        planned: Sequence[Planned],
        key: str,
        where: str,
        folder: str,
    ) -> list[Played]:
        assert self._store is not None
        kept = self._store.open(contestant.label, column.name, key, len(planned), folder)
        played = [played_of(p, row) for p, row in zip(planned, kept.rows(), strict=False)]
        if played and len(played) < len(planned):
            self._note(f"{where}: going on from dialogue {len(played)} of {len(planned)}")
        tokenizer = self._bench.cast.speech.tokenizer
        while len(played) < len(planned):
            begin = len(played)
            block = planned[begin : begin + BLOCK]
            rows = [
                record(
                    t,
                    tokenizer,
                    {},
                    policy=contestant.label,
                    column=column.name,
                    **about_dialogue(key, begin + i, p),
                )
                for i, (p, t) in enumerate(zip(block, self._play(block, where), strict=True))
            ]
            played += [played_of(p, row) for p, row in zip(block, kept.append(rows), strict=True)]
            self.anew += len(rows)
        return played

    def _play(self, planned: Sequence[Planned], where: str) -> list[Trajectory]:
        """The dialogues, audited.

        Raises:
            UserError: fewer of them came to an end than `rewards.min_coverage` asks for.
        """
        played = play(self._hall, self._bench.matches(planned))
        if len(played) != len(planned):
            raise RuntimeError(f"{len(played)} dialogues of {len(planned)} asked for")
        aborted = [reason for t in played if (reason := _failure(t)) is not None]
        coverage = 1 - len(aborted) / len(played)
        if coverage < self._config.rewards.min_coverage:
            raise UserError(
                f"only {coverage:.0%} of the dialogues of {where} came to "
                f"an end, less than config.rewards.min_coverage; the first failure: {aborted[0]}"
            )
        if self._audit is None:
            return played
        if self._config.evaluation.auditor:
            self._note(f"auditing {len(played)} calls of {where}")
        return self._audit(played)


def local(contestant: Contestant) -> Local:
    """A contestant that brings its own parameters, as it is seated."""
    c = contestant
    return Local(id=c.label, role=c.role, version=c.version, params=partial(_same, c.params))


def _same(params: Any) -> Any:
    return params


def _failure(t: Trajectory) -> str | None:
    return next((r.reason for r in t.rewards.values() if isinstance(r, Failed)), None)


def _played(plan: Planned, t: Trajectory) -> Played:
    retries = sum(t.retries.values())
    return Played(plan=plan, outcome=t.outcome, retries=retries, failed=_failure(t))
