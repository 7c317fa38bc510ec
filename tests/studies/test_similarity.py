"""Figure 6: how alike checkpoints speak, on utterances whose answer is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibrl_jax.evaluation.store import cell_file
from ibrl_jax.studies import minilm
from ibrl_jax.studies.curves import Line, lines_of
from ibrl_jax.studies.plan import Plan
from ibrl_jax.studies.results import Results, collect
from ibrl_jax.studies.similarity import NGRAMS, ngrams, said_by, similarity, similarity_of
from tests.studies.checkpoints import FIXED, MEASURED, chance
from tests.studies.fakes import STUDY, evaluate, finish, planned


def test_words_are_runs_of_letters_and_characters_of_scripts_without_spaces() -> None:
    assert dict(ngrams("I want it, I want")) == {
        "i": 2,
        "want": 2,
        "it": 1,
        "i want": 2,
        "want it": 1,
        "it i": 1,
        "i want it": 1,
        "want it i": 1,
        "it i want": 1,
    }
    assert set(ngrams("你好 ok")) == {"你", "好", "ok", "你 好", "好 ok", "你 好 ok"}


def test_the_same_words_are_alike_and_others_are_not() -> None:
    said = {0: [["two hats"], ["one ball"]], 1: [["one ball"], ["two hats"]], 2: [["no deal"]] * 2}
    found = similarity(said)
    assert found.matrix == pytest.approx(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))
    assert found.ceiling == pytest.approx((0 + 0 + 1) / 3), "halves: hats and ball; no deal twice"


def test_rare_words_weigh_more_than_what_everybody_says() -> None:
    said = {0: [["deal hats"]], 1: [["deal books"]], 2: [["deal hats"]], 3: [["deal"]]}
    matrix = similarity(said).matrix
    assert matrix[0, 2] == pytest.approx(1.0)
    assert 0 < matrix[0, 1] < matrix[0, 3] < 1
    assert matrix[0, 1] < 1 / 3, "what it would be if the three n-grams weighed the same"


def test_early_and_late_are_thirds() -> None:
    words = ["a", "a", "b", "c", "d", "d"]
    found = similarity({n: [[word]] for n, word in enumerate(words)})
    assert found.early_to_late == 0.0
    assert found.within_late == pytest.approx(1.0)
    assert found.ceiling is None
    short = similarity({0: [["a"]], 1: [["b"]]})
    assert (short.early_to_late, short.within_late) == (None, None)


def test_an_encoder_takes_the_place_of_ngrams() -> None:
    def embed(texts) -> np.ndarray:
        return np.array([[1.0, 0.0] if text == "hello" else [0.6, 0.8] for text in texts])

    found = similarity({0: [["hello"]], 1: [["hi"]]}, embed)
    assert found.matrix[0, 1] == pytest.approx(0.6)


DESIGN = replace(MEASURED, runs=MEASURED.runs[:1])
WORDS = {"start": "hello", "agent1 at 0.5": "hello deal", "agent1": "deal"}
BOTH = ("agent0", "agent1")


def talked(folder: Path, policy: str, seats: Sequence[str]) -> None:
    """Leave a dialogue with a policy in each of some seats; the other seat talks nonsense."""
    file = folder / "dialogues" / cell_file(policy, FIXED)
    file.parent.mkdir(exist_ok=True)
    rows = [
        {
            "seat": seat,
            "turns": [
                {"role": role, "text": WORDS[policy] if role == seat else f"xyz {n}"}
                for role in BOTH
            ],
        }
        for n, seat in enumerate(seats)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    """agent1 says `hello` at the start and `deal` at its end, in both seats, at two seeds."""
    made = planned(tmp_path, (0, 1), DESIGN)
    for run in made.runs:
        finish(run)
    for one in made.evaluations:
        evaluate(one, chance, columns=(FIXED, "A"))
        for policy in WORDS:
            talked(one.folder, policy, BOTH)
    return made


def read(made: Plan) -> Results:
    return collect(replace(STUDY, designs={"mini": DESIGN}), "mini", (0, 1), made)


@pytest.fixture
def found(made: Plan) -> Results:
    return read(made)


@pytest.fixture
def by_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(minilm.VARIABLE, raising=False)
    monkeypatch.setattr(minilm, "_installed", lambda: None)


def line_of(results: Results) -> Line:
    return next(line for line in lines_of(results) if line.label == "pair, agent1")


def test_what_a_checkpoint_said_is_read_from_its_own_seat(found: Results) -> None:
    said = said_by(found, line_of(found), 1, FIXED)
    assert said == {0: [["hello"]] * 2, 2: [["hello deal"]] * 2, 4: [["deal"]] * 2}
    assert said_by(found, line_of(found), 1, "A") == {}


def test_of_a_start_that_sat_elsewhere_the_words_in_the_policys_own_seat_count(made: Plan) -> None:
    """As a start of TeleSales, which is measured as the seller: the customer is the start too."""
    for one in made.evaluations:
        talked(one.folder, "start", ("agent0",))
        for policy in ("agent1 at 0.5", "agent1"):
            talked(one.folder, policy, ("agent1",))
    results = read(made)
    said = said_by(results, line_of(results), 0, FIXED)
    assert said == {0: [["xyz 0"]], 2: [["hello deal"]], 4: [["deal"]]}


def test_what_an_evaluation_that_did_not_end_has_kept_is_left_out_and_told(
    made: Plan, by_ngrams: None
) -> None:
    (made.evaluations[1].folder / "evaluation.json").unlink()
    results = read(made)
    assert said_by(results, line_of(results), 1, FIXED) == {}
    piece = similarity_of("pair", "agent1", FIXED)(results)
    assert set(piece.data["seeds"]) == {"0"}
    told = "Seeds: 1 of 2; left out, since not all is there: seed 1 (0 of 3 checkpoints)."
    assert told in piece.markdown


def test_a_seed_that_lacks_a_checkpoint_is_left_out_and_told(made: Plan, by_ngrams: None) -> None:
    file = cell_file("agent1 at 0.5", FIXED)
    (made.evaluations[0].folder / "dialogues" / file).unlink()
    piece = similarity_of("pair", "agent1", FIXED)(read(made))
    assert set(piece.data["seeds"]) == {"1"}
    assert piece.data["left_out"] == "seed 0 (2 of 3 checkpoints)"


def test_a_damaged_file_of_dialogues_is_as_good_as_none(made: Plan, by_ngrams: None) -> None:
    file = made.evaluations[0].folder / "dialogues" / cell_file("agent1 at 0.5", FIXED)
    file.write_text("no JSON\n" + file.read_text())
    piece = similarity_of("pair", "agent1", FIXED)(read(made))
    assert piece.data["left_out"] == "seed 0 (2 of 3 checkpoints)"


def test_the_part_names_its_measure_and_stands_beside_the_paper(
    found: Results, by_ngrams: None
) -> None:
    piece = similarity_of("pair", "agent1", FIXED)(found)
    assert NGRAMS in piece.markdown
    rows = {row["row"]: row for row in piece.rows}
    assert rows["early to late"]["value"] == pytest.approx(0.0)
    assert rows["early to late"]["printed"] == 0.74
    assert rows["two halves of one checkpoint"]["value"] == pytest.approx(1.0)
    assert piece.data["seeds"]["0"]["iterations"] == [0, 2, 4]
    assert piece.figure is not None


def test_without_dialogues_it_says_so(tmp_path: Path, by_ngrams: None) -> None:
    empty = read(planned(tmp_path, (0, 1), DESIGN))
    text = similarity_of("pair", "agent1", FIXED)(empty).markdown
    assert text.startswith("No dialogues of all checkpoints are there yet: seed 0 (0 of 3")
