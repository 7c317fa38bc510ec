"""What the figures say to the question of a study, in sentences that are computed from them.

Asked of each run, at each judged measure and with the seed as the unit: is a column below its
in-system play or below the start, and is the reference run ahead? A word is used where both
intervals allow it, that over seeds and scenarios and Student's t over seeds: *falls* where all of
both lies below 0, *rises* where all lies above, and *no clear change* where one of them holds 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ibrl_jax.studies import pooled, seeds
from ibrl_jax.studies.declare import IN_SYSTEM, Measured, Piece
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.tables import CONTRAST, contrast_json, contrast_text, markdown

_CHANGE = {1: "rises", -1: "falls", 0: "no clear change", None: "not judged"}
_LEAD = {1: "ahead", -1: "behind", 0: "no clear difference", None: "not judged"}
_MILDER = {1: "falls less", -1: "falls more", 0: "no clear difference", None: "not judged"}

_OWN = "less its own in-system play"

_Ask = Callable[[str, str], seeds.Contrast]


def verdict(results: Results) -> Piece:
    """Whether each run falls against its in-system play, and how the reference run compares."""
    design = results.design
    trained = [label for label, rows in design.trained.items() if rows]
    others = [label for label in trained if label != design.against]
    start = next((r.label for run in design.runs for r in run.rows if r.policy == "start"), None)
    abroad = [column for column in design.shown if column != IN_SYSTEM]
    text, data = "", []
    for key in design.judged:
        measure = next(m for m in design.measures if m.key == key)
        asks = _Questions(results, measure)
        tables: list[tuple[str, Sequence[str], Sequence[str], Mapping[int | None, str], _Ask]] = []
        if design.in_system:
            tables.append((_OWN, trained, abroad, _CHANGE, asks.fall))
        if start is not None:
            head = f"less {start} in the same column"
            tables.append((head, trained, design.shown, _CHANGE, asks.since(start)))
        if others:
            head = f"of {design.against} less that of each other run"
            tables.append((head, others, design.shown, _LEAD, asks.lead))
        if others and design.in_system:
            head = f"of {design.against}: its change from in-system less that of each other run"
            tables.append((head, others, abroad, _MILDER, asks.milder))
        for head, labels, columns, words, ask in tables:
            lines = []
            for label in labels:
                cells = []
                for column in columns:
                    found = ask(label, column)
                    word = words[found.verdict]
                    cells.append(contrast_text(found, measure, word))
                    if found.mean is not None:
                        data.append(
                            {
                                "row": label,
                                "column": column,
                                "measure": key,
                                "question": head,
                                "word": word,
                                **contrast_json(found),
                            }
                        )
                lines.append([label, *cells])
            text += f"{measure.title} {head}:\n\n{markdown(['Run', *columns], lines)}\n\n"
    if not data:
        return Piece(markdown="Nothing can be said: no run has been evaluated.\n")
    text = _answers(results, data) + text
    text += (
        f"A run is all the roles that it trained together. Each cell: {CONTRAST}, and a word: "
        "*falls*, *ahead* and the like stand where both intervals leave 0 out, and nowhere else; "
        "with one seed nothing is judged. Percentages in points. Many questions are asked at once, "
        "and no interval is corrected for that.\n"
    )
    return Piece(markdown=text, rows=data, data=data)


@dataclass(frozen=True)
class _Questions:
    """The contrasts of one measure: of a run (its label) in a column."""

    results: Results
    measure: Measured

    def fall(self, label: str, column: str) -> seeds.Contrast:
        """A column less in-system."""
        rows = self.results.design.trained[label]
        return self._contrast((1.0, rows, column), (-1.0, rows, IN_SYSTEM))

    def since(self, start: str) -> _Ask:
        """What training changed in a column."""

        def ask(label: str, column: str) -> seeds.Contrast:
            rows = self.results.design.trained[label]
            return self._contrast((1.0, rows, column), (-1.0, (start,), column))

        return ask

    def lead(self, label: str, column: str) -> seeds.Contrast:
        """The reference run less another."""
        ours, theirs = self._both(label)
        return self._contrast((1.0, ours, column), (-1.0, theirs, column))

    def milder(self, label: str, column: str) -> seeds.Contrast:
        """The reference run's change from in-system less that of another."""
        ours, theirs = self._both(label)
        return self._contrast(
            (1.0, ours, column),
            (-1.0, ours, IN_SYSTEM),
            (-1.0, theirs, column),
            (1.0, theirs, IN_SYSTEM),
        )

    def _both(self, label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        design = self.results.design
        return design.trained[design.against], design.trained[label]

    def _contrast(self, *arms: tuple[float, Sequence[str], str]) -> seeds.Contrast:
        made = [pooled.arm(self.results, c, rows, at, self.measure) for c, rows, at in arms]
        return seeds.contrast(made, self.results.statistics)


def _answers(results: Results, data: Sequence[Mapping[str, Any]]) -> str:
    """The short answer: what each run does outside its own system, a line a run and measure."""
    lines = []
    for key in results.design.judged:
        title = next(m.title for m in results.design.measures if m.key == key)
        for label in results.design.trained:
            told: dict[str, list[str]] = {}
            for row in data:
                if (row["measure"], row["row"], row["question"]) == (key, label, _OWN):
                    told.setdefault(row["word"], []).append(row["column"])
            if told:
                parts = "; ".join(f"{word} ({', '.join(at)})" for word, at in told.items())
                lines.append(f"- {title} of {label} against its in-system play: {parts}.")
    return "\n".join(lines) + "\n\n" if lines else ""
