"""Table 1's comparisons, of failed conversations and of profiles without any success.

The paper prints one odds ratio a row, and its percentages give it only as that of failing a
*conversation*; its caption says Success@1, which is of whole profiles. Both are here, labelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from ibrl_jax.evaluation.statistics import Arm, OddsRatio, compare
from ibrl_jax.reporting.tables import p_value
from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import Measured, Piece
from ibrl_jax.studies.reproduced import first_success_ratio
from ibrl_jax.studies.results import Cell, Results
from ibrl_jax.studies.tables import flat, markdown, ratio_text


def odds_of_failing(results: Results) -> Piece:
    """Both odds ratios of every row against the reference run, Holm within a column and kind."""
    design, success = results.design, results.design.measures[0]
    trained = design.trained[design.against]
    others = [row for row in design.rows if row not in trained]
    lines, rows = [], []
    for column in design.shown:
        for kind in ("conversation", "profile"):
            arms = {row: _arm(results, (row,), row, column, success, kind) for row in others}
            reference = _arm(results, trained, design.against, column, success, kind)
            there = [arm for arm in arms.values() if arm is not None]
            if reference is None or not there:
                continue
            for found in compare(reference, there, results.statistics):
                printed = paper.TABLE1.get(design.printed_rows.get(found.policy, ""))
                theirs = None if printed is None else _printed(printed, kind)
                rows.append(
                    {"column": column, "of": kind, **flat(asdict(found)), "printed": theirs}
                )
                lines.append([column, *_told(found, kind, theirs)])
    if not lines:
        return Piece(markdown="There is nothing to compare yet.\n")
    head = ["Column", "Odds of", "Policy", "Failures, its / the reference's", "Odds ratio"]
    text = markdown([*head, "p", "p, Holm", "The paper's", "Remark"], lines)
    text += (
        f"\n\nAgainst {design.against}. A *conversation* fails by itself; a *profile* fails where "
        "none of its conversations succeeds (Success@1), and counts where all of them came to an "
        "end. Logistic GEE, independence working correlation, sandwich errors, clustered by "
        "profile, which is one cluster at all seeds; Holm within a column and kind. The paper's "
        "of profiles is computed from its percentages; the one that it prints is that of "
        "conversations.\n"
    )
    return Piece(markdown=text, rows=rows, data=rows)


def by_profile(cells: Sequence[Cell], success: Measured, conversations: int) -> Arm:
    """Whether each profile had no success, a row a profile and seed.

    `cells` are one a seed; `conversations` is how many a profile has, and one that lacks some of
    them is left out.
    """
    fails, clusters = [], []
    for cell in cells:
        names, at = np.unique(cell.clusters, return_inverse=True)
        counts = np.bincount(at, minlength=len(names))
        wins = np.bincount(at, weights=cell.values[success.key], minlength=len(names))
        whole = counts == conversations
        fails.append((wins[whole] == 0).astype(np.int64))
        clusters.append(names[whole])
    return Arm(name="", fails=np.concatenate(fails), clusters=np.concatenate(clusters))


def _arm(
    results: Results,
    members: Sequence[str],
    name: str,
    column: str,
    success: Measured,
    kind: str,
) -> Arm | None:
    cells = [cell for cell in results.by_seed(members, column).values() if cell.n]
    if not cells:
        return None
    if kind == "conversation":
        fails = np.concatenate([1.0 - cell.values[success.key] for cell in cells])
        return Arm(name=name, fails=fails, clusters=np.concatenate([c.clusters for c in cells]))
    pooled = {c.name: len(c.counterparts) for c in results.design.columns}.get(column, 1)
    seats = results.plan.evaluations[0].config.evaluation.seeds
    arm = by_profile(cells, success, seats * pooled * len(members))
    return Arm(name=name, fails=arm.fails, clusters=arm.clusters) if arm.fails.size else None


def _printed(row: paper.SalesRow, kind: str) -> float:
    if kind == "conversation":
        return row.odds_ratio
    return first_success_ratio(row, paper.TABLE1[row.reference])


def _told(found: OddsRatio, kind: str, printed: float | None) -> list[str]:
    return [
        f"a failed {kind}",
        found.policy,
        f"{100 * found.rates[0]:.1f}% / {100 * found.rates[1]:.1f}%",
        ratio_text(found.odds_ratio, found.interval),
        p_value(found.p),
        f"{p_value(found.p_holm)} (m = {found.family})",
        "–" if printed is None else f"{printed:.2f}",
        found.note or found.status,
    ]
