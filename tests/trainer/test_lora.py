"""Adapters over one base: what is shared, what trains, what is kept, what a folder says of it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.errors import UserError
from ibrl_jax.models.params import abstract_adapters, count_params
from ibrl_jax.models.score import score
from ibrl_jax.proofs.resume_check import differences
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.checkpoint import Checkpoints
from ibrl_jax.trainer.export import export
from ibrl_jax.trainer.placing import places
from ibrl_jax.trainer.policies import about_policy
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import train
from ibrl_jax.trainer.start import start_key, start_policy
from ibrl_jax.trainer.weights import (
    Weights,
    base_of,
    fingerprint,
    first_weights,
    load_weights,
    read_base,
)
from tests.trainer.conftest import House

ROLES = ("agent0", "agent1")


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def shapes(tree: Any) -> list[tuple[int, ...]]:
    return sorted(x.shape for x in jax.tree.leaves(tree))


def algorithm_of(house: House, **overrides: object) -> Algorithm:
    algorithm = Algorithm(house.config(**overrides), house.cast, house.start, {})
    algorithm.learner = house.learner
    return algorithm


@pytest.fixture(scope="module")
def played(lora_house: House) -> Algorithm:
    """Three iterations behind, with snapshots of both roles in use."""
    algorithm = algorithm_of(lora_house)
    for _ in range(3):
        algorithm.iterate()
    return algorithm


@pytest.fixture(scope="module")
def lora_run(lora_house: House, quiet: Console) -> RunFolder:
    with lora_house.at_home():
        return train(lora_house.config(name="lora", iterations=3), quiet)


@pytest.fixture(scope="module")
def whole_run(house: House, quiet: Console) -> RunFolder:
    """One iteration in which all parameters train."""
    with house.at_home():
        return train(house.config(name="whole", iterations=1), quiet)


# ------------------------------------------------------------------------- one base


def test_one_base_lies_under_both_roles_references_and_engines(
    played: Algorithm, lora_house: House
) -> None:
    base = jax.tree.leaves(lora_house.start.frozen)
    held = [played._start[role].frozen for role in ROLES]
    held += [played.cast.engines[role].programs.base for role in ROLES]
    for other in held:
        assert all(a is b for a, b in zip(base, jax.tree.leaves(other), strict=True))


def test_a_run_holds_each_array_of_the_base_once(lora_house: House) -> None:
    """No iteration, update, snapshot or engine makes another of its size."""
    base = jax.tree.leaves(lora_house.start.frozen)
    large = sorted(base, key=lambda x: x.nbytes)[-5:]

    def alive() -> set[int]:
        gc.collect()
        return {
            x.unsafe_buffer_pointer()
            for x in jax.live_arrays()
            if any(x.shape == leaf.shape for leaf in large)
        }

    before = alive()
    algorithm = algorithm_of(lora_house)
    for _ in range(2):
        algorithm.iterate()
    assert all(len(pool) == 2 for pool in algorithm.pools.values())
    assert {x.unsafe_buffer_pointer() for x in large} <= before
    assert alive() == before


def test_a_base_is_no_constant_of_a_program(lora_house: House, played: Algorithm) -> None:
    """It is an argument: a program's own constants are far smaller."""
    owner = ROLES[0]
    batch = played.places[owner].abstract_batch(8, 208, 8, 1)
    args = (played.states[owner], lora_house.start.frozen, batch, played.hyper[owner])
    traced = jax.make_jaxpr(played.learner._update)(*args)
    assert sum(np.size(c) for c in traced.consts) < 1000


def test_fresh_adapters_say_what_the_base_says(lora_house: House, house: House) -> None:
    """To the bit: the same tokens, with the same log-probabilities, as all parameters would."""
    whole = Weights(trained=lora_house.start.frozen, frozen=None)
    plain = Algorithm(house.config(policy__start="random"), house.cast, whole, {})
    one, other = plain.rollouts(), algorithm_of(lora_house).rollouts()
    for a, b in zip(one, other, strict=True):
        for role in ROLES:
            np.testing.assert_array_equal(a.views[role].ids, b.views[role].ids)
            np.testing.assert_array_equal(
                a.views[role].behaviour_logp, b.views[role].behaviour_logp
            )


# ------------------------------------------------------------------------- what trains


def test_adapters_alone_train_are_kept_and_are_met_again(
    played: Algorithm, lora_house: House, tmp_path: Path
) -> None:
    model = played.cast.speech.model
    assert model.lora is not None
    wanted = shapes(abstract_adapters(model.config, model.lora))
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1)
    checkpoints.save(played)
    fresh = algorithm_of(lora_house)
    assert checkpoints.restore(fresh)
    checkpoints.close()
    for role in ROLES:
        state = fresh.states[role]
        assert shapes(state.params) == wanted
        assert bits(state.params) != bits(lora_house.start.trained)
        moments = [x.shape for x in jax.tree.leaves(state.opt_state) if x.ndim]
        assert sorted(moments) == sorted(2 * wanted)
        for version in fresh.pools[role].versions:
            assert shapes(fresh.pools[role].params(version)) == wanted
    assert bits(fresh.states) == bits(played.states)


def test_the_sampler_and_the_trainer_see_the_same_adapters(played: Algorithm) -> None:
    done = played.iterate()
    for metrics in done.updates.values():
        assert metrics["logp_gap_max"] <= 1e-5
        assert metrics["grad_norm"] > 0


def test_the_start_trains_adapters_on_the_teachers(
    smoke_config: Callable[..., ConfigDict],
) -> None:
    config = smoke_config(lora__rank=2)
    domain, speech = build_domain(config), build_speech(config)
    place = places(config, speech, domain.roles)["agent0"]
    fresh = first_weights(config, speech, place)
    start, folder = start_policy(config, domain, speech, lambda note: None)
    assert folder is not None
    with safe_open(folder / "adapters.safetensors", "numpy") as file:
        assert all(name[-2:] in ("_a", "_b") for name in file.keys())  # noqa: SIM118
    assert bits(start.trained) != bits(fresh.trained)
    assert bits(start.frozen) == bits(fresh.frozen)
    assert about_policy(folder)["lora"]["base"] == {"seed": 0}


def test_a_lora_run_resumes_bitwise(lora_house: House, lora_run: RunFolder, quiet: Console) -> None:
    with lora_house.at_home():
        train(lora_house.config(name="lora-resumed", iterations=1), quiet)
        again = train(lora_house.config(name="lora-resumed", iterations=3), quiet)
    assert differences(lora_run.path, again.path) == []
    kept = sum(x.stat().st_size for x in (again.path / "policies").rglob("*.safetensors"))
    assert kept < 3 * 4 * count_params(lora_house.start.frozen) / 2


# ------------------------------------------------------------------------- folders


def refused(config: ConfigDict, folder: Path, says: str) -> None:
    speech = build_speech(config)
    place = places(config, speech, ROLES)["agent0"]
    with pytest.raises(UserError, match=says) as caught:
        load_weights(config, speech, place, folder)
    assert "\n" not in str(caught.value)


def test_adapters_are_refused_where_they_do_not_belong(
    lora_house: House, lora_run: RunFolder, whole_run: RunFolder
) -> None:
    policy, config = lora_run.policy("agent0"), lora_house.config
    refused(config(lora__rank=3), policy, "adapters with rank 2, and config.lora.rank is 3")
    refused(config(lora__alpha=8), policy, "with alpha 32.0, and config.lora.alpha is 8.0")
    refused(config(lora__targets="q"), policy, r"config.lora.targets is \['q'\]")
    refused(config(lora__rank=0), policy, "adapters of rank 2, and config.lora.rank is 0")
    refused(config(sft__seed=1), policy, r"another base .random, seed 0. than the config's")
    whole = whole_run.policy("agent0")
    refused(config(), whole, "holds all parameters, and config.lora.rank is 2; set")


def test_adapters_grow_on_all_parameters_of_another_policy(
    lora_house: House, whole_run: RunFolder, tmp_path: Path
) -> None:
    whole = whole_run.policy("start")
    config = lora_house.config(policy__start=whole)
    domain, speech = build_domain(config), build_speech(config)
    start, _ = start_policy(config, domain, speech, lambda note: None)
    base = base_of(config)
    assert base == {"policy": str(whole), "fingerprint": fingerprint(whole)}
    assert bits(start.frozen) == bits(load_file(whole / "params.safetensors"))


def test_a_policy_of_adapters_is_a_start_with_the_base_that_it_names(
    lora_house: House, lora_run: RunFolder
) -> None:
    config = lora_house.config(policy__start=lora_run.policy("agent1"), sft__seed=5)
    domain, speech = build_domain(config), build_speech(config)
    start, _ = start_policy(config, domain, speech, lambda note: None)
    assert bits(start.frozen) == bits(lora_house.start.frozen)
    assert base_of(config) == {"seed": 0}


# ------------------------------------------------------------------------- Hugging Face folders


@pytest.fixture(scope="module")
def exported(lora_house: House, lora_run: RunFolder, tmp_path_factory: Any) -> Path:
    to = tmp_path_factory.mktemp("exported") / "agent0"
    sentence = export(lora_run, lora_house.config(name="lora", iterations=3), "agent0", to)
    assert "tokenizer is tokenizer.model, which sentencepiece reads" in sentence
    return to


def from_folder(house: House, folder: Path, **overrides: object) -> ConfigDict:
    settings = {"policy__folder": folder, "policy__start": "pretrained", "policy__chat": "chatml"}
    return house.config(**settings | overrides)


def test_an_exported_policy_computes_what_base_and_adapters_do(
    lora_house: House, lora_run: RunFolder, exported: Path
) -> None:
    config = lora_house.config()
    speech = build_speech(config)
    mine = load_weights(
        config, speech, places(config, speech, ROLES)["agent0"], lora_run.policy("agent0")
    )
    merged_config = from_folder(lora_house, exported, lora__rank=0)
    merged_speech = build_speech(merged_config)
    assert merged_speech.tokenizer.files == speech.tokenizer.files
    place = places(merged_config, merged_speech, ROLES)["agent0"]
    merged = first_weights(merged_config, merged_speech, place)
    assert merged.frozen is None
    ids = jnp.arange(24).reshape(2, 12) * 7 % 600
    positions = jnp.broadcast_to(jnp.arange(12), ids.shape)
    logps = [
        score(s.model, w.trained, w.frozen, ids, positions, None, 1.0, 8)[0]
        for s, w in ((speech, mine), (merged_speech, merged))
    ]
    np.testing.assert_allclose(logps[0], logps[1], atol=1e-5)
    without = score(
        speech.model, lora_house.start.trained, mine.frozen, ids, positions, None, 1.0, 8
    )
    assert np.abs(np.asarray(without[0] - logps[0])).max() > 1e-5


def test_a_folder_is_the_base_of_adapters_and_shapes_the_key_of_a_start(
    lora_house: House, exported: Path, tmp_path: Path
) -> None:
    config = from_folder(lora_house, exported)
    domain, speech = build_domain(config), build_speech(config)
    start, folder = start_policy(config, domain, speech, lambda note: None)
    assert folder is None
    assert base_of(config) == {"folder": str(exported), "fingerprint": fingerprint(exported)}
    other = tmp_path / "other"
    moved = tmp_path / "moved"
    for copy in (other, moved):
        copy.mkdir()
        for file in exported.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    weights[len(weights) // 2] ^= 1
    (other / "model.safetensors").write_bytes(weights)

    def key(folder: Path) -> str:
        return start_key(from_folder(lora_house, folder), domain, speech, 0)

    assert key(moved) == key(exported) != key(other)
    place = places(config, speech, ROLES)["agent0"]
    assert bits(read_base(from_folder(lora_house, moved), speech, place)) == bits(start.frozen)


def test_what_cannot_be_exported_is_one_sentence(
    lora_house: House, lora_run: RunFolder, exported: Path, tmp_path: Path
) -> None:
    config = lora_house.config(name="lora", iterations=3)
    for role, to, why in (
        (
            "agent7",
            tmp_path / "x",
            "trains no role 'agent7'; its policies are agent0, agent1, start",
        ),
        ("agent0", exported, "is there already"),
    ):
        with pytest.raises(UserError, match=why):
            export(lora_run, config, role, to)
    assert not (tmp_path / "x").exists()
    unfinished = RunFolder(tmp_path / "run")
    with pytest.raises(UserError, match="has no policies yet"):
        export(unfinished, config, "agent0", tmp_path / "y")


def test_policy_json_says_what_the_adapters_are(lora_run: RunFolder) -> None:
    said = json.loads((lora_run.policy("agent0") / "policy.json").read_text())
    assert said["lora"]["rank"] == 2
    assert said["lora"]["base"] == {"seed": 0}


def test_a_fingerprint_sees_a_change_in_any_tensor(tmp_path: Path) -> None:
    """Whatever the file's size: every tensor is looked at."""
    rng = np.random.default_rng(0)
    tensors = {f"layer.{i}": rng.normal(size=(96, 256)).astype(np.float32) for i in range(12)}
    found = set()
    for index, changed in enumerate((None, *tensors)):
        folder = tmp_path / str(index)
        folder.mkdir()
        values = {n: x + 1 if n == changed else x for n, x in tensors.items()}
        save_file(values, folder / "model.safetensors")
        found.add(fingerprint(folder))
    assert len(found) == 1 + len(tensors)


def test_a_fingerprint_of_a_damaged_file_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    assert fingerprint(tmp_path)


@pytest.mark.parametrize("there, says", [(False, "is not there"), (True, "has no config.json")])
def test_a_folder_of_a_model_that_is_none_is_named(
    smoke_config: Callable[..., ConfigDict], tmp_path: Path, there: bool, says: str
) -> None:
    folder = tmp_path / "model"
    if there:
        folder.mkdir()
    config = smoke_config()
    with config.unlocked():
        config.policy.folder = str(folder)
    with pytest.raises(UserError, match=f"config.policy.folder names {folder}, which {says}"):
        build_speech(config)
