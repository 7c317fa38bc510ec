"""Figures are well-formed, follow the page's theme, and cope with runs that have little in them."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from ibrl_jax.reporting import figures
from ibrl_jax.reporting.style import LIGHT
from ibrl_jax.reporting.tables import lay_out
from tests.reporting.fake_run import ROLES, evaluation, metrics_row


def rows(count):
    rng = np.random.default_rng(0)
    return [metrics_row(k, count, rng) for k in range(1, count + 1)]


def texts(svg):
    root = ElementTree.fromstring(
        svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )
    return [str(node.text) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_reward_curves_name_each_role_with_its_smoothed_end():
    metrics = rows(12)
    for row in metrics:
        row["roles"]["agent0"]["reward"] = 0.5
    found = texts(figures.reward_curves(metrics, ROLES))
    assert "agent0  0.50" in found
    assert sum(text.startswith("agent1  ") for text in found) == 1


def test_figures_take_colours_and_font_from_the_page():
    svg = figures.reward_curves(rows(5), ROLES)
    assert f"var(--series-0, {LIGHT['series-0']})" in svg
    assert "var(--font)" in svg
    assert "DejaVu" not in svg
    assert svg.startswith("<svg ")
    assert 'role="img" aria-label="Mean reward by iteration for agent0, agent1"' in svg


def test_equal_data_draw_an_equal_figure():
    assert figures.stage_seconds(rows(6)) == figures.stage_seconds(rows(6))


def test_bars_show_every_policy_and_counterpart_with_an_agreement():
    found = evaluation()
    for row in found["rows"]:
        row["cells"]["stubborn"]["agreement"] = None
    svg = figures.agreement_bars(lay_out(found))
    assert svg is not None
    shown = texts(svg)
    assert {"SFT start · agent0", "IB-RL · agent1", "fair", "held-out"} <= set(shown)
    assert "stubborn" not in shown


def test_no_bars_without_an_agreement():
    assert figures.agreement_bars(lay_out({"columns": [], "rows": []})) is None


@pytest.mark.parametrize("count", [1, 2, 150])
def test_short_and_long_runs_are_drawn(count):
    metrics = rows(count)
    captions = [caption for caption, _ in figures.health_panels(metrics, ROLES)]
    assert "KL to the role's start" in captions
    for svg in (
        figures.reward_curves(metrics, ROLES),
        figures.stage_seconds(metrics),
        str(figures.endings(metrics)),
    ):
        assert "iteration" in texts(svg)


def test_run_without_updates_or_ends_has_no_empty_panels():
    metrics = rows(3)
    for row in metrics:
        row["end_reasons"] = {}
        for values in row["roles"].values():
            values.update(kl=None, groups=0, reward=None)
    captions = [caption for caption, _ in figures.health_panels(metrics, ROLES)]
    assert "KL to the role's start" not in captions
    assert "Groups without variance, %" not in captions
    assert figures.endings(metrics) is None
    assert figures.reward_curves(metrics, ROLES).startswith("<svg ")
