"""A policy's folder: whole or not at all, and never taken for a policy of something else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import load_file, save_file

from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.errors import UserError
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.trainer import policies, start, written
from ibrl_jax.trainer.policies import about_policy, load_policy, save_policy
from ibrl_jax.trainer.start import start_key, start_policy
from ibrl_jax.trainer.weights import Weights

PARAMS = {"embed": np.ones((3, 2), np.float32), "layers": {"norm": np.zeros(2, np.float32)}}


@pytest.fixture(scope="module")
def speech(smoke_config: Callable[..., ConfigDict]) -> Speech:
    return build_speech(smoke_config())


@pytest.fixture
def folder(tmp_path: Path, speech: Speech) -> Path:
    folder = tmp_path / "policies" / "agent0"
    save_policy(folder, PARAMS, speech, {"source": "first"})
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_policy_comes_back_bit_for_bit(folder: Path, speech: Speech) -> None:
    found = load_policy(folder, PARAMS, speech)
    np.testing.assert_array_equal(found["embed"], PARAMS["embed"])
    np.testing.assert_array_equal(found["layers"]["norm"], PARAMS["layers"]["norm"])
    assert about_policy(folder)["source"] == "first"
    assert names(folder.parent) == ["agent0"]


def test_a_policy_that_is_written_again_replaces_the_old_one(folder: Path, speech: Speech) -> None:
    save_policy(folder, PARAMS, speech, {"source": "second"})
    assert about_policy(folder)["source"] == "second"
    assert names(folder.parent) == ["agent0"]


def test_one_that_is_kept_stays(folder: Path, speech: Speech) -> None:
    save_policy(folder, PARAMS, speech, {"source": "second"}, keep=True)
    assert about_policy(folder)["source"] == "first"
    (folder / "policy.json").unlink()  # what is damaged is not kept
    save_policy(folder, PARAMS, speech, {"source": "second"}, keep=True)
    assert about_policy(folder)["source"] == "second"
    assert names(folder.parent) == ["agent0"]


def test_a_write_that_fails_leaves_the_old_policy(
    folder: Path, speech: Speech, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policies, "save_file", fails)
    with pytest.raises(OSError, match="No space left"):
        save_policy(folder, PARAMS, speech, {"source": "second"})
    assert about_policy(folder)["source"] == "first"
    assert names(folder.parent) == ["agent0"]


def test_what_a_kill_left_beside_a_policy_goes_with_the_next_write(
    folder: Path, speech: Speech
) -> None:
    """Another policy's leftovers are not its own to clear."""
    for name in (".agent0.x1", ".agent0.x2", ".agent01.x"):
        (folder.parent / name / "new").mkdir(parents=True)
    save_policy(folder, PARAMS, speech, {"source": "second"})
    assert names(folder.parent) == [".agent01.x", "agent0"]


@pytest.mark.parametrize("locks", [True, False])
def test_many_who_write_one_policy_at_once_leave_one(
    tmp_path: Path, speech: Speech, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any) -> None:
        raise OSError(38, "Function not implemented")

    if not locks:
        monkeypatch.setattr(policies, "fcntl", SimpleNamespace(flock=none, LOCK_EX=0))
    folder = tmp_path / "starts" / "key"

    def save(number: int) -> None:
        save_policy(folder, PARAMS, speech, {"source": number}, keep=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(12)))
    assert names(folder.parent) == ["key"]
    load_policy(folder, PARAMS, speech)


def test_what_others_put_beside_a_policy_stays_when_it_is_written_again(
    folder: Path, speech: Speech
) -> None:
    (folder / "exported").mkdir()
    (folder / "exported" / "model.safetensors").write_text("theirs")
    (folder / "adapters.safetensors").write_text("of an earlier config")
    save_policy(folder, PARAMS, speech, {"source": "second"})
    assert about_policy(folder)["source"] == "second"
    assert names(folder) == ["exported", "params.safetensors", "policy.json", "tokenizer.model"]
    written.forget(folder)
    assert names(folder) == ["exported"]
    shutil.rmtree(folder / "exported")
    save_policy(folder, PARAMS, speech, {"source": "third"})
    written.forget(folder)
    assert not folder.exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_what_others_put_there_outlives_a_kill(
    folder: Path, speech: Speech, *, replaced: bool
) -> None:
    """Between the two renames of a save, and after both."""
    (folder / "notes.md").write_text("theirs")
    left = folder.parent / f".{folder.name}.killed"
    left.mkdir()
    folder.rename(left / "old")
    if replaced:
        save_policy(folder, PARAMS, speech, {"source": "second"})
    save_policy(folder, PARAMS, speech, {"source": "third"})
    assert about_policy(folder)["source"] == "third"
    assert (folder / "notes.md").read_text() == "theirs"
    assert not list(folder.parent.glob(".*.*"))


# ------------------------------------------------------------------------- what is refused


def test_one_bit_that_turned_is_told(folder: Path, speech: Speech) -> None:
    file = folder / "params.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="is not what was written there, by the hash"):
        load_policy(folder, PARAMS, speech)
    about = json.loads((folder / "policy.json").read_text())
    del about["files"]  # as policies were written before there were hashes
    (folder / "policy.json").write_text(json.dumps(about))
    load_policy(folder, PARAMS, speech)


def edit(folder: Path, **changes: Any) -> None:
    about = json.loads((folder / "policy.json").read_text())
    network = {**about["model"], **changes.pop("model", {})}
    (folder / "policy.json").write_text(json.dumps({**about, **changes, "model": network}))


def refused(folder: Path, speech: Speech, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        load_policy(folder, PARAMS, speech)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["policy.json", "params.safetensors"])
def test_without_its_parts_it_is_no_policy(folder: Path, speech: Speech, name: str) -> None:
    (folder / name).unlink()
    refused(folder, speech, "is not a policy folder")


@pytest.mark.parametrize(
    "field, value",
    [("rope_theta", 5.0), ("norm_eps", 1e-3), ("qk_norm", False), ("tied", None), ("heads", 99)],
)
def test_another_network_is_refused_though_its_tensors_fit(
    folder: Path, speech: Speech, field: str, value: Any
) -> None:
    edit(folder, model={field: value})
    refused(folder, speech, f"another network than config.policy.preset: {field} is {value}, not ")


def test_how_a_network_is_computed_may_differ(folder: Path, speech: Speech) -> None:
    assert speech.model.config.dtype != "bfloat16"
    network = replace(speech.model.config, dtype="bfloat16", remat=True, unroll=1)
    load_policy(folder, PARAMS, replace(speech, model=Decoder(network, None)))


def test_another_chat_format_is_refused(folder: Path, speech: Speech) -> None:
    edit(folder, chat="alpaca")
    refused(folder, speech, "chat format 'alpaca', and the config's is 'chatml'")


def test_a_missing_or_another_tokenizer_is_refused(folder: Path, speech: Speech) -> None:
    (folder / "tokenizer.model").write_bytes(b"another")
    refused(folder, speech, "another tokenizer")
    (folder / "tokenizer.model").unlink()
    refused(folder, speech, "tokenizer.model cannot be read .No such file")


def test_all_files_of_a_tokenizer_are_kept_and_compared(tmp_path: Path, speech: Speech) -> None:
    tokenizer: Any = SimpleNamespace(files={"tokenizer.json": b"{}", "chat_template.jinja": b"x"})
    released, folder = replace(speech, tokenizer=tokenizer), tmp_path / "agent0"
    save_policy(folder, PARAMS, released, {})
    load_policy(folder, PARAMS, released)
    assert (folder / "chat_template.jinja").read_bytes() == b"x"
    refused(folder, speech, "tokenizer.model cannot be read .No such file")
    (folder / "chat_template.jinja").write_bytes(b"y")
    refused(folder, released, "another tokenizer")


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_damaged_policy_json_is_refused(folder: Path, speech: Speech, text: str) -> None:
    (folder / "policy.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(folder, speech, r"policy\.json (cannot be read|holds no JSON object)")
    with pytest.raises(UserError) as caught:
        about_policy(folder)
    assert "when it ends" not in str(caught.value)


def test_tensors_of_another_shape_type_or_name_are_refused(folder: Path, speech: Speech) -> None:
    file = folder / "params.safetensors"
    tensors = load_file(file)
    for change, says in (
        ({"embed": np.ones((3, 3), np.float32)}, r"embed is float32\[3, 3\], not float32\[3, 2\]"),
        ({"embed": np.ones((3, 2), np.float16)}, r"embed is float16\[3, 2\], not float32\[3, 2\]"),
        ({"more": np.ones(1, np.float32)}, r"more is float32\[1\], not wanted"),
    ):
        save_file({**tensors, **change}, file)
        refused(folder, speech, says)
    save_file({"embed": tensors["embed"]}, file)
    refused(folder, speech, "layers/norm is missing")
    file.write_bytes(file.read_bytes()[:-3])
    refused(folder, speech, "cannot be read .*cut short")


# ------------------------------------------------------------------------- the start's key


def test_a_start_is_made_once_for_all_runs_of_its_key(
    smoke_config: Callable[..., ConfigDict],
    speech: Speech,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where another run is faster: then both use that one's."""
    config = smoke_config(run__root=tmp_path)
    domain = build_domain(config)
    made: list[Any] = []

    def supervise(config: Any, domain: Any, speech: Any, first: Weights, *rest: Any) -> Any:
        params = first.trained
        made.append(params)
        if len(made) == 1:  # meanwhile, elsewhere
            start_policy(config, domain, speech, lambda note: None)
        shifted = {**params, "norm": {"scale": params["norm"]["scale"] + len(made)}}
        return shifted, {"source": len(made)}

    monkeypatch.setattr(start, "supervise", supervise)
    found, folder = start_policy(config, domain, speech, lambda note: None)
    again, _ = start_policy(config, domain, speech, lambda note: None)
    assert len(made) == 2
    assert folder is not None
    assert about_policy(folder)["source"] == 2
    for weights in (found, again):
        scale = weights.trained["norm"]["scale"]
        np.testing.assert_array_equal(scale, made[0]["norm"]["scale"] + 2)
    assert names(folder.parent) == [folder.name]


def test_whatever_shapes_a_start_changes_its_key(
    smoke_config: Callable[..., ConfigDict], speech: Speech
) -> None:
    config = smoke_config()
    domain = build_domain(config)
    network = replace(speech.model.config, rope_theta=3.0)
    tokenizer: Any = SimpleNamespace(files={"tokenizer.model": b"another"})

    class Reworded:
        roles = domain.roles

        def scenarios(self, split: str) -> Any:
            return domain.scenarios(split)

        def prompt(self, scenario: Any, role: str) -> str:
            return domain.prompt(scenario, role) + " Be brief." * (role == "agent1")

        def __getattr__(self, name: str) -> Any:
            return getattr(domain, name)

    class Fewer(Reworded):
        def scenarios(self, split: str) -> Any:
            return domain.scenarios(split)[:-1]

        def prompt(self, scenario: Any, role: str) -> str:
            return domain.prompt(scenario, role)

    reworded: Any = Reworded()
    fewer: Any = Fewer()
    keys = [
        start_key(config, domain, speech, 0),
        start_key(config, domain, speech, 1),
        start_key(smoke_config(sft__steps=4), domain, speech, 0),
        start_key(smoke_config(dond__horizon_turns=9), domain, speech, 0),
        start_key(config, domain, replace(speech, model=Decoder(network, None)), 0),
        start_key(config, domain, replace(speech, tokenizer=tokenizer), 0),
        start_key(config, reworded, speech, 0),
        start_key(config, fewer, speech, 0),
    ]
    assert len(set(keys)) == len(keys)
    assert start_key(smoke_config(name="other", seed=5), domain, speech, 0) == keys[0]
