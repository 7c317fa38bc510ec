"""Table 4: what is earned against each counterpart, out of metrics.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ibrl_jax.studies.results import Results, collect
from ibrl_jax.studies.returns import printed_returns, returns_of
from tests.studies.fakes import STUDY, finish, planned


@pytest.fixture
def found(tmp_path: Path) -> Results:
    made = planned(tmp_path, (0, 1))
    for run in made.runs:
        finish(run)
        rows = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
        for k, row in enumerate(rows):
            against = {"scripted:easy": {"episodes": 3, "return": 2.4 + run.seed * 0.3}}
            if k % 2:  # not every counterpart is drawn at every iteration
                against["scripted:hard"] = {"episodes": 1, "return": 0.25}
            row["speakers"] = {"agent1": against} if run.run.label == "alone" else {}
        run.folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return collect(STUDY, "mini", (0, 1), made)


def test_returns_are_summed_over_iterations_a_seed_each(found: Results) -> None:
    rows = {(r["row"], r["seed"]): r for r in returns_of("alone")(found).rows}
    easy = rows["scripted:easy", 1]
    assert (easy["total_return"], easy["episodes"]) == (pytest.approx(4 * 2.7), 12)
    assert easy["mean_return"] == pytest.approx(0.9)
    hard = rows["scripted:hard", 0]
    assert (hard["total_return"], hard["episodes"]) == (pytest.approx(0.5), 2)


def test_the_table_pools_seeds_and_shows_their_spread(found: Results) -> None:
    piece = returns_of("alone")(found)
    assert "| scripted:easy | 20.40 | 24 | 0.85 | 0.80 to 0.90 | 2/2 |" in piece.markdown
    assert piece.figure is not None


def test_a_run_without_static_counterparts_has_no_such_table(found: Results) -> None:
    piece = returns_of("pair")(found)
    assert piece.rows == ()
    assert piece.figure is None


def test_the_papers_means_are_its_totals_over_its_episodes(found: Results) -> None:
    data = printed_returns(found).data
    assert len(data) == 3
    for row in data.values():
        assert round(row["total_return"] / row["episodes"], 2) == row["mean_return"]
