"""Odds of failing against the reference run: of a dialogue, and of a profile without any success.

Their unit is the cluster of a scenario: what makes it hard, it has at every seed. So a comparison
here says which of *these* policies fails less often; whether their methods differ is asked of the
seeds (`studies.seeds`). A policy and the reference are compared over the seeds that both have.

The paper prints one odds ratio a row of Table 1, and its percentages give it only as that of
failing a *conversation*; its caption says Success@1, which is of whole profiles. So where there are
profiles of several dialogues both are here, labelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ibrl_jax.evaluation.statistics import Arm, OddsRatio, corrected, odds_ratio
from ibrl_jax.reporting.tables import p_value
from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import Measured, Piece
from ibrl_jax.studies.reproduced import first_success_ratio
from ibrl_jax.studies.results import Cell, Results
from ibrl_jax.studies.tables import flat, markdown, ratio_text

Kind = Literal["dialogue", "profile"]

_SAYS_NOTHING = ({"a failed dialogue"}, {"–"})
"""A column of the table with nothing but this is left out."""
_PROFILES = (
    " A *dialogue* fails by itself; a *profile* fails where none of its dialogues succeeds "
    "(Success@1), and counts where all of them came to an end. The paper's of profiles is "
    "computed from its percentages; the one that it prints is that of dialogues."
)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A policy beside a reference in a column, over some seeds. `printed`: the paper's ratio.

    `ratio.reference` is the reference run (all its trained rows together) or one row of it.
    """

    column: str
    of: Kind
    seeds: tuple[int, ...]
    ratio: OddsRatio
    printed: float | None

    def as_json(self) -> dict[str, Any]:
        told = {"column": self.column, "of": self.of, **flat(asdict(self.ratio))}
        at = " ".join(map(str, self.seeds))
        return told | {"seeds": len(self.seeds), "at_seeds": at, "printed": self.printed}


def odds_of_failing(results: Results) -> Piece:
    """Odds ratios of failing against the reference run, Holm-corrected within a column and kind.

    Those against each of its roles alone are in the CSV and the JSON.
    """
    found = compared(results)
    against = results.design.against
    lines = [_told(one, results) for one in found if one.ratio.reference == against]
    if not lines:
        return Piece(markdown="There is nothing to compare yet.\n")
    head = [name for name in lines[0] if {line[name] for line in lines} not in _SAYS_NOTHING]
    text = markdown(head, [[line[name] for name in head] for line in lines])
    text += (
        f"\n\nOdds of failing over those of {against}, all its roles together: above 1, it fails "
        f"more often.{_PROFILES if len(_kinds(results)) > 1 else ''} Logistic GEE, independence "
        "working correlation, sandwich errors, one row a dialogue (or profile, policy and seed), "
        "clustered by scenario, which is one cluster at all seeds; over the seeds that both have; "
        "Holm within a column (and kind). These compare the policies that came out; whether a "
        "*method* is better is asked of the seeds.\n"
    )
    rows = [one.as_json() for one in found]
    return Piece(markdown=text, rows=rows, data=rows)


def compared(results: Results) -> list[Compared]:
    """Every other row against the run `design.against`, and against each of its policies.

    A family of Holm's is a column, a kind and a reference; the start stands in it too.
    """
    design = results.design
    trained = design.trained[design.against]
    references: dict[str, tuple[str, ...]] = {design.against: trained}
    if len(trained) > 1:
        references |= {row: (row,) for row in trained}
    others = [row for row in design.rows if row not in trained]
    found = []
    for name, rows in references.items():
        for column in design.shown:
            for kind in _kinds(results):
                theirs = _arms(results, rows, column, kind)
                pairs = []
                for row in others:
                    mine = _arms(results, (row,), column, kind)
                    if seeds := tuple(seed for seed in mine if seed in theirs):
                        reference = _joined(name, [theirs[seed] for seed in seeds])
                        arm = _joined(row, [mine[seed] for seed in seeds])
                        pairs.append((seeds, odds_ratio(reference, arm, results.statistics)))
                family = corrected([ratio for _, ratio in pairs])
                found += [
                    Compared(
                        column=column,
                        of=kind,
                        seeds=seeds,
                        ratio=ratio,
                        printed=_printed(results, ratio.policy, rows, kind),
                    )
                    for (seeds, _), ratio in zip(pairs, family, strict=True)
                ]
    return found


def by_profile(cell: Cell, success: Measured, dialogues: int) -> Arm:
    """Whether each profile had no success with one policy, a row a profile.

    `dialogues` is how many a profile has; one that lacks some of them is left out. Several policies
    have to be asked one by one: together, a profile would have that many more tries.
    """
    names, at = np.unique(cell.clusters, return_inverse=True)
    counts = np.bincount(at, minlength=len(names))
    wins = np.bincount(at, weights=cell.values[success.key], minlength=len(names))
    whole = counts == dialogues
    fails = (wins[whole] == 0).astype(np.int64)
    return Arm(name="", fails=fails, clusters=names[whole])


def _kinds(results: Results) -> tuple[Kind, ...]:
    """Profiles where the success of whole profiles is measured."""
    profiles = any(m.key == "success@1" for m in results.design.measures)
    return ("dialogue", "profile") if profiles else ("dialogue",)


def _arms(results: Results, rows: Sequence[str], column: str, kind: Kind) -> dict[int, Arm]:
    """What some rows did in a column, at each seed that has all of them and anything to count.

    A profile is counted once for each of the rows, with that policy's dialogues alone.
    """
    success = results.design.measures[0]
    pooled = {c.name: len(c.counterparts) for c in results.design.columns}.get(column, 1)
    found = {}
    for seed in results.by_seed(rows, column):
        cells = [cell for row in rows if (cell := results.cells[row, column][seed]).n]
        if kind == "dialogue":
            arms = [
                Arm(name="", fails=1.0 - c.values[success.key], clusters=c.clusters) for c in cells
            ]
        else:
            dialogues = results.plan.evaluations[0].config.evaluation.seeds * pooled
            arms = [by_profile(cell, success, dialogues) for cell in cells]
        if sum(arm.fails.size for arm in arms):
            found[seed] = _joined("", arms)
    return found


def _joined(name: str, arms: Sequence[Arm]) -> Arm:
    """One arm of those of some rows and seeds; a scenario is the same cluster in all of them."""
    return Arm(
        name=name,
        fails=np.concatenate([arm.fails for arm in arms]),
        clusters=np.concatenate([arm.clusters for arm in arms]),
    )


def _printed(results: Results, policy: str, reference: Sequence[str], kind: Kind) -> float | None:
    """The paper's ratio, where it has one against the same reference."""
    labels = results.design.printed_rows
    row = paper.TABLE1.get(labels.get(policy, ""))
    if row is None or [labels.get(name) for name in reference] != [row.reference]:
        return None
    if kind == "dialogue":
        return row.odds_ratio
    return first_success_ratio(row, paper.TABLE1[row.reference])


def _told(one: Compared, results: Results) -> dict[str, str]:
    """A line of the table, by its head."""
    found, title = one.ratio, results.design.measures[0].title
    remarks = [found.note or found.status]
    if set(one.seeds) != set(results.seeds):
        remarks.append(f"at the seeds that both have: {', '.join(map(str, one.seeds))}")
    return {
        "Column": one.column,
        "Odds of": f"a failed {one.of}",
        "Policy": found.policy,
        f"{title}, its / {found.reference}'s": "{:.1f} / {:.1f}".format(
            *(100 * (1 - rate) for rate in found.rates)
        ),
        "Odds ratio": ratio_text(found.odds_ratio, found.interval),
        "p": p_value(found.p),
        "p, Holm": f"{p_value(found.p_holm)} (m = {found.family})",
        "The paper's": "–" if one.printed is None else f"{one.printed:.2f}",
        "Seeds": f"{len(one.seeds)}/{len(results.seeds)}",
        "Remark": "; ".join(remarks),
    }
