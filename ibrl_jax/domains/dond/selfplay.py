"""Scripted families against each other: dialogues for supervised data, and who agrees with whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ibrl_jax.domains.base import Role, Scenario
from ibrl_jax.domains.dond.domain import DealOrNoDeal
from ibrl_jax.domains.dond.metrics import Result, Summary, summarise
from ibrl_jax.domains.dond.referee import DondReferee
from ibrl_jax.domains.dond.scoring import ROLES


def selfplay(
    domain: DealOrNoDeal, family_a: str, family_b: str, scenario: Scenario, first: Role, seed: int
) -> DondReferee:
    """One finished dialogue: `family_a` sits as `agent0`, `family_b` as `agent1`."""
    referee = domain.referee(scenario, first)
    seats = zip(ROLES, (family_a, family_b), strict=True)
    players = {
        role: domain.scripted(family, scenario, role, np.random.default_rng([seed, seat]))
        for seat, (role, family) in enumerate(seats)
    }
    while (role := referee.to_move) is not None:
        referee.play(referee.check(role, players[role].reply(referee.turns), "stop"))
    return referee


def family_matrix(
    domain: DealOrNoDeal, families: Sequence[str], scenarios: Sequence[Scenario], seed: int
) -> dict[tuple[str, str], Summary]:
    """Each family (first of the key) against each: its metrics, both seats and both openings.

    A scenario is played once a pair and seat; who opens alternates with the scenario.
    """
    results: dict[tuple[str, str], list[Result]] = {(a, b): [] for a in families for b in families}
    for a in families:
        for b in families:
            for k, scenario in enumerate(scenarios):
                played = selfplay(domain, a, b, scenario, ROLES[k % 2], seed + k)
                if played.outcome is None:
                    raise RuntimeError(f"{a} against {b} did not end")
                results[a, b].append(Result.of(scenario, played.outcome, ROLES[0]))
                results[b, a].append(Result.of(scenario, played.outcome, ROLES[1]))
    return {pair: summarise(found) for pair, found in results.items()}


def format_matrix(matrix: dict[tuple[str, str], Summary]) -> str:
    """Rows against columns: agreement in percent / own utility of the row on agreed dialogues."""
    names = list(dict.fromkeys(a for a, _ in matrix))
    width = max(12, *(len(name) + 1 for name in names))
    lines = ["".rjust(width) + "".join(name.rjust(width) for name in names)]
    for a in names:
        cells = [_cell(matrix[a, b]) for b in names]
        lines.append(a.rjust(width) + "".join(cell.rjust(width) for cell in cells))
    return "\n".join(lines)


def _cell(summary: Summary) -> str:
    agreement, own = summary.agreement, summary.own_utility
    left = "-" if agreement is None else f"{100 * agreement:.0f}"
    return f"{left}/{'-' if own is None else f'{own:.2f}'}"
