"""What follows from the paper's printed figures, computed by the statistics of our own tables.

Table 1's odds ratios are those of failing a *conversation*, p = (Success@1 + @2 + @3) / 3, whatever
its caption says: only so do the printed percentages give the printed ratios. Success@n counts
profiles with n successes or more, so it also says how many profiles had 0, 1, 2 and 3; a ratio
needs no more, since under working independence it does not depend on clusters. Which profiles they
were is not printed, so p-values, which do, are not reproduced.

Table 2 is checked against bounds. Everything is worth 10 points to each side and the first best is
no less, so joint value never exceeds the two sides' own utilities added up. With the first bests
f_i of a set of scenarios, agreement a and joint value j allow

    j * mean of the (a j) share with the smallest f  <=  points of both  <=  j * ... the largest f.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ibrl_jax.domains.dond.scoring import POINTS
from ibrl_jax.evaluation.human_validation import human_validation
from ibrl_jax.evaluation.statistics import Arm, StatisticsSettings, odds_ratio
from ibrl_jax.studies import paper
from ibrl_jax.studies.paper import CONVERSATIONS, PROFILES, DealCell, SalesRow

_ROUNDING = 0.0005  # of a share that is printed with three decimals


@dataclass(frozen=True, kw_only=True)
class Check:
    """A printed figure and what comes out here, both as written; `note` is for a reader."""

    table: str
    row: str
    what: str
    printed: str
    found: str
    note: str = ""

    @property
    def agrees(self) -> bool:
        return self.printed == self.found


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A printed figure that cannot be right. `sure`: by arithmetic alone, for any scenarios."""

    where: str
    printed: str
    why: str
    sure: bool


def checks(settings: StatisticsSettings) -> list[Check]:
    """All that the printed figures should give again."""
    return [*_table1(settings), *_table4(), *_table7(), *_table13(settings)]


def conversations(row: SalesRow) -> Arm:
    """The 1,500 conversations that a row's percentages stand for, those of a profile together.

    Which profile succeeded how often is not printed: profiles are numbered by their successes.
    """
    at_least = [round(PROFILES * share / 100) for share in row.success]
    successes = sum(np.arange(PROFILES) < count for count in at_least)
    fails = np.arange(CONVERSATIONS) >= np.asarray(successes)[:, None]  # [profile, conversation]
    clusters = np.repeat(np.arange(PROFILES), CONVERSATIONS)
    return Arm(name=row.policy, fails=fails.ravel().astype(np.int64), clusters=clusters)


def first_success_ratio(row: SalesRow, reference: SalesRow) -> float:
    """Odds of no success with a profile at all, over the reference's: what the caption says."""
    odds = [(100 - r.success[0]) / r.success[0] for r in (row, reference)]
    return odds[0] / odds[1]


def _table1(settings: StatisticsSettings) -> Iterator[Check]:
    for label, row in paper.TABLE1.items():
        if row.p is None:
            continue
        reference = paper.TABLE1[row.reference]
        arm, base = conversations(row), conversations(reference)
        found = odds_ratio(base, arm, settings).odds_ratio
        successes = [int(a.fails.size - a.fails.sum()) for a in (arm, base)]
        yield Check(
            table="Table 1",
            row=label,
            what=f"odds of failing a conversation, against {row.reference}",
            printed=f"{row.odds_ratio:.2f}",
            found="none" if found is None else f"{found:.2f}",
            note=f"{successes[0]} and {successes[1]} of {arm.fails.size} succeed; of Success@1 the "
            f"ratio is {first_success_ratio(row, reference):.2f}",
        )


def _table4() -> Iterator[Check]:
    for label, row in paper.TABLE4.items():
        yield Check(
            table="Table 4",
            row=label,
            what="mean return",
            printed=f"{row.mean_return:.2f}",
            found=f"{row.total_return / row.episodes:.2f}",
            note=f"{row.total_return:,.2f} over {row.episodes:,} episodes",
        )


def _table7() -> Iterator[Check]:
    for dimension, levels in paper.TABLE7.items():
        for level, (count, percentage) in levels.items():
            yield Check(
                table="Table 7",
                row=dimension,
                what=level,
                printed=f"{percentage:.1f}%",
                found=f"{100 * count / PROFILES:.1f}%",
                note=f"{count} of {PROFILES}",
            )
        total = sum(count for count, _ in levels.values())
        yield Check(
            table="Table 7", row=dimension, what="total", printed=str(PROFILES), found=str(total)
        )
    total = paper.TABLE7_PERSONALITY * len(paper.TABLE7_PERSONALITIES)
    yield Check(
        table="Table 7", row="personality", what="total", printed=str(PROFILES), found=str(total)
    )


def _table13(settings: StatisticsSettings) -> Iterator[Check]:
    decisions = [
        (recorded, a, b)
        for recorded, row in paper.TABLE13.items()
        for (a, b), count in row.items()
        for _ in range(count)
    ]
    table = human_validation(decisions, settings)
    pairs = (table.annotators, table.recorded_a, table.recorded_b)
    for (pair, printed), found in zip(paper.TABLE13_KAPPAS.items(), pairs, strict=True):
        value = found.value
        yield Check(
            table="Table 13",
            row=pair,
            what="kappa",
            printed=f"{printed:.2f}",
            found="none" if value is None else f"{value:.2f}",
            note="" if value is None else f"{value:.4f}",
        )
        yield Check(
            table="Table 13",
            row=pair,
            what="agreement",
            printed=f"{paper.TABLE13_AGREEMENT[pair]:.1f}%",
            found=f"{100 * found.agreement:.1f}%",
            note=f"{round(found.agreement * found.n)} of {found.n}",
        )


def doubts(first_bests: Sequence[int], source: str) -> list[Doubt]:
    """The figures of Table 2 that cannot be right.

    `first_bests` [N] are those of the scenarios, in points, each as often as it is played;
    `source` says in words which scenarios these are.
    """
    found = []
    for where, cells in _pairs():
        doubt = _doubt(where, cells, np.sort(np.asarray(first_bests, np.float64)), source)
        if doubt:
            found.append(doubt)
    return [*found, *_expected_utility()]


def _pairs() -> Iterator[tuple[str, tuple[DealCell, DealCell]]]:
    """The pairs of cells that are the two sides of the same dialogues."""
    for label, cells in paper.TABLE2.items():
        cell = cells[paper.SELF_PLAY]
        yield f"{label}, self-play", (cell, cell)
    for scale in ("4B", "9B"):
        first, second = (paper.TABLE2[f"{scale} IB-RL agent {n}"] for n in (0, 1))
        yield (
            f"{scale} IB-RL agents, in-system",
            (first[paper.IN_SYSTEM], second[paper.IN_SYSTEM]),
        )
    glm, ds = (paper.TABLE2[f"frontier {name}"] for name in ("GLM-5.2", "DS V4 Pro"))
    yield "GLM-5.2 against DS V4 Pro", (glm[paper.VS_DS], ds[paper.VS_GLM])


def points_of_both(cell: DealCell, first_bests: np.ndarray) -> tuple[float, float]:
    """Least and most mean points of both sides together that a cell's figures allow.

    `first_bests` [N], ascending.
    """
    joint = cell.joint_value
    count = cell.agreement / 100 * joint * first_bests.size  # full first bests that j stands for
    weights = np.clip(count - np.arange(first_bests.size), 0.0, 1.0)  # [N]
    low = joint * float(weights @ first_bests) / weights.sum()
    high = joint * float(weights @ first_bests[::-1]) / weights.sum()
    return low, high


def _doubt(
    where: str, cells: tuple[DealCell, DealCell], first_bests: np.ndarray, source: str
) -> Doubt | None:
    own = sum(cell.own_utility for cell in cells)
    joint = cells[0].joint_value
    shares = sorted({f"{cell.own_utility:.3f}" for cell in cells})
    printed = f"own utility {' and '.join(shares)} with joint value {joint:.3f}"
    if joint - _ROUNDING > own + 2 * _ROUNDING:
        return Doubt(
            where=where,
            printed=printed,
            why=f"no first best is under the {POINTS} points that everything is worth to a side, "
            f"so joint value is at most the own utilities added up, {own:.3f}",
            sure=True,
        )
    low, high = points_of_both(cells[0], first_bests)
    slack = POINTS * 2 * _ROUNDING + _ROUNDING * float(first_bests.max())
    points = POINTS * own
    if low - slack <= points <= high + slack:
        return None
    way = "at least" if points < low else "at most"
    return Doubt(
        where=where,
        printed=printed,
        why=f"both sides together have {points:.2f} points a deal by the one and {way} "
        f"{low if points < low else high:.2f} by the other, with the first bests of {source} "
        f"(mean {first_bests.mean():.2f})",
        sure=False,
    )


def _expected_utility() -> Iterator[Doubt]:
    """Where an IB-RL agent's agreement x own utility is not the highest of its scale."""
    columns = (paper.VS_GLM, paper.VS_DS, paper.IN_SYSTEM, paper.SELF_PLAY)
    for scale in ("4B", "9B"):
        rows = {label: row for label, row in paper.TABLE2.items() if label.startswith(scale)}
        agents = [label for label in rows if "IB-RL" in label]
        for agent in agents:
            for column in columns:
                best = max(
                    (label for label in rows if label not in agents),
                    key=lambda label: rows[label][column].expected_utility,
                )
                mine = rows[agent][column].expected_utility
                theirs = rows[best][column].expected_utility
                if mine < theirs:
                    yield Doubt(
                        where=f"{agent}, {column}",
                        printed="the text: highest expected utility among same-scale baselines",
                        why=f"agreement x own utility is {mine:.3f}, and that of {best} is "
                        f"{theirs:.3f}",
                        sure=True,
                    )
