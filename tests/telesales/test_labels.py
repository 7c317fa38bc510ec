"""The sets of labels and the rubric are the paper's, and read in both languages."""

import pytest
from pydantic import BaseModel

from ibrl_jax.domains.telesales.labels import (
    AFTER_VERBAL_YES,
    EVALUATION_CLIPS,
    LANGUAGES,
    RUBRIC_CHANGES,
    RUBRIC_WORDS,
    TRAINING_CLIP,
    AgentAction,
    Behaviour,
    Clip,
    DialogueAction,
    Intent,
    Label,
    Rubric,
    Stage,
)
from ibrl_jax.domains.telesales.profiles import terms

SETS = [Behaviour, Stage, Intent, DialogueAction, AgentAction]
TERMS = [
    value
    for value in vars(terms).values()
    if isinstance(value, type) and issubclass(value, Label) and value is not Label
]


@pytest.mark.parametrize(
    "labels, size",
    [
        pytest.param(Behaviour, 14, id="table 16: behaviours"),
        pytest.param(Stage, 5, id="table 16: stages"),
        pytest.param(Intent, 11, id="table 9: intents"),
        pytest.param(DialogueAction, 14, id="table 9: dialogue actions"),
        pytest.param(AgentAction, 10, id="table 10: agent actions"),
        pytest.param(Rubric, 18, id="table 11: rubric"),
        pytest.param(terms.Scene, 8, id="table 8: scenes"),
        pytest.param(terms.IntentDepth, 4, id="table 7: initial intents"),
        pytest.param(terms.Personality, 5, id="table 7: personalities"),
        pytest.param(terms.Remote, 3, id="table 7: geography"),
        pytest.param(terms.Difficulty, 4, id="table 7: difficulty"),
    ],
)
def test_a_set_of_labels_has_the_papers_size(labels, size):
    assert len(labels) == size


def test_table_16_three_behaviours_need_a_verbal_yes():
    assert {b.value for b in AFTER_VERBAL_YES} == {"ConfirmAdded", "IgnoreRequest", "RejectRequest"}


def test_table_11_is_the_papers_to_the_digit():
    table = """
    B01  0.05  0.05  0.02
    B02  0     0.06  0.01
    B03  0.01  0.05 -0.02
    B04  0.08  0.07  0.01
    B05  0.04  0.05  0.01
    B06  0     0.03  0.04
    B07 -0.05 -0.03 -0.10
    B08 -0.04 -0.04 -0.03
    B09  0    -0.15  0
    B10 -0.04  0    -0.05
    B11  0    -0.03 -0.04
    B12 -0.12 -0.10 -0.12
    B13  0.02  0     0.01
    B14  0     0     0
    B15  0     0     0
    B16 -0.10 -0.05 -0.15
    B17  0     0.03  0.05
    B18  0     0    -0.10
    """
    paper = {row.split()[0]: tuple(map(float, row.split()[1:])) for row in table.split("\n")[1:-1]}
    ours = {k.value: (c.willingness, c.trust, c.patience) for k, c in RUBRIC_CHANGES.items()}
    assert ours == paper


def test_table_9_clips_of_the_evaluation_and_table_16_clip_of_training():
    assert EVALUATION_CLIPS.willingness == Clip(low=-0.20, high=0.15)
    assert EVALUATION_CLIPS.trust == Clip(low=-0.20, high=0.12)
    assert EVALUATION_CLIPS.patience == Clip(low=-0.15, high=0.08)
    assert Clip(low=-0.20, high=0.15) == TRAINING_CLIP


@pytest.mark.parametrize("delta, kept", [(0.3, 0.15), (-0.3, -0.2), (0.1, 0.1)])
def test_a_clip_holds_a_change_within_its_bounds(delta, kept):
    assert TRAINING_CLIP(delta) == kept


@pytest.mark.parametrize("labels", [*SETS, *TERMS])
def test_every_label_reads_back_from_its_wording_in_either_language(labels):
    for language in LANGUAGES:
        words = [label.word(language) for label in labels]
        assert len(set(words)) == len(labels)
        assert [labels(word) for word in words] == list(labels)


def test_every_entry_of_the_rubric_has_words_in_both_languages():
    assert list(RUBRIC_WORDS) == list(RUBRIC_CHANGES) == list(Rubric)
    assert all(words["zh"] and words["en"] for words in RUBRIC_WORDS.values())


def test_a_record_may_hold_chinese_wordings_and_is_written_with_the_labels_value():
    class Record(BaseModel):
        behaviour: Behaviour

    record = Record.model_validate_json('{"behaviour": "确认已添加"}')
    assert record.model_dump_json() == '{"behaviour":"ConfirmAdded"}'


def test_an_unknown_label_is_refused():
    with pytest.raises(ValueError, match="'Applaud' is not a valid Behaviour"):
        Behaviour("Applaud")
