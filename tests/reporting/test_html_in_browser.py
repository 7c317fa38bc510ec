"""The report in a real browser: the table is there, the transcripts fill in, nothing fails."""

import html
import json
import re
import shutil
import subprocess

import pytest

from ibrl_jax.reporting.html import write_report
from tests.reporting.fake_run import build
from tests.reporting.test_audits import evaluation as calls

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium or chrome on the PATH to open the report in"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(build(tmp_path_factory.mktemp("run")))


def dom(report, fragment="", *, profile, width=1280):
    """The page's DOM once its script ran; fails on an uncaught error or a blocked script."""
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--window-size={width},900",
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}",
            "--virtual-time-budget=2000",
            "--dump-dom",
            f"{report.as_uri()}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for failure in ("Uncaught", "Content Security Policy", "Refused to"):
        assert failure not in done.stderr, done.stderr
    assert "data-error" not in done.stdout[:500]
    return done.stdout


def scripted(report, script):
    """A copy of the report in which `script` acts as its reader."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text())
    copy = report.with_name("acted.html")
    copy.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    return copy


def test_table_and_transcripts_are_filled_in(report, tmp_path):
    page = dom(report, profile=tmp_path)
    assert 'data-ready="4"' in page[:500]
    assert page.count('class="main best"') == 5
    assert page.count('<article class="rollout"') == 4
    assert page.count('class="card private') == 2
    assert "worth each" in page
    assert "advantage " in page
    assert "<title>mini/seed0 · IB-RL report</title>" in page


def test_turn_with_markup_is_shown_as_text(report, tmp_path):
    page = dom(report, "#transcripts/1/0/tokens", profile=tmp_path)
    assert "onerror=alert(1)" in html.unescape(page)
    assert "<img" not in page
    assert "owned</title>" not in page


def test_link_opens_an_iteration_a_group_and_its_tokens(report, tmp_path):
    page = dom(report, "#transcripts/12/1/tokens", profile=tmp_path)
    assert 'aria-pressed="true">12</button>' in page
    assert re.search(r'class="tok own"[^>]*data-tip="sampled, in the loss · log-prob -\d', page)
    assert 'data-tip="template, masked"' in page
    assert 'data-tip="counterpart, masked"' in page
    assert "no reward" in page
    assert "the judge timed out" in page


def test_reader_can_pick_a_group_and_open_one_turns_tokens(report, tmp_path):
    page = dom(
        scripted(
            report,
            "document.querySelectorAll('#iterations button')[0].click();"
            "document.querySelectorAll('#groups button')[2].click();"
            "document.querySelectorAll('.turn .peek')[1].click();",
        ),
        profile=tmp_path,
    )
    assert 'aria-pressed="true">1</button>' in page
    assert re.search(r'aria-pressed="true">3: \d of 4 succeed', page)
    assert page.count('aria-expanded="true"') == 1
    assert 'data-tip="' in page


@pytest.mark.parametrize("domain", ["dond", "telesales"])
def test_no_table_scrolls_sideways_at_1280_pixels(tmp_path, domain):
    folder = build(tmp_path / "run", iterations=2, groups=1)
    file = folder / "evaluation.json"
    found = calls(auditor="rules") if domain == "telesales" else json.loads(file.read_text())
    names = [c["name"] for c in found["columns"]] if domain == "dond" else []
    for name in ["all held-out", "boulware", "in-system"] if names else []:  # eight in all
        found["columns"].append({"name": name, "kind": "held-out"})
        for row in found["rows"]:
            row["cells"][name] = row["cells"][names[0]] | {"agreement": 1.0}
    file.write_text(json.dumps(found))
    page = dom(
        scripted(
            write_report(folder),
            "document.querySelectorAll('details').forEach(d => d.open = true);"
            "const wide = [...document.querySelectorAll('.scroll, main')]"
            ".filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent.slice(0, 40));"
            "document.body.dataset.wide = wide.length ? wide.join() : 'none';",
        ),
        profile=tmp_path / "profile",
    )
    (wide,) = re.findall(r'data-wide="([^"]*)"', page)
    assert wide == "none"


def test_error_in_the_page_would_be_noticed(report, tmp_path):
    with pytest.raises(AssertionError):
        dom(scripted(report, "throw new Error('planted')"), profile=tmp_path)
