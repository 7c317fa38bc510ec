"""The report is one closed file that degrades with a sentence and never runs what a turn says."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.reporting.html import headline, write_report
from ibrl_jax.reporting.runs import read_run
from ibrl_jax.reporting.tables import lay_out
from ibrl_jax.reporting.transcripts import embed, sample_groups
from tests.reporting.fake_run import HOSTILE, build


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(folder):
    return write_report(folder).read_text()


def data_of(page):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found)


def test_report_needs_nothing_from_outside(page):
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page


def test_only_the_reports_own_script_may_run(page):
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_turn_with_markup_is_data_and_nothing_else(page):
    assert "<img" not in page
    assert page.count("</script>") == 2
    texts = [
        turn["text"]
        for group in data_of(page)["groups"]
        for rollout in group["rollouts"]
        for turn in rollout["turns"]
    ]
    assert HOSTILE in texts


def test_names_in_config_table_and_metrics_are_escaped(tmp_path):
    folder = build(tmp_path, iterations=2)
    for name in ("config", "evaluation"):
        text = (folder / f"{name}.json").read_text()
        text = text.replace('"mini"', '"<b>bold</b>"').replace("IB-RL", "<i>x</i>")
        (folder / f"{name}.json").write_text(text.replace('"fair"', '"<u>f</u>"'))
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics.replace("agent1", "<s>&r</s>"))
    page = write_report(folder).read_text()
    for tag in ("<b>bold", "<i>x</i>", "<u>f", "<s>&"):
        assert tag not in page
    assert "&lt;i&gt;x&lt;/i&gt;" in page
    assert "&lt;u&gt;f&lt;/u&gt;" in page


def test_embedded_json_reads_back_and_holds_no_markup():
    value = {"a": "</script><!-- & \u2028", "b": [float("nan"), 1.5, None], "c": "€"}
    text = embed(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": value["a"], "b": [None, 1.5, None], "c": "€"}


def test_headline_compares_with_the_start_on_held_out_counterparts(folder):
    run = read_run(folder)
    assert run.evaluation is not None
    assert headline(run, lay_out(run.evaluation)) == (
        "After 24 iterations, IB-RL agrees in 76.5% of dialogues with held-out counterparts, "
        "29.0 points above its start; expected utility rises from 0.264 to 0.425."
    )


def test_headline_says_so_when_training_made_things_worse(folder):
    run = read_run(folder)
    assert run.evaluation is not None
    text = json.dumps(run.evaluation)
    text = text.replace("SFT start", "?").replace("IB-RL", "SFT start").replace("?", "IB-RL")
    said = headline(run, lay_out(json.loads(text)))
    assert "agrees in 47.5%" in said
    assert "29.0 points below its start; expected utility falls from 0.425" in said


def pooled(evaluation, policies, reference="SFT start"):
    """The same rows with a pooled column alone, and these policies' intervals in it."""
    rows = [
        {**row, "policy": name, "cells": {"all held-out": row["cells"]["fair"]}}
        for row, name in zip(evaluation["rows"], ("SFT start", "SFT start", *policies), strict=True)
    ]
    intervals = [
        {"policy": name, "reference": reference, "column": "all held-out", "measure": key, "ci": ci}
        for name in dict.fromkeys(policies)
        for key, ci in (("agreement", [0.2, 0.375]), ("expected_utility", [-0.01, 0.25]))
    ]
    columns = [{"name": "all held-out", "kind": "held-out"}]
    return evaluation | {"columns": columns, "rows": rows, "comparisons": intervals}


def test_headline_has_the_intervals_of_the_differences(folder):
    run = read_run(folder)

    def said(*policies, **changes):
        evaluation = pooled(run.evaluation, policies, **changes)
        return headline(replace(run, evaluation=evaluation), lay_out(evaluation))

    alone = said("IB-RL", "IB-RL")
    assert "29.0 points above its start (95% interval: +20.0 to +37.5); expected" in alone
    assert alone.endswith(" (95% interval: -0.010 to +0.250).")
    both = said("a", "b")
    assert "above their start (95% intervals: a +20.0 to +37.5, b +20.0 to +37.5);" in both
    assert "interval" not in said("a", "b", reference="a third")


def test_run_without_evaluation_or_dialogues_says_so(tmp_path):
    folder = build(tmp_path, iterations=12)
    (folder / "evaluation.json").unlink()
    for file in (folder / "dialogues").iterdir():
        file.unlink()
    page = write_report(folder).read_text()
    assert "has not been evaluated yet" in page
    assert "No dialogues were kept" in page
    assert re.search(r"After 12 iterations, mean reward went agent0 from 0\.\d+ to 0\.\d+", page)
    assert data_of(page) == {"groups": []}


def test_run_without_metrics_is_refused_and_leaves_no_file(tmp_path):
    folder = build(tmp_path, iterations=1)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="no metrics"):
        write_report(folder)
    assert not list(folder.glob("report*"))


@pytest.mark.parametrize(
    "file, text",
    [
        ("metrics.jsonl", "{}\n"),
        ("metrics.jsonl", '{"iteration": 1, "roles": 3}\n'),
        ("metrics.jsonl", '{"iteration": 1, "seconds": {"total": 1e999}}\n'),
        ("evaluation.json", '{"columns": []}'),
        ("dialogues/iter_000001.jsonl", "{}\n"),
    ],
)
def test_rows_that_lack_what_a_report_needs_are_the_users_to_know(tmp_path, file, text):
    folder = build(tmp_path, iterations=1)
    (folder / file).write_text(text)
    with pytest.raises(UserError, match=file.partition("/")[0]) as caught:
        write_report(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


def test_table_shows_coverage_intervals_and_the_best_of_each_column(page):
    table = re.search(r'<table class="result">.*?</table>', page, re.DOTALL)
    assert table
    assert "99.0% scored; 70.3–71.3 whatever the others were" in table[0]
    assert "100.0% scored" not in table[0]
    assert "998" in table[0]
    assert "65.0–77.0" in table[0]
    assert table[0].count('class="main best"') == 5
    assert "separated" in page


def test_sample_takes_first_middle_and_last_iterations_in_drawn_order(folder):
    sample = sample_groups(read_run(folder).dialogues)
    shown = [(group["iteration"], group["draw"]) for group in sample.groups]
    assert [k for k, _ in shown] == [k for k in (1, 6, 12, 18, 24) for _ in range(3)]
    assert [draw for _, draw in shown[:3]] == ["1.0", "1.1", "1.2"]
    assert "the first 3 groups drawn at 5 iterations of the 5" in sample.note


def test_many_iterations_are_thinned_evenly(folder, tmp_path):
    first = read_run(folder).dialogues[1].read_text()
    files = {k: tmp_path / f"iter_{k:06d}.jsonl" for k in range(1, 102)}
    for k, file in files.items():
        file.write_text(first.replace('"iteration": 1,', f'"iteration": {k},'))
    sample = sample_groups(files)
    shown = dict.fromkeys(group["iteration"] for group in sample.groups)
    assert list(shown) == [1, 21, 41, 61, 81, 101]
    assert "6 iterations of the 101" in sample.note


def test_byte_budget_is_kept_and_what_it_cost_is_said(folder):
    dialogues = read_run(folder).dialogues
    whole = sample_groups(dialogues)
    size = len(embed(whole.groups).encode())
    tight = sample_groups(dialogues, limit=size // 3)
    assert len(embed(tight.groups).encode()) <= size // 3 + 100
    assert "without tokens" in tight.note
    assert tight.groups[-1]["iteration"] == 24
    assert tight.groups[-1]["rollouts"][1]["views"]
    none = sample_groups(dialogues, limit=10)
    assert not none.groups
    assert "15 groups left out" in none.note


def test_tokens_carry_mask_and_log_probability_only_where_sampled(page):
    rollout = data_of(page)["groups"][0]["rollouts"][1]
    own, counterpart = rollout["views"]["agent0"]["0"], rollout["views"]["agent0"]["1"]
    assert {mask for *_, mask, _ in own} == {0, 1}
    assert all((logp is None) == (mask == 0) for *_, mask, logp in own + counterpart)
    assert {mask for *_, mask, _ in counterpart} == {0}
    assert {segment for _, segment, *_ in counterpart} == {0, 2}
