"""What the bench found: kept in one JSON file, so that it can go on, and told as a table.

results.json   {"about": ..., "agree": {size: {peer: largest difference}},
                "cases": {"rollout8/4M": {"implementations": {name: {...}}, "load": [...]}},
                "own": {name: [figures]}}
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibrl_jax.trainer.run import read_json, write_json


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something that several implementations do.

    `goals`: how many times as fast as each peer ours is meant to be. `unit`: what is counted a
    second; `iterations` are told in seconds each.
    """

    name: str
    title: str
    unit: str
    sizes: tuple[str, ...]
    goals: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Ours beside one peer, in one case and size; speeds are medians of `repeats`."""

    case: Case
    size: str
    peer: str
    ours: Spread
    theirs: Spread

    @property
    def ratio(self) -> float:
        return self.ours.median / self.theirs.median

    @property
    def goal(self) -> float | None:
        return self.case.goals.get(self.peer)

    @property
    def verdict(self) -> str:
        """`met`, or by how much it was missed."""
        if self.goal is None:
            return ""
        return "met" if self.ratio >= self.goal else f"missed by {1 - self.ratio / self.goal:.0%}"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much was done a second: the median of some repeats, the least and the most."""

    median: float
    least: float
    most: float
    repeats: int

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Spread:
        speeds = [n / s for n, s in zip(found["amounts"], found["seconds"], strict=True)]
        return cls(
            median=statistics.median(speeds),
            least=min(speeds),
            most=max(speeds),
            repeats=len(speeds),
        )

    def told(self, unit: str) -> str:
        """`13,918 (12,100 to 14,020)`, or seconds each where one takes long."""
        if unit == "iterations":
            return f"{1 / self.median:.2f} s ({1 / self.most:.2f} to {1 / self.least:.2f})"
        return f"{self.median:,.0f} ({self.least:,.0f} to {self.most:,.0f})"


class Results:
    """A folder of results; whatever is put in is on disk at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "results.json"
        self.values: dict[str, Any] = {"about": {}, "agree": {}, "cases": {}, "own": {}}
        if self._file.is_file():
            self.values |= read_json(self._file)

    def has(self, kind: str, name: str) -> bool:
        return name in self.values[kind]

    def put(self, kind: str, name: str, value: Any) -> None:
        self.values[kind][name] = value
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self._file, self.values)

    def lines(self, cases: Sequence[Case]) -> Iterator[Line]:
        """Every pair that was measured, in the cases' order."""
        for case in cases:
            for size in case.sizes:
                found = self.values["cases"].get(f"{case.name}/{size}")
                if found is None:
                    continue
                ours = Spread.of(found["implementations"]["ours"])
                for peer, theirs in found["implementations"].items():
                    if peer != "ours":
                        yield Line(
                            case=case, size=size, peer=peer, ours=ours, theirs=Spread.of(theirs)
                        )


def markdown(results: Results, cases: Sequence[Case]) -> str:
    """The block that stands in docs/bench/bench.md."""
    about, values = results.values["about"], results.values
    out = [f"Measured on {about['date']} by `make bench`: {about['machine']}.", ""]
    out += [f"- {name}: {versions}" for name, versions in about["versions"].items()]
    out += ["", *_agreement(values["agree"])]
    lines = list(results.lines(cases))
    if lines:
        out += [
            "| figure | size | ours | peer | theirs | ratio | goal | |",
            "| --- | --- | ---: | --- | ---: | ---: | ---: | --- |",
        ]
    for line in lines:
        unit, goal = line.case.unit, line.goal
        out.append(
            f"| {line.case.title} | {line.size} | {line.ours.told(unit)} | {line.peer} | "
            f"{line.theirs.told(unit)} | {line.ratio:.1f} | "
            f"{'' if goal is None else f'{goal:g}'} | {line.verdict} |"
        )
    own = [figure for figures in values["own"].values() for figure in figures]
    if own:
        out += ["", "| figure | value | goal | |", "| --- | --- | --- | --- |"]
    for figure in own:
        verdict = {True: "met", False: "missed", None: ""}[figure["met"]]
        out.append(f"| {figure['figure']} | {figure['told']} | {figure['goal']} | {verdict} |")
    if lines:
        out += ["", *_first_calls(values["cases"])]
    return "\n".join(out) + "\n"


def _agreement(agree: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not agree:
        return []
    found = "; ".join(
        f"{size}: " + ", ".join(f"{peer} {gap:.0e}" for peer, gap in gaps.items())
        for size, gaps in agree.items()
    )
    return [f"Largest difference of a logit from ours before anything was timed: {found}.", ""]


_ABOUT_FIRST = (
    "First calls (they load code and compile; but an update's program is compiled before, when "
    "losses and gradient norms are compared, and what JAX compiled for an earlier run, for ours "
    "or tunix, it reads from a cache on disk), repeats, and the load average before each case"
)


def _first_calls(cases: Mapping[str, Any]) -> list[str]:
    """Seconds until the first call came back, and how rows of our updates were cut up."""
    out = [
        f"{_ABOUT_FIRST}:",
        "",
        "| case | first call, s | repeats | load |",
        "| --- | --- | ---: | ---: |",
    ]
    for name, found in cases.items():
        each = found["implementations"]
        first = ", ".join(
            f"{n} {v['first_call']:.1f}" for n, v in each.items() if "first_call" in v
        )
        repeats = len(each["ours"]["seconds"])
        out.append(f"| {name} | {first} | {repeats} | {found['load'][0]:.1f} |")
    cuts = [
        f"{name.partition('/')[2]}: {cut['micro_batch']} rows a pass, {cut['lanes']} side by side"
        for name, found in cases.items()
        if (cut := found["implementations"]["ours"].get("answers", [{}])[0].get("cut"))
    ]
    if cuts:
        out += ["", f"Our update, as measured before it was timed: {'; '.join(cuts)}."]
    return out


def table(results: Results, cases: Sequence[Case]) -> str:
    """Every repeat of every implementation, as CSV."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("case", "size", "implementation", "repeat", "seconds", "amount", "load"))
    for case in cases:
        for size in case.sizes:
            found = results.values["cases"].get(f"{case.name}/{size}")
            for name, each in (found or {"implementations": {}})["implementations"].items():
                rows = zip(each["seconds"], each["amounts"], found["load"], strict=True)
                for repeat, (seconds, amount, load) in enumerate(rows):
                    writer.writerow((case.name, size, name, repeat, f"{seconds:.4f}", amount, load))
    return out.getvalue()


def own_table(results: Results) -> str:
    """Ours' own figures, with what they were read from, as JSON."""
    return json.dumps(results.values["own"], indent=1) + "\n"
