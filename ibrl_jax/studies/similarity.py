"""How alike a counterpart's checkpoints speak (the paper's Figure 6).

Every checkpoint talks with the frozen start in the first role's seat; what it says is embedded, an
utterance at a time, and the mean of these vectors stands for the checkpoint:

    similarity(a, b) = cosine(mean over a's utterances, mean over b's)

Two embeddings: `ibrl_jax.studies.minilm`, the paper's, where a copy of the model is named, and the
n-grams here, which need nothing. Even one policy's dialogues, cut into two halves, are not quite
alike; that ceiling is told beside the matrix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.store import cell_file
from ibrl_jax.reporting.runs import read_lines
from ibrl_jax.reporting.style import INK, LIGHT, house_style
from ibrl_jax.studies import minilm, paper
from ibrl_jax.studies.curves import Line, lines_of
from ibrl_jax.studies.declare import Part, Piece
from ibrl_jax.studies.plan import START
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.tables import markdown

NGRAMS = "n-gram similarity, not MiniLM"
_LONGEST = 3
_WORD = re.compile(r"[a-z0-9']+|[^\W_]", re.IGNORECASE)
_SCALE = LinearSegmentedColormap.from_list("house", [LIGHT["page"], LIGHT["series-0"]])

Utterances = Sequence[Sequence[str]]
"""What a checkpoint said, a dialogue at a time."""


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Of one seed: `matrix` [C, C] over checkpoints, and `ceiling`, the mean over checkpoints of
    the similarity of the two halves of its dialogues (None with fewer than two)."""

    iterations: tuple[int, ...]
    matrix: np.ndarray
    ceiling: float | None

    @property
    def early_to_late(self) -> float | None:
        """Mean over a checkpoint of the first third and one of the last."""
        third = _third(len(self.iterations))
        return float(self.matrix[:third, -third:].mean()) if third else None

    @property
    def within_late(self) -> float | None:
        """Mean over two checkpoints of the last third; None where there is only one."""
        third = _third(len(self.iterations))
        late = self.matrix[len(self.iterations) - third :, len(self.iterations) - third :]
        pairs = late[np.triu_indices(third, 1)]
        return float(pairs.mean()) if pairs.size else None


def _third(count: int) -> int:
    return count // 3


def similarity_of(label: str, role: str, column: str) -> Part:
    """The matrix of a role's checkpoints of a run, out of their dialogues in a column."""

    def part(results: Results) -> Piece:
        line = next(
            line
            for line in lines_of(results)
            if line.run.label == label and any(r.policy == role for r in line.rows.values())
        )
        embed = minilm.encoder()
        name = NGRAMS if embed is None else minilm.NAME
        said = {seed: said_by(results, line, seed, column) for seed in results.seeds}
        whole = {seed: of for seed, of in said.items() if len(of) == len(line.rows) > 1}
        lacking = ", ".join(
            f"seed {seed} ({len(of)} of {len(line.rows)} checkpoints)"
            for seed, of in said.items()
            if seed not in whole
        )
        if not whole:
            return Piece(markdown=f"No dialogues of all checkpoints are there yet: {lacking}.\n")
        found = {seed: similarity(of, embed) for seed, of in whole.items()}
        return _piece(results, found, name, lacking)

    return part


def said_by(results: Results, line: Line, seed: int, column: str) -> dict[int, Utterances]:
    """What each checkpoint of a line said in a column, by iteration, in evaluations that ended.

    Where seats are not alike the start has been measured in another one than its line's policy. Of
    its dialogues with itself it is then what it said in the policy's seat that counts, and of
    others nothing. Of a checkpoint whose file is damaged there is nothing either.
    """
    dialogues: dict[int, list[dict[str, Any]]] = {}
    for iteration, row in line.rows.items():
        owner = next(run for run in results.design.runs if row in run.rows)
        if (owner.label, seed) not in results.evaluations:
            continue
        planned = next(
            one for one in results.plan.evaluations if one.run is owner and one.seed == seed
        )
        file = planned.folder / "dialogues" / cell_file(row.measured_as, column)
        if file.is_file():
            with suppress(UserError):  # a damaged one is as good as none, which is told
                dialogues[iteration] = list(read_lines(file))
    seats = {d["seat"] for k, these in dialogues.items() if k for d in these}
    alone = {name for c in results.design.columns if c.name == column for name in c.counterparts}
    found: dict[int, Utterances] = {}
    for iteration, these in sorted(dialogues.items()):
        found[iteration] = [
            _utterances(d, {d["seat"]} & seats or (seats if alone == {START} else set()))
            for d in these
        ]
    return {iteration: said for iteration, said in found.items() if any(said)}


def _utterances(dialogue: Mapping[str, Any], seats: Collection[str]) -> list[str]:
    """What was said in some seats of a dialogue."""
    return [t["text"] for t in dialogue["turns"] if t["role"] in seats and t["text"].strip()]


def similarity(said: Mapping[int, Utterances], embed: minilm.Encoder | None = None) -> Similarity:
    """The matrix of some checkpoints, by iteration; without an encoder, of n-grams."""
    flat = {k: [text for one in said[k] for text in one] for k in said}
    halves = {
        k: [[t for one in said[k][i::2] for t in one] for i in (0, 1)]
        for k in said
        if len(said[k]) > 1
    }
    everything = [text for texts in flat.values() for text in texts]
    mean = _ngram_means(everything) if embed is None else _encoded_means(everything, embed)
    vectors = np.stack([mean(flat[k]) for k in said])
    ceilings = [
        float(_cosine(np.stack([mean(half) for half in two]))[0, 1])
        for two in halves.values()
        if all(two)
    ]
    return Similarity(
        iterations=tuple(said),
        matrix=_cosine(vectors),
        ceiling=float(np.mean(ceilings)) if ceilings else None,
    )


def _cosine(vectors: np.ndarray) -> np.ndarray:
    """[C, C] of [C, V]; 0 with a vector of zeros."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0, norms, 1.0)
    return np.clip(units @ units.T, -1.0, 1.0)


def ngrams(text: str) -> Counter[str]:
    """Runs of one to three words; what is written without spaces counts a character a word."""
    words = [word.lower() for word in _WORD.findall(text)]
    return Counter(
        " ".join(words[i : i + n])
        for n in range(1, _LONGEST + 1)
        for i in range(len(words) - n + 1)
    )


def _ngram_means(everything: Sequence[str]) -> Any:
    """Gives the mean [V] of the tf-idf vectors of texts.

    Weights are those of all texts together, idf = ln((1 + N) / (1 + df)) + 1; a text's vector has
    length 1.
    """
    counts = {text: ngrams(text) for text in dict.fromkeys(everything)}
    seen: Counter[str] = Counter()
    for text in everything:
        seen.update(counts[text].keys())
    index = {gram: i for i, gram in enumerate(sorted(seen))}
    weight = np.array([np.log((1 + len(everything)) / (1 + seen[g])) + 1 for g in index])
    sparse: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for text, found in counts.items():
        at = np.array([index[gram] for gram in found], np.int64)
        values = np.array(list(found.values()), np.float64) * weight[at]
        norm = np.linalg.norm(values)
        sparse[text] = at, values / norm if norm else values

    def mean(texts: Sequence[str]) -> np.ndarray:
        total = np.zeros(len(index))
        for text, times in Counter(texts).items():
            at, values = sparse[text]
            total[at] += times * values
        return total / max(len(texts), 1)

    return mean


def _encoded_means(everything: Sequence[str], embed: minilm.Encoder) -> Any:
    distinct = list(dict.fromkeys(everything))
    vectors = dict(zip(distinct, embed(distinct), strict=True))

    def mean(texts: Sequence[str]) -> np.ndarray:
        return np.mean([vectors[text] for text in texts], axis=0)

    return mean


def _piece(results: Results, found: Mapping[int, Similarity], name: str, lacking: str) -> Piece:
    """`lacking`: the seeds that are left out, in words."""
    seeds = list(found)
    matrix = np.mean([one.matrix for one in found.values()], axis=0)
    iterations = found[seeds[0]].iterations
    lines = [
        [str(k), *(f"{value:.3f}" for value in row)]
        for k, row in zip(iterations, matrix, strict=True)
    ]
    matrix_text = f"Each checkpoint with each, mean over seeds ({len(seeds)}), by {name}:\n\n"
    matrix_text += markdown(["After iteration", *map(str, iterations)], lines) + "\n"
    rows: list[dict[str, Any]] = []
    told = []
    for title, key, printed in (
        ("early to late", "early_to_late", paper.FIGURE6["early to late"]),
        ("within late", "within_late", paper.FIGURE6["within late"]),
        ("two halves of one checkpoint", "ceiling", None),
    ):
        values = {s: v for s in seeds if (v := getattr(found[s], key)) is not None}
        rows.append(
            {
                "row": title,
                "measure": name,
                "value": float(np.mean(list(values.values()))) if values else None,
                "seeds": len(values),
                "by_seed": values,
                "printed": printed,
            }
        )
        told.append([title, _spread(values), "–" if printed is None else f"{printed:.2f}"])
    text = markdown(["Mean similarity", name, "the paper's (MiniLM, TeleSales, 9B)"], told)
    text += (
        "\n\nEarly and late: the first and the last third of the checkpoints, the start with the "
        "early ones. Two halves of one checkpoint: of its dialogues, a policy against itself, "
        "which says how alike two checkpoints can be found; of half as many dialogues, so rather "
        f"too low. Seeds: {len(seeds)} of {len(results.seeds)}"
        + (f"; left out, since not all is there: {lacking}.\n\n" if lacking else ".\n\n")
    )
    text += matrix_text
    data = {
        "measure": name,
        "left_out": lacking,
        "figures": rows,
        "seeds": {
            str(s): {
                "iterations": list(found[s].iterations),
                "matrix": np.round(found[s].matrix, 6).tolist(),
            }
            for s in seeds
        },
    }
    figure = heat_map(results.study.name, iterations, matrix, name)
    return Piece(markdown=text, rows=rows, data=data, figure=figure)


def heat_map(salt: str, iterations: Sequence[int], matrix: np.ndarray, name: str) -> Figure:
    """The matrix [C, C], its scale from the least entry to 1."""
    side = 0.55 * max(len(iterations), 4)
    low = float(matrix.min()) if matrix.min() < 1 else 0.0
    with house_style(salt):
        figure = Figure(figsize=(side + 1.6, side + 1.0))
        axes = figure.subplots()
        image = axes.imshow(matrix, cmap=_SCALE, vmin=low, vmax=1.0, aspect="equal")
        for (i, j), value in np.ndenumerate(matrix):
            ink = LIGHT["surface"] if value > low + 0.6 * (1 - low) else INK
            shown = f"{value:.2f}"
            axes.text(j, i, shown, ha="center", va="center", color=ink, fontsize=7)
        names = [str(k) for k in iterations]
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(labelcolor=INK)
        axes.grid(visible=False)
        axes.set_xlabel("after iteration")
        axes.set_ylabel("after iteration")
        axes.set_title(name, fontsize=9, color=INK, loc="left")
        figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _spread(values: Mapping[int, float]) -> str:
    if not values:
        return "–"
    found = list(values.values())
    return f"{np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})"
