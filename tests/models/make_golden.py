"""Make the golden files: tensors and logits of small random models of the reference implementation.

    python tests/models/make_golden.py        (needs torch and transformers; about ten seconds)

One compressed file a family, in `golden/`: every tensor under its own name, and `ids`, `logits` of
three unpadded rows. Norms and biases are randomised, since fresh ones hide faults. Weights are
rounded to float16 for size, and the logits are those of the rounded weights in float32.
"""

from pathlib import Path

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
    np.savez_compressed(path, ids=ids.numpy(), logits=logits.numpy(), theta=theta, **tensors)
    print(f"{path.name}: {path.stat().st_size} bytes, logits of deviation {logits.std():.2f}")


if __name__ == "__main__":
    for family in FAMILIES:
        make(family)
