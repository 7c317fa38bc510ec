"""Make the golden files: tensors and logits of small random models of the reference implementation.

    python tests/models/make_golden.py [family ...]   (needs torch and transformers; ten seconds)

One compressed file a family, in `golden/`: every tensor under its own name, `ids` and `logits` of
three unpadded rows, and `gradients`, two numbers a tensor: the norm of the gradient of the mean
cross-entropy of each next token, and its product with cos(1), cos(2), ... The hybrid has many small
tensors: `qwen35` holds them as one array, `values`, with their `shapes` by name and its `config` as
JSON. Norms, biases and decays are randomised, since fresh ones hide faults. Weights are rounded for
size (to float16; the hybrid's to multiples of 1/64), and everything is that of the rounded weights
in float32.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    initializer_range=0.2,
    attn_implementation="eager",
)
FAMILIES = {
    "llama": ("Llama", dict(rms_norm_eps=1e-5, rope_theta=5e5, tie_word_embeddings=False)),
    "qwen25": ("Qwen2", dict(rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(rms_norm_eps=1e-6, rope_theta=5e6, tie_word_embeddings=True)),
}
# The hybrid: four kinds of head sizes, all different, and rotation of a quarter of a head.
HYBRID: dict[str, Any] = dict(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=6,
    linear_value_head_dim=8,
    linear_conv_kernel_dim=4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
    initializer_range=0.2,  # more makes roundings grow a thousandfold through the layers
    attn_implementation="eager",
)


def gradients(model: Any, ids: torch.Tensor) -> str:
    """What `golden/` holds of each tensor's gradient, as JSON by name."""
    logits = model(ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    found = {}
    for key, tensor in model.named_parameters():
        flat = tensor.grad.numpy().astype(np.float64).ravel()
        found[key] = [np.linalg.norm(flat), flat @ np.cos(np.arange(1, flat.size + 1))]
    return json.dumps(found)


def make(family: str) -> None:
    name, flags = FAMILIES[family]
    theta = flags.pop("rope_theta")
    sizes = SIZES | dict(head_dim=8) if family == "qwen25" else SIZES  # Qwen2: hidden / heads
    rope = dict(rope_type="default", rope_theta=theta)
    config = getattr(transformers, f"{name}Config")(**sizes, **flags, rope_parameters=rope)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "norm" in key:
                tensor.copy_(1 + 0.3 * torch.randn_like(tensor))
            elif key.endswith("bias"):
                tensor.copy_(0.3 * torch.randn_like(tensor))
            tensor.copy_(tensor.half().float())
        ids = torch.randint(0, sizes["vocab_size"], (3, 24))
        logits = model(ids).logits
    tensors = {k: v.detach().numpy().astype(np.float16) for k, v in model.named_parameters()}
    assert model.config.rope_parameters["rope_theta"] == theta
    path = Path(__file__).parent / "golden" / f"{family}.npz"
    arrays = dict(ids=ids.numpy(), logits=logits.numpy(), gradients=gradients(model, ids))
    np.savez_compressed(path, theta=theta, **arrays, **tensors)
    print(f"{path.name}: {path.stat().st_size} bytes, logits of deviation {logits.std():.2f}")


def make_hybrid() -> None:
    config = transformers.Qwen3_5TextConfig(**HYBRID)
    torch.manual_seed(0)
    model = transformers.Qwen3_5ForCausalLM(config).eval().float()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            noise = torch.randn_like(tensor)
            if "norm" in key:
                own = 1.0 if "linear_attn" in key else 0.0  # the others scale by 1 + w
                tensor.copy_(own + 0.3 * noise)
            elif key.endswith("A_log"):
                tensor.copy_(math.log(0.05) + noise)  # slow: what is forgotten cannot be wrong
            elif key.endswith("dt_bias") or "conv1d" in key:
                tensor.copy_(0.5 * noise)
            tensor.copy_((64 * tensor).round() / 64)
        ids = torch.randint(0, config.vocab_size, (3, 20))
        logits = model(ids).logits
    tensors = {k: v.detach().numpy() for k, v in model.named_parameters()}
    path = Path(__file__).parent / "golden" / "qwen35.npz"
    np.savez_compressed(
        path,
        ids=ids.numpy(),
        logits=logits.numpy(),
        gradients=gradients(model, ids),
        config=model.config.to_json_string(),
        shapes=json.dumps({k: v.shape for k, v in tensors.items()}),
        values=np.concatenate([(64 * v).astype(np.int16).ravel() for v in tensors.values()]),
    )
    print(f"{path.name}: {path.stat().st_size} bytes, logits of deviation {logits.std():.2f}")


if __name__ == "__main__":
    for family in sys.argv[1:] or (*FAMILIES, "qwen35"):
        if family == "qwen35":
            make_hybrid()
        else:
            make(family)
