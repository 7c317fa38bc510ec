"""A run on TeleSales: settings, seats in an evaluation, the start's examples and transcripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import default_config, load
from ibrl_jax.dialogue.agents import ScriptedSpeaker, Speaker
from ibrl_jax.dialogue.build import build_domain, build_hall, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.chat import ChatML
from ibrl_jax.dialogue.loop import Match, play
from ibrl_jax.dialogue.tokenizers import load_tokenizer
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.domains.dond.scoring import ROLES as DOND_ROLES
from ibrl_jax.domains.telesales.metrics import STAND_IN
from ibrl_jax.domains.telesales.record import parse_record
from ibrl_jax.domains.telesales.scenarios import ROLES as TELESALES_ROLES
from ibrl_jax.domains.telesales.scenarios import initial_of
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.matches import Contestant, evaluate
from ibrl_jax.reporting.tables import csv_table, markdown_table
from ibrl_jax.rewards.llm import EndpointJudge
from ibrl_jax.rewards.telesales_rules import CustomerRuleJudge, SalesRuleJudge
from ibrl_jax.rewards.types import Scored
from ibrl_jax.settings import ROLES
from ibrl_jax.trainer.lessons import Lessons, cut, packed
from ibrl_jax.trainer.retell import retold, with_other_observation
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

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "configs" / "telesales" / "smoke.py")
TOKENIZER = load_tokenizer("embedded-telesales")
SPEECH: Any = SimpleNamespace(tokenizer=TOKENIZER, chat=ChatML(TOKENIZER))
FAMILIES = ("competent", "rule_v1")


def smoke(*options: str) -> ConfigDict:
    return load(SMOKE, [f"--config.{option}" for option in options])


@pytest.fixture(scope="module")
def domain() -> Domain:
    return build_domain(smoke("telesales.max_agent_turns=8", "telesales.test_profiles=12"))


def refused(*options: str) -> str:
    with pytest.raises(UserError) as caught:
        smoke(*options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------- settings


def test_the_roles_of_a_config_are_those_of_its_domain() -> None:
    assert {"dond": DOND_ROLES, "telesales": TELESALES_ROLES} == ROLES
    for name, roles in ROLES.items():
        config = default_config(name)
        assert (config.domain, set(config.roles)) == (name, set(roles))
        assert build_domain(config).roles == roles
    with pytest.raises(UserError, match="there is no domain 'chess'; there are dond, telesales"):
        default_config("chess")


def test_roles_of_another_domain_are_refused() -> None:
    said = refused("domain=dond")
    assert said.startswith("config.roles has customer, sales, and the roles of dond are agent0, ")
    assert "roles.agent0.kl does not exist" in refused("roles.agent0.kl=1.0")


def test_a_judge_is_an_endpoint_at_temperature_0_and_needs_something_to_judge() -> None:
    assert "config.endpoints has no 'deepseek'" in refused("roles.sales.judge=deepseek")
    url = "endpoints.j.base_url=http://127.0.0.1:9/v1"
    assert "temperature is 1 and must be 0" in refused(url, "roles.sales.judge=j")
    smoke(url, "endpoints.j.temperature=0", "roles.sales.judge=j")
    with pytest.raises(UserError, match="the rules of dond pay its roles"):
        load(str(ROOT / "configs/dond/smoke.py"), ["--config.roles.agent0.judge=j"])
    assert "must sum to 1, not 1.3" in refused("rewards.turn=0.5")


@pytest.mark.parametrize("key", ["max_calls", "max_total_tokens", "max_cost"])
def test_a_budget_of_0_is_refused_and_below_0_is_no_limit(key: str) -> None:
    said = refused("endpoints.j.base_url=http://127.0.0.1:9/v1", f"endpoints.j.{key}=0")
    assert said.startswith(f"config.endpoints.j.{key} is 0, ")
    assert said.endswith("give it more than 0, or -1 for no limit")
    assert smoke(f"endpoints.j.{key}=-1").endpoints.j[key] == -1
    assert "must be at least -1" in refused(f"endpoints.j.{key}=-2")


def test_judges_are_rules_unless_a_role_names_an_endpoint(domain: Domain) -> None:
    ruled = build_hall(smoke(), domain, retries=0, concurrency=1).judges
    assert isinstance(ruled["sales"], SalesRuleJudge)
    assert isinstance(ruled["customer"], CustomerRuleJudge)
    weights = ruled["sales"].weights
    assert (weights.turn, weights.episode, weights.gamma) == (0.2, 0.8, 0.9)  # section 5.1
    options = ("endpoints.j.base_url=http://127.0.0.1:9/v1", "endpoints.j.temperature=0")
    config, asked = smoke(*options, "roles.sales.judge=j"), SimpleNamespace()
    endpoints: Any = {"j": asked}
    judges = build_hall(config, domain, retries=0, concurrency=1, endpoints=endpoints).judges
    assert isinstance(judges["sales"], EndpointJudge)
    assert judges["sales"].endpoint is asked
    assert isinstance(judges["customer"], CustomerRuleJudge)
    nobody_learns = build_hall(config, domain, retries=0, concurrency=1).judges
    assert isinstance(nobody_learns["sales"], SalesRuleJudge)


def test_the_paper_scale_configs_have_the_papers_numbers() -> None:
    for size in ("4b", "9b"):
        config = load(str(ROOT / f"configs/telesales/qwen3_5-{size}.py"))
        sales, customer = config.roles.sales, config.roles.customer
        assert (sales.learning_rate, customer.learning_rate) == (1e-6, 1e-7)
        assert (sales.update_every, customer.update_every) == (1, 2)
        assert {role.entropy for role in config.roles.values()} == {0.1}
        assert {role.kl for role in config.roles.values()} == {0.02}
        assert config.rollout.draws * config.rollout.group == 64
        assert config.rollout.group == 4
        assert (config.matchup.all, config.matchup.only) == (0.7, (0.2, 0.1))
        assert (config.telesales.train_profiles, config.telesales.test_profiles) == (3000, 500)
        assert (config.telesales.max_agent_turns, config.evaluation.seeds) == (15, 3)


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


def test_the_customer_of_the_start_writes_valid_records(domain: Domain) -> None:
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
    end, weighted = "<|im_end|>", 0
    for exercise in exercises:
        text = TOKENIZER.decode(exercise.ids.tolist())
        own = TOKENIZER.decode(exercise.ids[exercise.weight > 0].tolist())
        told = sorted(field.strip() for field in own.removesuffix(end).split(";"))
        assert 2 <= len(told) <= 8
        asked = text.split("user\n")[1].split("?")[0].split(" ")
        for word, part in zip(asked, own.removesuffix(end).split("; "), strict=True):
            assert word in part
            assert not any(map(str.isdigit, word))
        assert all(text.count(field) >= 2 for field in told)
        weighted += exercise.weight.max() == 3.0
    assert weighted > 20
    assert {len(e.ids) for e in exercises} != {len(exercises[0].ids)}


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


# ------------------------------------------------------------------------- the tokenizer


def test_the_small_tokenizer_is_good_at_records_and_loses_nothing(domain: Domain) -> None:
    lengths: dict[Role, list[int]] = {role: [] for role in domain.roles}
    for row in synthetic(domain, FAMILIES, 20, 2):
        for turn in row["turns"]:
            ids = TOKENIZER.encode(turn["said"])
            assert TOKENIZER.decode(ids) == turn["said"]
            lengths[turn["role"]].append(len(ids))
    assert np.mean(lengths["customer"]) < 35
    assert np.mean(lengths["sales"]) < 35
    other = "您好，这台车报价8.98万元。\n<|im_end|> ü"
    assert TOKENIZER.decode(TOKENIZER.encode(other)) == other
    assert TOKENIZER.control("<|im_end|>") not in TOKENIZER.encode(other)


# ------------------------------------------------------------------------- evaluation


@dataclass(frozen=True, kw_only=True)
class FakeCast(Cast):
    """Holds families where a cast holds parameters: of a pair, the one that can hold the seat."""

    held: dict[tuple[Role, str], Any] = field(default_factory=dict)

    def load(self, role: Role, params: str, values: Any) -> None:
        self.held[role, params] = values

    def local(self, role: Role, params: str, ref: PolicyRef, temperature: float) -> Speaker:
        family = next(f for f in self.held[role, params] if f in self.domain.families[role])
        return ScriptedSpeaker(domain=self.domain, family=family)


@pytest.fixture(scope="module")
def evaluated(domain: Domain) -> tuple[dict[str, Any], dict[tuple[str, str], Sequence[Trajectory]]]:
    config = smoke(
        "evaluation.counterparts=rule_v2,rule_v1,polite",
        "evaluation.scenarios=8",
        "evaluation.seeds=2",
    )
    cast = FakeCast(domain=domain, speech=None, engines={}, endpoints={}, max_new=32)  # type: ignore[arg-type]
    kept: dict[tuple[str, str], Sequence[Trajectory]] = {}
    pairs = {"SFT start": ("hedger", "rule_v1"), "sales": ("competent",), "customer": ("rule_v1",)}
    partners = {"SFT start": "SFT start", "sales": "customer", "customer": "sales"}
    contestants = [
        Contestant(
            label=label,
            role=None if label == "SFT start" else label,
            params=pair,  # type: ignore[arg-type]
            version=1,
            partners=(partners[label],),
        )
        for label, pair in pairs.items()
    ]
    for contestant in contestants:
        for role in domain.roles:
            cast.held[role, contestant.label] = contestant.params

    def keep(policy: str, column: str, played: Sequence[Trajectory]) -> None:
        kept[policy, column] = played

    return evaluate(config, cast, contestants, lambda note: None, keep), kept


def test_a_policy_sits_in_its_own_seat_alone(evaluated: Any, domain: Domain) -> None:
    table, _ = evaluated
    assert [c["name"] for c in table["columns"]] == [
        *("all held-out", "rule_v2", "rule_v1", "polite", "in-system"),
    ]
    cells = {row["policy"]: set(row["cells"]) for row in table["rows"]}
    assert cells["SFT start"] == {"all held-out", "rule_v2", "rule_v1", "polite", "in-system"}
    assert cells["sales"] == {"all held-out", "rule_v2", "rule_v1", "in-system"}
    assert cells["customer"] == {"all held-out", "polite", "in-system"}
    for row in table["rows"]:
        for name, cell in row["cells"].items():
            several = 2 if name == "all held-out" and row["policy"] == "SFT start" else 1
            assert cell["planned"] == cell["n"] == 8 * 2 * several


def test_success_at_n_is_over_the_conversations_of_a_profile(evaluated: Any) -> None:
    table, kept = evaluated
    sales = table["rows"][1]["cells"]["rule_v2"]
    wins = Counter(t.scenario.id for t in kept["sales", "rule_v2"] if t.outcome.success)
    assert 0 < sum(wins.values()) < 16
    for n in (1, 2):
        assert sales[f"success@{n}"] == sum(count >= n for count in wins.values()) / 8
    assert sales["success"] == pytest.approx(sum(wins.values()) / 16)
    assert sales["hallucination"] == 0.0
    assert sum(sales["end_reasons"].values()) == 16


def test_every_policy_is_compared_where_the_start_sat_too(evaluated: Any) -> None:
    table, _ = evaluated
    compared = {(c["policy"], c["column"], c["measure"]) for c in table["comparisons"]}
    names = ("success", "delta_willingness", "delta_patience", "first_try_success")
    assert {(p, c) for p, c, _ in compared} == {
        *(("sales", c) for c in ("all held-out", "rule_v2", "rule_v1", "in-system")),
        *(("customer", c) for c in ("all held-out", "polite", "in-system")),
    }
    assert {m for *_, m in compared} == set(names)
    assert all("odds_ratio" in c for c in table["comparisons"] if c["measure"] == "success")


def test_the_tables_carry_their_own_names_and_say_that_it_is_a_stand_in(evaluated: Any) -> None:
    table, _ = evaluated
    table = json.loads(json.dumps(table))
    assert table["remark"] == STAND_IN
    text = markdown_table(table)
    assert text.rstrip().endswith(f"{STAND_IN}.")
    assert "Cells: success % / success@1 / success@2 / change of willingness" in text
    assert "agreement" not in text
    head = csv_table(table).splitlines()[0].split(",")
    assert {"success@2", "delta_patience_low", "first_try_success", "hallucination"} <= {*head}


# ------------------------------------------------------------------------- told anew


def test_a_call_is_told_anew_with_another_observation(domain: Domain) -> None:
    cast = FakeCast(domain=domain, speech=SPEECH, engines={}, endpoints={}, max_new=32)
    hall = build_hall(smoke(), domain, retries=0, concurrency=4)
    scenarios = domain.scenarios("train")[:6]
    speakers = {
        role: ScriptedSpeaker(domain=domain, family=family)
        for role, family in zip(domain.roles, FAMILIES, strict=True)
    }
    matches = [
        Match(
            stage=("test",),
            draw=str(k),
            rollout=0,
            scenario=scenario,
            first="sales",
            matchup=frozenset(),
            speakers=speakers,
        )
        for k, scenario in enumerate(scenarios)
    ]
    played = play(hall, matches)
    for trajectory in played:
        assert all(isinstance(reward, Scored) for reward in trajectory.rewards.values())
        same = retold(cast, hall, trajectory, trajectory.scenario)
        assert (same.outcome, same.rewards) == (trajectory.outcome, trajectory.rewards)
        for role in domain.roles:
            other = with_other_observation(cast, trajectory.scenario, role)
            again = retold(cast, hall, trajectory, other)
            assert again.turns == trajectory.turns
    moved = [
        replace(t, rewards={}).outcome != retold(cast, hall, t, scenario).outcome
        for t, scenario in zip(played, reversed(scenarios), strict=True)
    ]
    assert any(moved)


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
