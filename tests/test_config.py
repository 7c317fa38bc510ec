"""Settings: all are documented, all are checked, and every mistake is one clear sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import (
    check,
    default_config,
    describe,
    endpoint,
    from_dict,
    load,
    to_dict,
)
from ibrl_jax.errors import UserError
from ibrl_jax.fields import Field
from ibrl_jax.models.presets import PRESETS, preset
from ibrl_jax.settings import ENDPOINT, RELEASED_PRESETS, ROLE, SCHEMA, SCRATCH_PRESETS

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(p for p in (ROOT / "configs").rglob("*.py") if p.name != "__init__.py")
MINI = str(ROOT / "configs" / "dond" / "mini.py")


def named(file: Path) -> str:
    """The name of a file's runs: those of a second domain are apart from the first one's."""
    return file.stem if file.parent.name == "dond" else f"{file.parent.name}-{file.stem}"


def refused(*options: str, path: str = MINI) -> str:
    """The sentence with which options or a file are refused."""
    with pytest.raises(UserError) as caught:
        load(path, [f"--config.{option}" for option in options])
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence
    return sentence


def written(folder: Path, *body: str) -> str:
    """A config file whose `get_config` starts from the defaults and then does this."""
    file = folder / "mine.py"
    lines = ["from ibrl_jax.config import default_config, endpoint", "def get_config():"]
    lines += ["    config = default_config()", *(f"    {line}" for line in body)]
    file.write_text("\n".join([*lines, "    return config", ""]))
    return str(file)


# ------------------------------------------------------------------------- what there is


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_every_config_loads_and_passes_its_check(file: Path) -> None:
    config = load(str(file))
    assert config.is_locked
    assert config.name == named(file)
    assert f"configs/{file.parent.name}/{file.name}" in file.read_text() or config.name == "audit"


@pytest.mark.parametrize(
    ("domain", "second", "pools"),
    [
        ("dond", "agent1", ("frozen", "scripted", "pool")),
        ("telesales", "customer", ("frozen", "scripted")),
    ],
)
def test_the_ablations_change_one_term_each(
    domain: str, second: str, pools: tuple[str, ...]
) -> None:
    """Against mini, and beside the name: what each experiment is about, nothing else."""
    files = [file for file in FILES if file.parent.name == domain]
    mini = dict(flat(load(str(ROOT / "configs" / domain / "mini.py"))))
    changed = {}
    for file in files:
        other = dict(flat(load(str(file))))
        changed[file.stem] = {k for k in other if other[k] != mini.get(k)} - {"name"}
    assert changed["mini"] == set()
    assert changed["shared-reward"] == {"isolation.reward"}
    assert changed["joint-norm"] == {"isolation.advantage"}
    assert changed["mask-all"] == {"isolation.mask"}
    # one policy has one turn to update
    assert {"isolation.update"} <= changed["tied"] <= {"isolation.update", "stabilise.stagger"}
    assert changed["bilateral-plain"] == {"stabilise.pool", "stabilise.stagger"}
    for name in pools:
        seat = {f"roles.{second}.train", f"roles.{second}.counterpart"}
        pace = {"roles.agent0.update_every"}  # who learns alone does not take turns
        assert seat <= changed[f"unilateral-{name}"] <= seat | pace


def test_the_presets_are_those_of_the_networks() -> None:
    assert {*SCRATCH_PRESETS, *RELEASED_PRESETS} == set(PRESETS)
    for name in PRESETS:
        if name in RELEASED_PRESETS:
            assert preset(name).vocab_size > 40_000
        else:
            assert preset(name, vocab_size=7).vocab_size == 7


def flat(config: ConfigDict, prefix: str = ""):
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_every_setting_says_what_it_means_and_its_default_is_allowed() -> None:
    found = dict(describe())
    assert len(found) > 90
    assert set(dict(flat(default_config()))) == set(found)
    for key, field in found.items():
        assert len(field.doc) >= 3, key
        assert field.problem(field.default) is None, key


def test_a_config_survives_json() -> None:
    for file in FILES:
        options = ["--config.endpoints.friend.base_url=http://127.0.0.1:1/v1"]
        config = load(str(file), options)
        again = from_dict(json.loads(json.dumps(to_dict(config))))
        assert to_dict(again) == to_dict(config)
        assert again.is_locked


# ------------------------------------------------------------------------- changing values


def test_the_command_line_changes_values_of_every_kind() -> None:
    options = {
        "seed=3": 3,
        "name=another": "another",
        "name=7": "7",
        "name=none": "none",
        "roles.agent0.learning_rate=1": 1.0,
        "stabilise.pool=false": False,
        "sft.deals_only=True": True,
        "engine.rows=8": (8,),
        "engine.rows=(8,16)": (8, 16),
        "engine.rows=8,16": (8, 16),
        "sft.families=conceder": ("conceder",),
        "sft.families=conceder, trader": ("conceder", "trader"),
        "evaluation.counterparts=[]": (),
        "dond.split_fractions=[0.5,0.25,0.25]": (0.5, 0.25, 0.25),
    }
    for option, value in options.items():
        node = load(MINI, [f"--config.{option}"])
        for part in option.partition("=")[0].split("."):
            node = node[part]
        assert node == value
        assert type(node) is type(value)


def test_the_last_of_two_options_counts() -> None:
    assert load(MINI, ["--config.seed=1", "--config.seed=2"]).seed == 2


def test_an_endpoint_is_named_on_the_command_line() -> None:
    options = ["base_url=http://127.0.0.1:8000/v1", "model=small", "price_in=2", "concurrency=4"]
    config = load(
        MINI,
        [
            *(f"--config.endpoints.friend.{option}" for option in options),
            "--config.roles.agent1.train=False",
            "--config.roles.agent1.counterpart=api:friend",
        ],
    )
    friend = config.endpoints.friend
    assert (friend.base_url, friend.model) == ("http://127.0.0.1:8000/v1", "small")
    assert (friend.price_in, friend.concurrency, friend.retries) == (2.0, 4, 4)
    assert set(friend) == set(endpoint())


def test_an_endpoint_is_named_in_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, "config.endpoints.friend = endpoint(base_url='http://a.b/v1')")
    assert load(path).endpoints.friend.base_url == "http://a.b/v1"
    path = written(tmp_path, "config.endpoints.friend = endpoint(base_ulr='http://a.b/v1')")
    assert "no setting 'base_ulr'" in refused(path=path)
    path = written(
        tmp_path, "config.endpoints.friend = endpoint()", "config.endpoints.friend.x = 1"
    )
    assert "config.endpoints.friend.x does not exist" in refused(path=path)


def test_a_loaded_config_takes_no_unknown_key() -> None:
    with pytest.raises(AttributeError, match="locked"):
        load(MINI).rollout.gruop = 3


# ------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "option, hint",
    [
        ("rollout.gruop=4", "config.rollout.gruop does not exist; did you mean 'group'?"),
        ("rollot.group=4", "config.rollot.group does not exist; did you mean 'rollout'?"),
        ("roles.agent3.train=1", "did you mean"),
        ("endpoints.x.base_ulr=a", "did you mean 'base_url'?"),
        ("isolation.xyz=1", "there are reward, advantage, mask, update"),
        ("rollout=3", "a group of settings (draws, group"),
        ("seed.x=3", "config.seed is one value"),
    ],
)
def test_a_typo_is_told_what_was_meant(option: str, hint: str) -> None:
    assert hint in refused(option)


def test_a_typo_in_a_file_is_told_what_was_meant(tmp_path: Path) -> None:
    sentence = refused(path=written(tmp_path, "config.rollout.gruop = 3"))
    assert sentence.endswith("mine.py fails: there is no setting 'gruop'; did you mean 'group'?")


@pytest.mark.parametrize(
    "option, right",
    [
        ("rollout.group=1", "at least 2"),
        ("iterations=0", "at least 1"),
        ("iterations=1000000000000", "at most 1,000,000, not 1000000000000"),
        ("rollout.draws=1000000000", "at most 100,000, not 1000000000"),
        ("engine.rows=(8,100000000)", "at most 1,000,000"),
        ("matchup.all=1.5", "at most 1"),
        ("seed=1.5", "a whole number"),
        ("seed=many", "a whole number"),
        ("seed=true", "a whole number"),
        ("seed=99999999999", "at most 1,000,000,000"),
        ("roles.agent0.learning_rate=fast", "a number"),
        ("roles.agent0.kl=1e999", "finite"),
        ("stabilise.pool=0", "true or false"),
        ("stabilise.pool=no", "true or false"),
        ("isolation.reward=both", "one of own, shared"),
        ("policy.dtype=float16", "one of float32, bfloat16"),
        ("engine.rows=many", "a list of whole numbers"),
        ("engine.rows=(1.5,)", "a list of whole numbers"),
        ("engine.rows=(0,8)", "at least 1"),
        ("engine.rows={[]: 1}", "a list of whole numbers"),
        ("optimiser.lengths=(True,)", "a list of whole numbers"),
        ("matchup.only=('a','b')", "a list of numbers"),
        ("dond.split_fractions=thirds", "a list of numbers"),
        ("sft.families=3", "a list of names"),
        ("evaluation.split=train", "one of val, test"),
        ("policy.preset=qwen3_7b", "one of qwen3_tiny, qwen3_micro"),
        ("sft.seed=2000000000", "at most 1,000,000,000"),
        ("optimiser.b1=1.0", "at most 0.99999"),
        ("optimiser.b2=1", "at most 0.99999"),
        ("loss.constant=1" + 400 * "0", "finite"),
        ("dond.split_fractions=(1" + 400 * "0" + ",0,0)", "finite"),
    ],
)
def test_a_value_out_of_kind_or_range_is_told_what_would_be_right(option: str, right: str) -> None:
    sentence = refused(option)
    assert sentence.startswith(f"config.{option.partition('=')[0]} must be ")
    assert right in sentence


def test_every_whole_number_has_a_largest_value_but_what_may_be_spent() -> None:
    """A larger one can only be a slip of the fingers, and would be told by a full disk."""

    def open_ended(settings: Any) -> Iterator[str]:
        for name, field in settings.items():
            if not isinstance(field, Field):
                yield from open_ended(field)
            elif field.high is None and not field.choices:
                values = field.default if isinstance(field.default, tuple) else (field.default,)
                listed = field.default == () and field.low is not None
                if listed or any(type(value) is int for value in values):
                    yield name

    found = {*open_ended(SCHEMA), *open_ended(ROLE), *open_ended(ENDPOINT)}
    assert found == {"max_calls", "max_total_tokens"}


@pytest.mark.parametrize(
    "options, why",
    [
        (["matchup.all=0.5"], "must sum to 1, not 0.8 (0.5 + 0.2 + 0.1)"),
        (["matchup.only=(0.3,)"], "must have 2 numbers, one a role (agent0, agent1), not 1"),
        (["dond.split_fractions=(0.5,0.5)"], "three shares that sum to 1"),
        (["dond.split_fractions=(0.5,0.3,0.3)"], "three shares that sum to 1"),
        (["roles.agent1.train=False"], "config.roles.agent1.counterpart must name"),
        (["roles.agent0.update_offset=9"], "must be below its update_every"),
        (
            [
                f"roles.agent{i}.{x}"
                for i in (0, 1)
                for x in ("train=False", "counterpart=frozen:start")
            ],
            "at least one must learn",
        ),
        (
            [
                "isolation.update=tied",
                "roles.agent1.train=False",
                "roles.agent1.counterpart=frozen:start",
            ],
            "needs every role to train",
        ),
        (["sft.families=()"], "must name a scripted teacher"),
        (["policy.start=pretrained"], "config.policy.folder must name a Hugging Face folder"),
        (["policy.folder=a\0"], "config.policy.folder must be a path without a NUL byte"),
        (["lora.rank=4", "lora.targets=()"], "config.lora.targets must name a kernel"),
        (["lora.rank=4", "lora.alpha=0"], "config.lora.alpha must be above 0"),
        (["mesh.fsdp=0"], "config.mesh has an axis of 0 devices"),
        (
            ["placement=split", "isolation.update=tied", "stabilise.stagger=False"],
            "choose config.placement=shared",
        ),
        (["name="], "the name of a folder"),
        (["name=../elsewhere"], "the name of a folder"),
        (["name=a\\b"], "config.name must be a path without a backslash"),
        (["run.root=runs\0"], "config.run.root must be a path without a NUL byte"),
        (["name=" + 101 * "é"], "config.name must have names of at most 200 bytes, not the 202"),
        (["run.root=a/" + 201 * "b"], "config.run.root must have names of at most 200 bytes"),
        (["roles.agent1.counterpart=conceder"], "frozen:... or scripted:... or api:..."),
        (["roles.agent1.counterpart=scripted:"], "which is no counterpart"),
        (["roles.agent1.counterpart=api:friend"], "config.endpoints has no 'friend'"),
        (["evaluation.counterparts=fair,api:friend"], "config.endpoints has no 'friend'"),
        (["evaluation.counterparts=person:me"], "frozen:... or scripted:... or api:..."),
        (["evaluation.counterparts=two=fair+"], "names '', which is no counterpart"),
        (["evaluation.policies=api:friend"], "config.endpoints has no 'friend'"),
        (["evaluation.policies=both=fair+mirror"], "which is 2 names; each entry is label=name"),
    ],
)
def test_values_that_contradict_each_other_are_refused(options: list[str], why: str) -> None:
    assert why in refused(*options)


def test_what_is_no_option_is_refused() -> None:
    for option in ("--seed=1", "config.seed=1", "--config.seed"):
        with pytest.raises(UserError, match="is not an option; a setting is changed by"):
            load(MINI, [option])


def test_a_file_that_is_no_config_is_one_sentence(tmp_path: Path) -> None:
    assert "there is no config file" in refused(path=str(tmp_path / "none.py"))
    assert "there is no config file" in refused(path=str(tmp_path))
    file = tmp_path / "bad.py"
    for text, why in {
        "x = 1": "get_config",
        "def get_config(:": "invalid syntax",
        "import no_such_module": "no_such_module",
        "def get_config():\n    return None": "gives None",
        "def get_config():\n    raise ValueError": "ValueError",
    }.items():
        file.write_text(text + "\n")
        assert why in refused(path=str(file))
    file = file.rename(tmp_path / "bad.txt")
    assert "not a Python file" in refused(path=str(file))


def test_a_value_of_another_kind_in_a_file_is_one_sentence(tmp_path: Path) -> None:
    for line, why in {
        "config.rollout.group = 'four'": "group",
        "config.roles = 3": "roles",
        "config.matchup.only = ('a', 'b')": "a list of numbers",
        "config.rollout.group = 1": "at least 2",
    }.items():
        assert why in refused(path=written(tmp_path, line))


def test_a_value_where_a_group_must_stand_is_one_sentence(tmp_path: Path) -> None:
    for line, key in {
        "config.endpoints = None": "endpoints",
        "config.rollout = None": "rollout",
        "config.endpoints.friend = 'http://a.b/v1'": "endpoints.friend",
    }.items():
        path = written(tmp_path, line)
        for options in ([], ["endpoints.friend.model=small"]):
            sentence = refused(*options, path=path)
            assert f"config.{key} must be a group of settings, not" in sentence
    with pytest.raises(UserError, match="config.rollout must be a group of settings, not 3"):
        check(ConfigDict({**to_dict(load(MINI)), "rollout": 3}))


def test_a_config_without_a_key_is_told_where_to_start() -> None:
    values = to_dict(load(MINI))
    del values["loss"]["epochs"]
    with pytest.raises(UserError, match="config.loss.epochs is missing"):
        from_dict(values)
    with pytest.raises(UserError, match="config.extra does not exist"):
        check(ConfigDict({**to_dict(load(MINI)), "extra": 1}))


@pytest.mark.parametrize("values", [{"a.b": 1}, {"run": {"a.b": 1}}])
def test_what_is_no_config_is_one_sentence(values: Any) -> None:
    with pytest.raises(UserError, match="config") as caught:
        from_dict(values)
    assert "\n" not in str(caught.value)
