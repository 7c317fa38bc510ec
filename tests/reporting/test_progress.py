"""Progress says what matters, in a terminal and in a file."""

import io

import numpy as np
from rich.console import Console

from ibrl_jax.reporting.progress import TrainingProgress, duration, figures
from tests.reporting.fake_run import metrics_row


def run(total, *, done=0, every=1, terminal=False, seconds=4.0):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=160, color_system=None)
    rng = np.random.default_rng(0)
    with TrainingProgress(total=total, done=done, every=every, console=console) as progress:
        progress.note("compiling [4 buckets] ...")
        for k in range(done + 1, total + 1):
            row = metrics_row(k, total, rng)
            row["seconds"]["total"] = seconds
            progress.update(row)
    return out.getvalue()


def test_file_gets_one_plain_line_every_few_iterations():
    lines = run(10, every=4).splitlines()
    assert lines[0] == "· compiling [4 buckets] ..."
    assert [line.split()[0] for line in lines[1:]] == ["1/10", "4/10", "8/10", "10/10"]
    assert lines[2].startswith("4/10  24s left  reward agent0 +0.")
    assert "\x1b" not in "".join(lines)


def test_resumed_run_counts_from_where_it_was():
    lines = run(10, done=7).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["8/10", "9/10", "10/10"]


def test_terminal_redraws_one_line_and_keeps_notes():
    text = run(3, terminal=True)
    assert "compiling [4 buckets] ..." in text
    assert "3/3" in text
    assert "4.00 s/iter" in text


def test_figures_leave_out_what_does_not_exist():
    row = metrics_row(1, 10, np.random.default_rng(0))
    row["roles"]["agent0"]["reward"] = None
    row["roles"]["agent1"]["kl"] = float("nan")
    row["dialogues"]["agreement"] = None
    row["coverage"] = 0.97
    text = figures(row)
    assert "reward agent1 +0." in text
    assert "agent0 +" not in text
    assert "KL agent0 0.0030" in text
    assert "agreement" not in text
    assert "coverage 97.0%" in text


def test_one_slow_iteration_moves_the_time_left_little():
    console = Console(file=io.StringIO(), force_terminal=False)
    progress = TrainingProgress(total=104, done=0, every=1, console=console)
    assert progress.left() == "time left unknown"
    for seconds in (60.0, 1.0, 1.0, 1.0):
        progress.update({"seconds": {"total": seconds}})
        assert ("unknown" in progress.left()) == (len(progress._recent) < 3)
    assert progress.left() == "1m 40s left"


def test_durations_read_as_people_say_them():
    assert [duration(s) for s in (-1, 59.4, 185, 7800)] == ["0s", "59s", "3m 05s", "2h 10m"]
