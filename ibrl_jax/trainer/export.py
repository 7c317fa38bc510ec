"""A trained policy as a Hugging Face folder: merged weights, configuration, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.tokenizers import SENTENCEPIECE
from ibrl_jax.errors import UserError
from ibrl_jax.models import hf_folder
from ibrl_jax.models.hf_config import TokenIds
from ibrl_jax.models.lora import merge
from ibrl_jax.trainer.placing import places
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.weights import load_weights
from ibrl_jax.trainer.written import START

_SHARD = 4 << 30
"""Bytes of tensors a file."""


def export(run: RunFolder, config: ConfigDict, role: str, to: Path) -> str:
    """Write the policy that a run left for `role` (or its `start`); says what was written.

    Adapters are merged. Tensors are of the compute type.

    Raises:
        UserError: there is no such policy, or such a folder is there by now.
    """
    domain, speech = build_domain(config), build_speech(config)
    known = (*(r for r in domain.roles if config.roles[r].train), START)
    if role not in known:
        raise UserError(f"{run.path} trains no role {role!r}; its policies are {', '.join(known)}")
    run.need_policies([role])
    if to.exists():
        raise UserError(f"{to} is there already; export to a folder that is not")
    at = places(config, speech, domain.roles)
    place = at.get(role, at[domain.roles[0]])
    weights = load_weights(config, speech, place, run.policy(role))
    params = weights.trained
    if speech.model.lora is not None:
        params = jax.jit(merge, static_argnums=0)(
            speech.model.lora, weights.frozen, weights.trained
        )
    source = _source(config)
    positions = source.get("max_position_embeddings", config.rollout.max_view_tokens)
    hf_folder.write(
        to,
        speech.model.config,
        params,
        as_type=lambda path: jnp.dtype(config.policy.dtype),
        ids=_ids(source, speech),
        max_positions=int(positions),
        files=speech.tokenizer.files,
        max_shard=_SHARD,
    )
    sentence = f"{to} holds {role} of {run.path} as a Hugging Face folder, {config.policy.dtype}"
    if set(speech.tokenizer.files) == {SENTENCEPIECE}:
        sentence += (
            f"; its tokenizer is {SENTENCEPIECE}, which sentencepiece reads: "
            "transformers loads the network alone"
        )
    return sentence


def _source(config: ConfigDict) -> Mapping[str, Any]:
    """What the folder that the policy grew from says of its text model; nothing without one."""
    if not config.policy.folder:
        return {}
    values = json.loads((Path(config.policy.folder) / "config.json").read_text(encoding="utf-8"))
    return {**values, **(values.get("text_config") or {})}


def _ids(source: Mapping[str, Any], speech: Speech) -> TokenIds:
    """Whatever ends a turn ends what the model says; the rest is as it was."""
    bos, pad = source.get("bos_token_id"), source.get("pad_token_id")
    return TokenIds(bos=bos, eos=speech.chat.stop_ids, pad=pad)
