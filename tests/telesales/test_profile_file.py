"""A file of evaluation profiles: written with stories, read by the domain, refused if wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import profiles
from ibrl_jax.config import load
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.telesales.domain import TeleSales, TelesalesSettings
from ibrl_jax.domains.telesales.profiles.files import dump_profiles, read_profiles
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.profiles.schema import EvaluationProfile
from ibrl_jax.domains.telesales.scenarios import story_of
from ibrl_jax.domains.telesales.story import compile_offline
from ibrl_jax.errors import UserError
from tests.endpoints.fault_server import Asked, FaultServer, Reply, say

SMOKE = str(Path(__file__).parents[2] / "configs/telesales/smoke.py")


def settings(**changes: object) -> TelesalesSettings:
    domain = build_domain(load(SMOKE))
    assert isinstance(domain, TeleSales)
    return replace(domain.settings, **changes)


def wrote(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    profiles.main([f"--config={SMOKE}", *options], Console(width=300))
    return capsys.readouterr().out


def test_a_written_file_is_the_evaluation_set_with_its_stories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made" / "profiles.jsonl"
    said = wrote(capsys, f"--to={file}")
    assert said.startswith(f"4 profiles with stories are in {file}; --config.telesales.test_file=")
    own = TeleSales(settings(stories="offline"))
    read = TeleSales(settings(stories="none", test_file=str(file), test_profiles=1))
    assert read.scenarios("test") == own.scenarios("test")
    assert all(story_of(s.private["customer"]) is not None for s in read.scenarios("test"))


def test_a_story_that_a_profile_has_is_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = evaluation_profiles(9, 2, "sampled", "en")
    paid_for = second.model_copy(update={"story": compile_offline(second, 5)})
    own, file = tmp_path / "own.jsonl", tmp_path / "told.jsonl"
    own.write_bytes(dump_profiles([first, paid_for]))
    named = f"--config.telesales.test_file={own}"
    wrote(capsys, f"--to={file}", named, "--config.telesales.max_agent_turns=15")
    made, kept = read_profiles(file, EvaluationProfile)
    assert kept == paid_for
    assert made.story == compile_offline(first, settings().seed)


def test_a_file_that_is_there_stays_as_it_is_and_nobody_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "told.jsonl"
    file.write_text("what somebody paid for")
    with FaultServer(story_script("")) as server:  # type: ignore[arg-type]
        for options in ((f"--to={file}",), asked_of(server, file)):
            with pytest.raises(UserError, match=r"told\.jsonl is there already, and its stories"):
                wrote(capsys, *options)
        assert not server.asked
    assert file.read_text() == "what somebody paid for"


def test_a_story_of_the_file_is_kept_and_a_missing_one_is_made(tmp_path: Path) -> None:
    first, second = evaluation_profiles(9, 2, "sampled", "en")
    story = compile_offline(second, 5)
    file = tmp_path / "own.jsonl"
    file.write_bytes(dump_profiles([first, second.model_copy(update={"story": story})]))
    chosen = settings(stories="offline", seed=0, test_file=str(file), max_agent_turns=15)
    made = TeleSales(chosen).scenarios("test")
    stories = [story_of(scenario.private["customer"]) for scenario in made]
    assert stories == [compile_offline(first, 0), story]


def test_a_file_that_cannot_be_used_is_one_sentence_before_anything_is_learned(
    tmp_path: Path,
) -> None:
    chinese = tmp_path / "zh.jsonl"
    chinese.write_bytes(dump_profiles(evaluation_profiles(0, 1, "sampled", "zh")))
    unknown = tmp_path / "city.jsonl"
    row = json.loads(dump_profiles(evaluation_profiles(0, 1, "sampled", "en")))
    row["user_profile"]["location_context"]["city"] = "Atlantis"
    unknown.write_text(json.dumps(row) + "\n")
    for file, says in (
        (chinese, "is in 'zh', and config.telesales.language is 'en'"),
        (unknown, "the city 'Atlantis' is unknown"),
        (tmp_path / "none.jsonl", "cannot be read"),
    ):
        with pytest.raises(UserError, match=says) as caught:
            TeleSales(settings(test_file=str(file)))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("turns", [0, -3])
def test_a_call_without_a_turn_of_the_agent_is_no_profile(tmp_path: Path, turns: int) -> None:
    file = limited(tmp_path, turns)
    with pytest.raises(
        UserError, match=r"line 1 is no evaluation .*\.max_agent_turns: .* than or eq"
    ):
        TeleSales(settings(test_file=str(file), max_agent_turns=15))


def test_a_turn_limit_other_than_the_configs_is_one_sentence_with_both(tmp_path: Path) -> None:
    file = str(limited(tmp_path, 8))
    (scenario,) = TeleSales(settings(test_file=file, max_agent_turns=8)).scenarios("test")
    assert scenario.private["customer"]["kind"] == "evaluation"
    with pytest.raises(UserError) as caught:
        TeleSales(settings(test_file=file, max_agent_turns=15))
    said = str(caught.value)
    assert "case_control.max_agent_turns = 8, and config.telesales.max_agent_turns is 15;" in said
    assert "\n" not in said


def limited(folder: Path, turns: int) -> Path:
    """A file of one profile with this turn limit."""
    row = json.loads(dump_profiles(evaluation_profiles(0, 1, "sampled", "en")))
    row["case_control"]["max_agent_turns"] = turns
    file = folder / "limited.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file


def test_a_mark_of_the_encoding_and_line_ends_of_other_kinds_are_text(tmp_path: Path) -> None:
    row = json.loads(dump_profiles(evaluation_profiles(0, 1, "sampled", "en")))
    row["case_control"]["max_agent_turns"] = 2
    row["user_profile"]["speech_profile"]["speaking_style"] = "slow\u2028and\x85plain"
    file = tmp_path / "marked.jsonl"
    file.write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8-sig")
    (profile,) = TeleSales(settings(test_file=str(file))).evaluation_set
    assert profile.user_profile.speech_profile.speaking_style == "slow\u2028and\x85plain"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def story_script(broken: str) -> object:
    """Answers each profile's prompt with its offline story; the one named, with prose."""
    known = {p.id: p for p in TeleSales(settings()).evaluation_set}

    def script(asked: Asked) -> Reply:
        (name,) = (name for name in known if f'"{name}"' in asked.prompt)
        story = compile_offline(known[name], 1)
        scenes = {k.value: list(v) for k, v in story.scene_fewshots.items()}
        text = json.dumps({"story": story.story, "scene_fewshots": scenes})
        return say("no story today" if name == broken else text)

    return script


def asked_of(server: FaultServer, file: Path, *more: str) -> tuple[str, ...]:
    own = ("model=m", "retries=0", "max_tokens=4096", f"base_url={server.url}", *more)
    return (
        f"--to={file}",
        "--endpoint=writer",
        "--attempts=1",
        *(f"--config.endpoints.writer.{option}" for option in own),
    )


def test_an_endpoint_writes_the_stories_all_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = TeleSales(settings()).evaluation_set
    file = tmp_path / "told.jsonl"
    for broken in (known[2].id, ""):
        with FaultServer(story_script(broken)) as server:  # type: ignore[arg-type]
            options = asked_of(server, file, "price_in=2.0", "price_out=4.0")
            if broken:
                with pytest.raises(
                    UserError, match=f"1 of 4 profiles got no story, the first, {broken}"
                ):
                    wrote(capsys, *options)
                assert not file.exists()
                assert capsys.readouterr().out.startswith(
                    "writer (m): 4 calls, 3 answered, failed parse 1; 4 requests; "
                    "28 tokens in and 12 out; cost 0.000104; "
                )
            else:
                said = wrote(capsys, *options).splitlines()
                assert said[0].startswith("writer (m): 8 calls, 7 answered, failed parse 1; 8 req")
                assert said[1].startswith("4 profiles with stories")
    read = read_profiles(file, EvaluationProfile)
    assert [p.story for p in read] == [compile_offline(p, 1) for p in known]
    events = [json.loads(line) for line in Path(f"{file}.ledger.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events].count("request") == 8


def test_stories_obey_the_budget_of_all_starts_and_need_no_other_endpoints_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, broken = tmp_path / "told.jsonl", TeleSales(settings()).evaluation_set[0].id
    with FaultServer(story_script(broken)) as server:  # type: ignore[arg-type]
        options = (
            *asked_of(server, file, "max_calls=4"),
            f"--config.endpoints.judge.base_url={server.url}",
            "--config.endpoints.judge.model=m",
            "--config.endpoints.judge.key_env=A_KEY_THAT_IS_NOT_SET",
        )
        with pytest.raises(UserError, match="1 of 4 profiles got no story"):
            wrote(capsys, *options)
        with pytest.raises(UserError, match=r"one more call could exceed budget\.max_calls = 4"):
            wrote(capsys, *options)
        assert len(server.asked) == 4  # three were answered, and are in told.jsonl.cache
    assert "; 4 requests; " in capsys.readouterr().out
    assert not file.exists()


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    to = f"--to={tmp_path}/p.jsonl"
    dond = str(Path(SMOKE).parents[1] / "dond/smoke.py")
    for options, says in (
        ((to,), "--config is needed"),
        ((f"--config={dond}", to), "the config's domain is dond"),
        ((f"--config={SMOKE}", to, "--endpoint=x"), "--endpoint is 'x'; config.endpoints has none"),
        ((f"--config={SMOKE}", f"--to={tmp_path}"), "--to is .*, a folder; it must be a file"),
        ((f"--config={SMOKE}", to, "--table=7"), "--table is of tables, and --to writes"),
        ((f"--config={SMOKE}", to, "--seed=1"), "--seed is of tables, and --to writes"),
        ((f"--config={SMOKE}", to, "--attempts=2"), "--attempts is of stories by an endpoint"),
        (
            (f"--config={SMOKE}", to, "--config.endpoints.x.model=m"),
            "--config.endpoints.x.model is of stories by an endpoint, and no --endpoint is named",
        ),
    ):
        with pytest.raises(UserError, match=says):
            profiles.main(options, Console())
