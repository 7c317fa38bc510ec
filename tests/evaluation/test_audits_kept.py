"""What an auditor behind an endpoint answered is kept, and what it did not is asked again."""

from __future__ import annotations

import errno
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import endpoint, load
from ibrl_jax.contests.contest import left_to_do
from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.domains.base import Outcome
from ibrl_jax.endpoints.errors import EndpointError, EndpointStop, Kind
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import audits
from ibrl_jax.evaluation.audits import audit_key, is_open
from ibrl_jax.evaluation.cells import Contestant
from ibrl_jax.evaluation.columns import columns_of
from ibrl_jax.evaluation.matches import Games
from ibrl_jax.evaluation.store import Store
from tests.evaluation.held import say_nothing
from tests.telesales.test_after_call import CLEAN, claimed

ROOT = Path(__file__).parents[2]
ROW = Contestant(label="row", name="scripted:polite", role=None, version=0, partners=())
FILE = "row-rule_v2.jsonl"
CALLS = 6


class Watch:
    """Finds nothing; fails in the checks that `lost` names, and stops for good after `left`."""

    settings = SimpleNamespace(name="watch")

    def __init__(self, left: int = 1000, lost: tuple[str, ...] = ()) -> None:
        self.left, self.lost, self.asked = left, lost, Counter[str]()

    async def chat(self, messages: Any, *, schema: Any, temperature: float) -> Any:
        form = schema.__name__
        self.asked[form] += 1
        if self.asked.total() > self.left:
            raise EndpointStop(Kind.BUDGET, "endpoint 'watch': one more call could exceed it")
        if form in self.lost:
            raise EndpointError(Kind.SERVER, "watch", "status 503", 1)
        turns = [
            {"turn": n, "matches": True, "label": "-"} for n in getattr(schema, "expected", ())
        ]
        found = {
            "AuditReport": CLEAN,
            "HallucinationReport": claimed([]),
            "LabelReport": {"turns": turns, "reason": "-"},
        }[form]
        return SimpleNamespace(parsed=schema.model_validate_json(json.dumps(found)))

    async def aclose(self) -> None:
        pass


def settings(auditor: str = "watch") -> ConfigDict:
    config = load(str(ROOT / "configs/telesales/smoke.py"))
    config.evaluation.scenarios, config.evaluation.seeds = 3, 2
    config.evaluation.counterparts = ("rule_v2",)
    config.telesales.max_agent_turns = 4
    with config.unlocked():
        config.endpoints.watch = endpoint(base_url="http://127.0.0.1:9/v1", model="m")
        config.evaluation.auditor = auditor
    return config


@pytest.fixture(scope="module")
def cast() -> Cast:
    config = settings()
    return Cast(
        domain=build_domain(config),
        speech=build_speech(config),
        engines={},
        endpoints={},
        max_new=32,
    )


def evaluate(
    cast: Cast, watch: Watch, folder: Path, config: ConfigDict | None = None
) -> tuple[Games, dict[str, int]]:
    """An evaluation of one cell, and what it leaves to be done."""
    config = config or settings()
    seated = replace(cast, endpoints={"watch": watch})  # type: ignore[dict-item]
    games = Games(config, seated, {}, Store(folder, say_nothing), say_nothing)
    cell = games.cell(ROW, columns_of(config)[0])
    assert cell is not None
    return games, left_to_do([cell], audited=bool(games.auditor))


def facts(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / FILE).read_text().splitlines()
    return [json.loads(line)["outcome"]["facts"] for line in lines]


def test_an_auditor_that_stops_costs_neither_dialogues_nor_its_answers(
    cast: Cast, tmp_path: Path
) -> None:
    evaluate(cast, Watch(), tmp_path / "whole")
    folder = tmp_path / "stopped"
    with pytest.raises(UserError, match="could exceed it"):
        evaluate(cast, Watch(left=11), folder)
    assert len(facts(folder)) == CALLS
    assert not any("audit" in found for found in facts(folder))
    there = (folder / f"{FILE}.audits").read_text().splitlines()
    assert 0 < len(there) < CALLS
    well = Watch()
    games, left = evaluate(cast, well, folder)
    assert games.anew == 0
    assert set(well.asked.values()) == {CALLS - len(there)}
    assert left == {"dialogues": CALLS, "broken_off": 0, "calls": CALLS, "unaudited": 0}
    assert sorted(file.name for file in folder.iterdir()) == [FILE]
    assert (folder / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_a_disk_that_is_full_is_told_as_such(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ibrl_jax.evaluation.store.KeptCell.audited", full)
    with pytest.raises(OSError, match="No space left"):
        evaluate(cast, Watch(), tmp_path)
    assert len(facts(tmp_path)) == CALLS


def test_what_was_not_answered_is_asked_again_and_nothing_else(cast: Cast, tmp_path: Path) -> None:
    lost = Watch(lost=("LabelReport",))
    _, left = evaluate(cast, lost, tmp_path)
    assert lost.asked.total() == 3 * CALLS
    assert (left["calls"], left["unaudited"]) == (CALLS, CALLS)
    assert {tuple(f["audit"]["unanswered"].items()) for f in facts(tmp_path)} == {
        (("labels", "server"),)
    }
    well = Watch()
    games, left = evaluate(cast, well, tmp_path)
    assert well.asked == {"LabelReport": CALLS}
    assert (games.anew, left["unaudited"]) == (0, 0)
    for found in facts(tmp_path):
        assert found["audit"]["unanswered"] == {}
        assert found["audit"]["labels"]["mismatched"] == []
        assert found["audit"]["fabrication"] is not None
    done = Watch()
    evaluate(cast, done, tmp_path)
    assert done.asked.total() == 0


def test_a_stop_between_the_last_answer_and_the_file_costs_nothing(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("ibrl_jax.evaluation.store.KeptCell.settle", lambda kept: None)
        evaluate(cast, Watch(), tmp_path)
    assert not any("audit" in found for found in facts(tmp_path))
    again = Watch()
    _, left = evaluate(cast, again, tmp_path)
    assert (again.asked.total(), left["unaudited"]) == (0, 0)
    assert all("audit" in found for found in facts(tmp_path))


def test_audits_of_dialogues_that_are_gone_are_not_taken_for_those_of_others(
    cast: Cast, tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        evaluate(cast, Watch(left=11), tmp_path)
    (tmp_path / FILE).unlink()
    again = Watch()
    evaluate(cast, again, tmp_path)
    assert set(again.asked.values()) == {CALLS}


def test_rules_leave_nothing_open(cast: Cast, tmp_path: Path) -> None:
    _, left = evaluate(cast, Watch(left=0), tmp_path, settings(auditor=""))
    assert left == {"dialogues": CALLS, "broken_off": 0, "calls": CALLS, "unaudited": 0}
    assert {found["audit"]["by"] for found in facts(tmp_path)} == {"rules"}


def test_what_is_open() -> None:
    def ended(audit: dict[str, Any] | None, reason: str = "hang_up") -> Outcome:
        known = {} if audit is None else {"audit": audit}
        return Outcome(end_reason=reason, success=False, facts=known)

    assert is_open(ended(None))
    assert is_open(ended({"unanswered": {"claims": "timeout"}}))
    assert not is_open(ended({"unanswered": {}}))
    assert not is_open(ended(None, "aborted")), "there is nothing to look at"


# ------------------------------------------------------------------------- keys


def test_other_audits_have_another_key_and_nobodys_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit_key(load(str(ROOT / "configs/dond/smoke.py"))) == {}
    rules, asked = audit_key(settings("")), audit_key(settings())
    assert rules == {"by": "rules", "version": audits.AUDITS_VERSION}
    assert asked["by"] == "watch"
    found = [rules, asked]
    other = settings()
    other.endpoints.watch.model = "another"
    found.append(audit_key(other))
    chinese = settings()
    chinese.telesales.language = "zh"
    found.append(audit_key(chinese))
    for name in ("audit", "hallucination", "label_audit", "sales"):
        language = settings().telesales.language
        ours = ROOT / f"ibrl_jax/domains/telesales/prompts/{language}/{name}.txt"
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.txt").write_text(f"{ours.read_text()}\nBe strict.\n")
        own = settings()
        own.telesales.prompts_dir = str(folder)
        found.append(audit_key(own))
    monkeypatch.setattr(audits, "AUDITS_VERSION", audits.AUDITS_VERSION + 1)
    found += [audit_key(settings("")), audit_key(settings())]
    assert len({json.dumps(key) for key in found}) == len(found)


def test_a_cell_that_was_audited_otherwise_is_not_taken(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("")
    assert evaluate(cast, Watch(), tmp_path, config)[0].anew == CALLS
    assert evaluate(cast, Watch(), tmp_path, config)[0].anew == 0
    monkeypatch.setattr(audits, "AUDITS_VERSION", audits.AUDITS_VERSION + 1)
    assert evaluate(cast, Watch(), tmp_path, config)[0].anew == CALLS
