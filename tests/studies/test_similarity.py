"""Figure 6: how alike checkpoints speak, on utterances whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibrl_jax.evaluation.store import cell_file
from ibrl_jax.studies import minilm
from ibrl_jax.studies.curves import lines_of
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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """agent1 says `hello` at the start and `deal` at its end; the other seat talks nonsense."""
    design = replace(MEASURED, runs=MEASURED.runs[:1])
    made = planned(tmp_path_factory.mktemp("said"), (0, 1), design)
    words = {"start": "hello", "agent1 at 0.5": "hello deal", "agent1": "deal"}
    for run in made.runs:
        finish(run)
    for one in made.evaluations:
        evaluate(one, chance, columns=(FIXED, "A"))
        for policy, word in words.items():
            file = one.folder / "dialogues" / cell_file(policy, FIXED)
            file.parent.mkdir(exist_ok=True)
            rows = [
                {
                    "seat": seat,
                    "turns": [
                        {"role": role, "text": word if role == seat else f"xyz {n}"}
                        for role in ("agent0", "agent1")
                    ],
                }
                for n, seat in enumerate(("agent0", "agent1"))
            ]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return collect(replace(STUDY, designs={"mini": design}), "mini", (0, 1), made)


def test_what_a_checkpoint_said_is_read_from_its_own_seat(found: Results) -> None:
    line = next(line for line in lines_of(found) if line.label == "pair, agent1")
    said = said_by(found, line, 1, FIXED)
    assert said == {0: [["hello"]] * 2, 2: [["hello deal"]] * 2, 4: [["deal"]] * 2}
    assert said_by(found, line, 1, "A") == {}


def test_the_part_names_its_measure_and_stands_beside_the_paper(
    found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(minilm.VARIABLE, raising=False)
    monkeypatch.setattr(minilm, "_installed", lambda: None)
    piece = similarity_of("pair", "agent1", FIXED)(found)
    assert NGRAMS in piece.markdown
    rows = {row["row"]: row for row in piece.rows}
    assert rows["early to late"]["value"] == pytest.approx(0.0)
    assert rows["early to late"]["printed"] == 0.74
    assert rows["two halves of one checkpoint"]["value"] == pytest.approx(1.0)
    assert piece.data["seeds"]["0"]["iterations"] == [0, 2, 4]
    assert piece.figure is not None


def test_without_dialogues_it_says_so(tmp_path: Path) -> None:
    design = replace(MEASURED, runs=MEASURED.runs[:1])
    study = replace(STUDY, designs={"mini": design})
    empty = collect(study, "mini", (0,), planned(tmp_path, (0,), design))
    assert "No dialogues" in similarity_of("pair", "agent1", FIXED)(empty).markdown
