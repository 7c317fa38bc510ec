"""The start on TeleSales: examples, pieces of calls, recitals, transcripts of one's own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.domains.base import Domain
from ibrl_jax.domains.telesales.record import parse_record
from ibrl_jax.domains.telesales.scenarios import initial_of
from ibrl_jax.errors import UserError
from ibrl_jax.trainer.lessons import Lessons, cut, packed
from ibrl_jax.trainer.start import start_key
from ibrl_jax.trainer.teachers import (
    Example,
    Renderer,
    converse,
    examples,
    pair_of,
    recitals,
)
from ibrl_jax.trainer.transcripts import read_transcripts, synthetic
from tests.telesales.smoke import FAMILIES, SPEECH, TOKENIZER, smoke

# ------------------------------------------------------------------------- the start


def test_an_example_weighs_what_the_role_said_itself_and_nothing_else(domain: Domain) -> None:
    scenario = domain.scenarios("train")[0]
    referee = converse(domain, scenario, dict(zip(domain.roles, FAMILIES, strict=True)), "sales", 3)
    renderer = Renderer(domain, SPEECH, 2.0)
    for role in domain.roles:
        example = renderer.example(domain.prompt(scenario, role), role, referee.turns, scenario)
        own = [t.said for t in referee.turns if t.role == role and "scripted" not in t.flags]
        learned = example.ids[example.weight > 0].tolist()
        assert TOKENIZER.decode(learned) == "".join(own)
        assert learned.count(SPEECH.chat.stop_ids[0]) == len(own)
        assert set(np.unique(example.weight)) == {0.0, 1.0, 2.0}  # numbers weigh more than words
    assert "scripted" in referee.turns[0].flags


def test_the_scripted_teachers_of_the_start_write_valid_records(domain: Domain) -> None:
    for row in synthetic(domain, FAMILIES, 20, 0):
        state = initial_of(row["scenario"]["private"]["customer"])
        agreed = False
        for turn in row["turns"]:
            if turn["role"] == "customer":
                parsed = parse_record(turn["said"], state, verbal_yes=agreed)
                assert not isinstance(parsed, str), parsed
                state, agreed = parsed.state, agreed or "AgreeWeChat" in turn["said"]


def test_teachers_sit_where_they_can() -> None:
    config = smoke()
    domain, rng = build_domain(config), np.random.default_rng(0)
    pairs = {tuple(pair_of(domain, (*FAMILIES, "polite"), rng).items()) for _ in range(40)}
    assert pairs == {
        (("sales", seller), ("customer", "rule_v1")) for seller in ("competent", "polite")
    }
    with pytest.raises(UserError, match=r"config.sft.families \(competent\) has nobody for cust"):
        pair_of(domain, ("competent",), rng)


def example(ids: Any, weight: Any, opening: int = 0, heard: tuple[int, ...] = ()) -> Example:
    return Example(
        ids=np.asarray(ids, np.int32),
        weight=np.asarray(weight, np.float32),
        turns=1,
        opening=opening,
        heard=heard,
    )


def test_packed_rows_hold_whole_examples_in_segments_of_their_own() -> None:
    data = [example(np.full(n, n), np.ones(n)) for n in (3, 4, 5)]
    ids, segments, weight = packed(data, 16, 30, np.random.default_rng(0))
    for row in range(30):
        assert (weight[row] > 0).tolist() == (segments[row] > 0).tolist()
        pieces = [ids[row][segments[row] == s] for s in range(1, segments[row].max() + 1)]
        assert all(len(piece) == piece[0] for piece in pieces)
        assert 16 - sum(map(len, pieces)) < 5


def test_a_dialogue_is_cut_into_pieces_that_open_with_its_prompt_and_something_heard() -> None:
    # a prompt of two tokens, then three times: heard, two own tokens
    ids, weight = [90, 91, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, *3 * (0, 1, 1)]
    dialogue = example(ids, weight, opening=2, heard=(2, 5, 8))
    for length, *pieces in (
        (11, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (9, [1, 2, 3, 4, 5, 6, 7], [7, 8, 9]),
        (8, [1, 2, 3, 4, 5, 6], [7, 8, 9]),
        (7, [1, 2, 3, 4, 5], [4, 5, 6, 7, 8], [7, 8, 9]),
        (4, [1, 2], [4, 5], [7, 8]),
    ):
        found = [e.ids.tolist() for e in cut([dialogue], length)]
        assert found == [[90, 91, *piece] for piece in pieces]


def test_a_piece_has_something_to_learn() -> None:
    late, early = (example(range(4), weight) for weight in ((0, 0, 0, 1), (0, 1, 0, 1)))
    (found,) = cut([late, early], 3)
    assert (found.ids.tolist(), found.weight.tolist()) == ([0, 1, 2], [0, 1, 0])
    with pytest.raises(UserError, match=r"config\.sft\.cut is 1, and no turn begins before"):
        cut([late, early], 1)


def test_a_start_of_cut_examples_has_a_key_of_its_own(domain: Domain) -> None:
    speech = build_speech(smoke())
    options = ("sft.cut=0", "sft.cut=96", "sft.recitals=0.2")
    assert len({start_key(smoke(option), domain, speech, 0) for option in options}) == 3


def test_a_recital_says_the_fields_of_the_agents_prompt_that_are_asked_for(domain: Domain) -> None:
    exercises = recitals(domain, SPEECH, count=40, seed=0, number_weight=3.0)
    weighted, again, registered = 0, 0, set()
    for scenario in domain.scenarios("train"):
        registered |= set(domain.prompt(scenario, "sales").split("\n\n")[-1].split("; "))
    invented = 0
    for exercise in exercises:
        text = TOKENIZER.decode(exercise.ids.tolist())
        own = TOKENIZER.decode(exercise.ids[exercise.weight > 0].tolist())
        said = own.removesuffix("<|im_end|>").split("; ")
        told = text.removeprefix("system\n").split("\n")[0].split("; ")
        assert 2 <= len(told) <= 5
        assert 3 <= len(said) <= 8
        asked = text.split("user\n")[1].split("?")[0].split(" ")
        for word, field in zip(asked, said, strict=True):
            assert word in field
            assert [word in re.split(r"\W+", other) for other in told].count(True) == 1
            assert not any(map(str.isdigit, word))
        assert set(said) <= set(told)
        assert not any("<" in field for field in told)
        weighted += exercise.weight.max() == 3.0
        again += len(set(said)) < len(said)
        invented += not set(told) <= registered
    assert weighted > 20
    assert again > 20
    assert invented > 20  # other figures than any scenario's
    assert {len(e.ids) for e in exercises} != {len(exercises[0].ids)}


def test_a_chinese_recital_is_never_asked_for_by_its_own_answer() -> None:
    """A field may be one word from its key to its value: a part asks, and for a name nothing."""
    chinese = build_domain(smoke("telesales.language=zh", "telesales.train_profiles=60"))
    exercises = recitals(chinese, SPEECH, count=300, seed=0, number_weight=1.0)
    assert len(exercises) == 300
    parts = set()
    for exercise in exercises:
        text = TOKENIZER.decode(exercise.ids.tolist())
        own = TOKENIZER.decode(exercise.ids[exercise.weight > 0].tolist())
        told = text.removeprefix("system\n").split("\n")[0].split("; ")
        said = own.removesuffix("<|im_end|>").split("; ")
        question = text.split("user\n")[1].split("?")[0]
        assert not [field for field in told if field in question]
        assert set(said) <= set(told)
        asked = question.split(" ")
        for part, field in zip(asked, said, strict=True):
            assert part in field
            assert [part in other for other in told].count(True) == 1
            assert not any(map(str.isdigit, part))
        parts |= set(asked)
    assert len(parts) > 40


def test_recitals_come_first_and_fade_until_whole_dialogues_are_learned() -> None:
    def marked(mark: int, size: int) -> Example:
        return example(np.full(size, mark), np.ones(size))

    sft = smoke("sft.steps=400", "sft.curriculum=0.5", "sft.recitals=0.4", "sft.cut=16").sft
    dialogues = [marked(1, 30), marked(1, 30), marked(1, 60)]
    lessons = Lessons(sft, dialogues, [marked(2, 5)])
    rng, seen = np.random.default_rng(0), []
    for index in range(400):
        ids, segments, _ = lessons.rows(index, rng)
        seen.append((int(ids[0, 0]), ids.shape[1], int(segments.max())))
    assert set(seen[:2]) == {(2, 16, 3)}
    assert 40 < sum(mark == 2 for mark, _, _ in seen[:100]) > sum(m == 2 for m, _, _ in seen[100:])
    assert set(seen[160:200]) == {(1, 16, 1)}
    assert {(mark, length) for mark, length, _ in seen[200:]} == {(1, 32), (1, 64)}
    with pytest.raises(UserError, match="a recital has 17 tokens, and rows of the curriculum"):
        Lessons(sft, [marked(1, 30)], [marked(2, 17)])


# ------------------------------------------------------------------------- transcripts


def written(folder: Path, *rows: Any) -> str:
    file = folder / "calls.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_written_transcripts_teach_what_their_teachers_would(
    domain: Domain, tmp_path: Path
) -> None:
    path = written(tmp_path, *synthetic(domain, FAMILIES, 6, 1))
    renderer = Renderer(domain, SPEECH, 1.0)
    for row, transcript in zip(
        synthetic(domain, FAMILIES, 6, 1), read_transcripts(path, domain), strict=True
    ):
        assert [turn.said for turn in transcript.turns] == [turn["said"] for turn in row["turns"]]
        assert set(transcript.prompts) == set(domain.roles)
        for role, prompt in transcript.prompts.items():
            example = renderer.example(prompt, role, transcript.turns, transcript.scenario)
            assert example.weight.any()


def test_a_transcript_with_prompts_of_its_own_is_taken_as_it_stands(
    domain: Domain, tmp_path: Path
) -> None:
    turns = [
        {"role": "customer", "text": "Hello?", "flags": ["scripted"]},
        {"role": "sales", "text": "Hi, [notice]", "said": "Hi, <call_function=x>"},
    ]
    path = written(tmp_path, {"prompts": {"sales": "You sell."}, "turns": turns})
    (transcript,) = read_transcripts(path, domain)
    assert dict(transcript.prompts) == {"sales": "You sell."}
    assert [turn.said for turn in transcript.turns] == ["Hello?", "Hi, <call_function=x>"]
    example = Renderer(domain, SPEECH, 1.0).example("You sell.", "sales", transcript.turns, None)
    assert TOKENIZER.decode(example.ids[example.weight > 0].tolist()) == "Hi, <call_function=x>"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_line_ends_within_a_text_and_a_mark_of_the_encoding_break_no_line(
    domain: Domain, tmp_path: Path, encoding: str, end: str
) -> None:
    said = ["Hi\u2028there.", "A\u2029B\x85C\x0bD\x1cE.", "Plain."]
    rows = [
        {"prompts": {"sales": "You sell."}, "turns": [{"role": "sales", "text": text}]}
        for text in said
    ]
    file = tmp_path / "calls.jsonl"
    lines = "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)
    for raw in "\x0b\x1c":  # JSON has these escaped
        assert raw not in lines
    file.write_bytes(lines.encode(encoding))
    found = read_transcripts(str(file), domain)
    assert [transcript.turns[0].said for transcript in found] == said
    file.write_bytes((lines + "half" + end).encode(encoding))
    with pytest.raises(UserError, match="line 4 of .* is no JSON"):
        read_transcripts(str(file), domain)


def test_what_is_no_transcript_is_one_sentence_that_names_the_line(
    domain: Domain, tmp_path: Path
) -> None:
    (good,) = synthetic(domain, FAMILIES, 1, 0)
    spoken = [turn for turn in good["turns"] if turn["role"] == "sales"]
    broken = {**good, "turns": [*good["turns"][:2], {"role": "customer", "text": "no record"}]}
    without = {**good["scenario"], "private": {}}
    for rows, said in (
        ([good, "text"], "line 2 of .* has no turns"),
        ([{"prompts": {"sales": "x"}, "turns": [{"text": "hi"}]}], "turn 0 of line 1 .* no role; "),
        ([{**good, "turns": [{"role": "boss", "text": "hi"}]}], "has the role 'boss'; the roles"),
        ([{"turns": good["turns"]}], "has neither a scenario nor prompts"),
        ([{"prompts": {"boss": "x"}, "turns": spoken}], "a prompt for 'boss'"),
        ([{**good, "turns": [{"role": "sales"}]}], "has no text"),
        ([{**good, "turns": [*spoken[:2]]}], "turn 1 of line 1 .* is sales's, and customer is to"),
        ([broken], "turn 2 of line 1 .* no legal turn of customer .not_json"),
        ([{**good, "scenario": without}], "without private parts for sales and customer"),
        ([], "holds no transcript"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            read_transcripts(written(tmp_path, *rows), domain)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"nowhere\.jsonl cannot be read"):
        read_transcripts("nowhere.jsonl", domain)


# ------------------------------------------------------------------------- the same for all


def test_examples_are_the_same_whoever_asks(domain: Domain) -> None:
    made = [
        examples(
            domain,
            SPEECH,
            families=FAMILIES,
            count=4,
            seed=0,
            number_weight=2.0,
            deals_only=False,
        )
        for _ in range(2)
    ]
    assert len(made[0]) == 8
    for one, other in zip(*made, strict=True):
        assert one.ids.tolist() == other.ids.tolist()


def test_prompts_without_fields_cannot_be_recited(
    domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(domain), "prompt", lambda *_: "<rules>")
    with pytest.raises(UserError, match=r"config\.sft\.recitals needs prompts whose last"):
        recitals(domain, SPEECH, count=1, seed=0, number_weight=1.0)
