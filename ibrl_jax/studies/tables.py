"""Parts that are tables: results, the paper's own, the spread over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ibrl_jax.reporting.tables import share
from ibrl_jax.studies import pooled, seeds
from ibrl_jax.studies.declare import Design, Measured, Piece
from ibrl_jax.studies.results import Cell, Results


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in r) + " |" for r in lines
    )


def groups(design: Design) -> dict[str, tuple[str, ...]]:
    """Every line of a table: each row by itself, then all roles of a run together, by its title."""
    lines: dict[str, tuple[str, ...]] = {row: (row,) for row in design.rows}
    for label, rows in design.trained.items():
        if len(rows) > 1:
            lines[f"{label}, all roles"] = rows
    return lines


def result_table(results: Results) -> Piece:
    """Every measure of every row in every column, over all seeds' dialogues together.

    Under it, the judged measures and those of whole scenarios again with intervals over clusters of
    scenarios, and what the dialogues that are missing could make of them.
    """
    design = results.design
    lines, rows, data = [], [], {}
    for title, members in groups(design).items():
        cells = {column: results.cell(members, column) for column in design.shown}
        there = [cell for cell in cells.values() if cell is not None]
        texts = [_cell_text(cells[column], design.measures) for column in design.shown]
        n, planned = sum(cell.n for cell in there), sum(cell.planned for cell in there)
        seen = {seed for column in design.shown for seed in results.by_seed(members, column)}
        lines.append([title, *texts, f"{n:,}/{planned:,}", f"{len(seen)}/{len(results.seeds)}"])
        for column, cell in cells.items():
            if cell is not None:
                found = _cell_rows(results, title, members, column, cell)
                rows += found
                data.setdefault(title, {})[column] = {row["measure"]: row for row in found}
    names = " / ".join(measure.title.lower() for measure in design.measures)
    heads = [_head(column, _kinds(results, column)) for column in design.shown]
    text = markdown(["Policy", *heads, "Coverage", "Seeds"], lines)
    text += (
        f"\n\nCells: {names}; percentages with one decimal. What is undefined without a success is "
        "over successes only. All seeds' dialogues together; coverage: those that came to an end, "
        "of those planned.\n"
    )
    told = [m for m in design.measures if m.key in design.judged or m.at_least]
    for measure in told:
        text += f"\n{_with_intervals(results, data, measure)}\n"
    text += _of_the_missing(data, told)
    return Piece(markdown=text, rows=rows, data=data)


def printed_table(results: Results) -> Piece:
    """The paper's own figures, in the same form."""
    printed = results.study.printed
    if printed is None:
        return Piece()
    columns = list(dict.fromkeys(c for row in printed.rows.values() for c in row))
    keys = list(
        dict.fromkeys(k for row in printed.rows.values() for cell in row.values() for k in cell)
    )
    lines = []
    for label, row in printed.rows.items():
        cells = [row.get(column) for column in columns]
        lines.append([label, *(_printed_cell(cell, keys, printed.percent) for cell in cells)])
    text = f"{printed.title}\n\n{markdown(['Policy', *columns], lines)}\n\n"
    text += f"Cells: {' / '.join(key.replace('_', ' ') for key in keys)}. {printed.note}".strip()
    data = {
        label: {c: dict(cell) for c, cell in row.items()} for label, row in printed.rows.items()
    }
    return Piece(markdown=text + "\n", data=data)


def seed_table(results: Results) -> Piece:
    """The spread over seeds, and each row's difference from the reference run with the seed as the
    unit."""
    design = results.design
    trained = design.trained[design.against]
    text, rows = "", []
    for key in design.judged:
        measure = next(m for m in design.measures if m.key == key)
        spread, differences = [], []
        for title, members in groups(design).items():
            values = {c: pooled.by_seed(results, members, c, measure) for c in design.shown}
            spread.append([title, *(_spread(values[c], measure) for c in design.shown)])
            for column in design.shown:
                row: dict[str, Any] = {"row": title, "column": column, "measure": key}
                if told := pooled.over_seeds(values[column]):
                    row |= dict(zip(("value", "seeds_least", "seeds_most"), told, strict=True))
                row["by_seed"] = values[column]
                rows.append(row)
            if set(members) == set(trained):
                continue
            cells = []
            for column in design.shown:
                mine = pooled.arm(results, 1.0, members, column, measure)
                theirs = pooled.arm(results, -1.0, trained, column, measure)
                found = seeds.contrast([mine, theirs], results.statistics)
                cells.append(contrast_text(found, measure))
                rows.append(
                    {
                        "row": title,
                        "column": column,
                        "measure": key,
                        "less": design.against,
                        **contrast_json(found),
                    }
                )
            differences.append([title, *cells])
        text += (
            f"{measure.title}: mean over seeds (least to greatest)\n\n"
            f"{markdown(['Policy', *design.shown], spread)}\n\n"
            f"{measure.title} less that of {design.against}: {CONTRAST}\n\n"
            f"{markdown(['Policy', *design.shown], differences)}\n\n"
        )
    text += (
        f"{results.statistics.confidence:.0%} intervals: bootstrap of "
        f"{results.statistics.resamples:,} draws of seeds and of clusters of scenarios, the same "
        "for both policies; and Student's t over the seeds' differences. A bootstrap of few seeds "
        "is too narrow.\n"
    )
    return Piece(markdown=text, rows=rows, data=rows)


CONTRAST = (
    "mean over seeds [interval over seeds and scenarios; of Student's t over seeds] seeds above 0 "
    "of all"
)
"""How a contrast is written, in words."""


def contrast_text(found: seeds.Contrast, measure: Measured, word: str = "") -> str:
    """A contrast as `CONTRAST` says, and a word on it; a dash where there is none."""
    if found.mean is None:
        return "–"
    text = measure.difference(found.mean)
    if found.interval and found.t_interval:
        low, high = (measure.difference(x) for x in found.interval)
        t_low, t_high = (measure.difference(x) for x in found.t_interval)
        text += f" [{low}, {high}; t {t_low}, {t_high}]"
    text += f" {found.above}/{len(found.by_seed)}"
    return f"{text}: **{word}**" if word else text


def contrast_json(found: seeds.Contrast) -> dict[str, Any]:
    """A contrast for CSV and JSON."""
    low, high = found.interval or (None, None)
    t_low, t_high = found.t_interval or (None, None)
    return {
        "difference": found.mean,
        "low": low,
        "high": high,
        "t_low": t_low,
        "t_high": t_high,
        "seeds_above": found.above,
        "seeds_below": found.below,
        "seeds": len(found.by_seed),
        "by_seed": dict(found.by_seed),
        "note": found.note,
    }


def _cell_text(cell: Cell | None, measures: Sequence[Measured]) -> str:
    if cell is None:
        return "–"
    return " / ".join(measure.write(cell.value(measure.key)) for measure in measures)


def _cell_rows(
    results: Results, title: str, members: Sequence[str], column: str, cell: Cell
) -> list[dict[str, Any]]:
    printed = _paper(results, members, column)
    rows = []
    for measure in results.design.measures:
        found = pooled.interval(cell, measure, results.statistics)
        bounds = cell.bounds.get(measure.key)
        rows.append(
            {
                "row": title,
                "column": column,
                "kind": "+".join(sorted(cell.kinds)),
                "measure": measure.key,
                "value": found.mean,
                "low": found.low,
                "high": found.high,
                "least": bounds and bounds.least / bounds.of,
                "most": bounds and bounds.most / bounds.of,
                "n": cell.n,
                "planned": cell.planned,
                "clusters": found.clusters,
                "seeds": len(results.by_seed(members, column)),
                "printed": printed.get(measure.key),
                "note": found.note,
            }
        )
    return rows


def _paper(results: Results, members: Sequence[str], column: str) -> Mapping[str, float]:
    """The paper's cell beside one of ours, shares as shares; nothing where it has none."""
    design, printed = results.design, results.study.printed
    if printed is None or len(members) > 1:
        return {}
    columns = {c.name: c.printed for c in design.columns}
    row = printed.rows.get(design.printed_rows.get(members[0], ""), {})
    cell = row.get(columns.get(column) or column, {})
    return {key: value / 100 if key in printed.percent else value for key, value in cell.items()}


def _with_intervals(results: Results, data: Mapping[str, Any], measure: Measured) -> str:
    lines = []
    for title in groups(results.design):
        cells = [data.get(title, {}).get(column) for column in results.design.shown]
        lines.append([title, *(_interval(cell and cell[measure.key], measure) for cell in cells)])
    head = [f"{measure.title} [{results.statistics.confidence:.0%} over scenarios]"]
    return markdown([*head, *results.design.shown], lines)


def _of_the_missing(data: Mapping[str, Any], measures: Sequence[Measured]) -> str:
    """Where dialogues are missing, what the measures would be were they failures, or successes."""
    lines = []
    for title, columns in data.items():
        for column, cell in columns.items():
            found = [cell[m.key] for m in measures]
            if found and found[0]["n"] < found[0]["planned"]:
                ends = (
                    f"{m.write(row['least'])} to {m.write(row['most'])}"
                    for m, row in zip(measures, found, strict=True)
                )
                missing = found[0]["planned"] - found[0]["n"]
                lines.append([title, column, str(missing), *ends])
    if not lines:
        return ""
    head = ["Policy", "Column", "Missing", *(m.title for m in measures)]
    return (
        f"\n{markdown(head, lines)}\n\nIn the worst case: from all missing dialogues failures "
        "(0) to all successes (1). Nothing else on this page counts them.\n"
    )


def _interval(found: Mapping[str, Any] | None, measure: Measured) -> str:
    if found is None:
        return "–"
    text = measure.write(found["value"])
    if found["low"] is None:
        return text
    return f"{text} [{measure.write(found['low'])}, {measure.write(found['high'])}]"


def _printed_cell(
    cell: Mapping[str, float] | None, keys: Sequence[str], percent: Sequence[str]
) -> str:
    if cell is None:
        return "–"
    found = [(key, cell.get(key)) for key in keys]
    texts = [share(value, 1 if key in percent else 3) for key, value in found]
    return " / ".join(texts)


def _kinds(results: Results, column: str) -> frozenset[str]:
    cells = [
        cell for (_, name), by in results.cells.items() if name == column for cell in by.values()
    ]
    return frozenset().union(*(cell.kinds for cell in cells))


def _head(column: str, kinds: frozenset[str]) -> str:
    """A column's name, and what it is where that is not plain from it."""
    told = sorted(kind for kind in kinds if kind != column and kind not in column)
    return f"{column} ({', '.join(told)})" if told else column


def ratio_text(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def _spread(values: dict[int, float], measure: Measured) -> str:
    found = pooled.over_seeds(values)
    if found is None:
        return "–"
    mean, least, most = (measure.write(x) for x in found)
    return f"{mean} ({least} to {most})"


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Pairs of a comparison (arm, reference) and of intervals in columns of their own."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key == "interval":
            found["low"], found["high"] = value or (None, None)
        elif isinstance(value, tuple):
            found[key], found[f"reference_{key}"] = value
        else:
            found[key] = value
    return found
