"""Every setting of a config, with its default, its unit or meaning, and its check.

`ibrl_jax.config` makes configs of them, and reads and checks those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ibrl_jax.fields import Field

SCRATCH_PRESETS = ("qwen3_tiny", "qwen3_micro", "qwen3_5_tiny", "qwen3_5_micro")
"""Networks that are as large as their tokenizer's vocabulary asks."""

RELEASED_PRESETS = (
    "smollm2_135m",
    "qwen2_5_0_5b",
    "qwen2_5_1_5b",
    "qwen2_5_3b",
    "qwen2_5_7b",
    "qwen3_0_6b",
    "qwen3_1_7b",
    "qwen3_4b",
    "qwen3_8b",
    "qwen3_5_0_8b",
    "qwen3_5_2b",
    "qwen3_5_4b",
    "qwen3_5_9b",
)
"""Networks of the sizes that were released; their weights are random without a folder."""

ROLES: Mapping[str, tuple[str, ...]] = {
    "dond": ("agent0", "agent1"),
    "telesales": ("sales", "customer"),
}
"""The roles of each domain, in its order."""

ROLE = {
    "train": Field(True, "whether this role's policy learns; if not, `counterpart` holds its seat"),
    "counterpart": Field(
        (),
        "who holds the seat of a role that does not train, one drawn a scenario: "
        "`frozen:start`, `frozen:<run folder>:<role>`, `scripted:<family>`, `api:<endpoint>`",
    ),
    "judge": Field(
        "", "the endpoint that judges this role's dialogues (telesales); empty: the domain's rules"
    ),
    "learning_rate": Field(3e-4, "AdamW step size", low=0.0),
    "warmup_updates": Field(5, "updates of linear warm-up, then constant", low=0, high=1e6),
    "update_every": Field(1, "this role updates at every n-th iteration (n)", low=1, high=1e6),
    "update_offset": Field(
        0, "the iteration, modulo `update_every`, at which it does", low=0, high=1e6
    ),
    "kl": Field(0.02, "weight of the k3 divergence from the role's own start", low=0.0),
    "entropy": Field(0.0, "weight of the entropy bonus, per nat", low=0.0),
    "clip_norm": Field(1.0, "largest global norm of a gradient", low=0.0),
    "weight_decay": Field(0.0, "AdamW decay of matrices, per step and learning rate", low=0.0),
    "temperature": Field(1.0, "sampling temperature in rollouts", low=0.05, high=10.0),
}

ENDPOINT = {
    "base_url": Field("", "address of an OpenAI-compatible server, up to and with /v1"),
    "model": Field("", "the model's name there"),
    "key_env": Field(
        "", "the environment variable that holds the key; empty: the server wants none"
    ),
    "temperature": Field(1.0, "sampling temperature", low=0.0),
    "max_tokens": Field(512, "longest answer, tokens", low=1, high=1e6),
    "timeout_s": Field(60.0, "longest wait for an answer, seconds", low=0.1, high=1e6),
    "retries": Field(4, "further tries after a failed call", low=0, high=1e3),
    "backoff_s": Field(
        1.0, "first pause before a further try, seconds; doubles", low=0.0, high=1e6
    ),
    "max_wait_s": Field(
        60.0, "longest pause, what the server asks for included, seconds", low=0.0, high=1e6
    ),
    "concurrency": Field(16, "calls under way at once", low=1, high=1e4),
    "requests_per_minute": Field(0.0, "rate limit; 0 for none", low=0.0),
    "max_calls": Field(-1, "calls that a run may make; -1 for no limit", low=-1),
    "max_total_tokens": Field(-1, "tokens that a run may use; -1 for no limit", low=-1),
    "max_cost": Field(
        -1.0, "what a run may cost, in the prices' currency; -1 for no limit", low=-1.0
    ),
    "price_in": Field(-1.0, "per million prompt tokens; -1: not known"),
    "price_out": Field(-1.0, "per million completion tokens; -1: not known"),
    "cache_dir": Field("", "folder of cached answers; empty for none"),
    "schema_mode": Field(
        "auto", "how JSON is asked for", choices=("auto", "json_schema", "json_object", "none")
    ),
    "extra_body": Field(
        "", "a JSON object that is merged into each request; null takes a field out of it"
    ),
}

SCHEMA: dict[str, Any] = {
    "name": Field("mini", "name of the experiment; its runs lie in `<run.root>/<name>/seed<seed>`"),
    "domain": Field("dond", "what the dialogues are about", choices=tuple(ROLES)),
    "seed": Field(0, "seed of everything that is drawn", low=0, high=1e9),
    "iterations": Field(150, "iterations of Algorithm 1", low=1, high=1e6),
    "run": {
        "root": Field("runs", "folder of the runs"),
        "checkpoint_every": Field(20, "iterations between checkpoints", low=1, high=1e6),
        "keep_checkpoints": Field(2, "checkpoints kept, newest first", low=1, high=1e6),
        "dialogues_every": Field(
            1, "iterations between those whose dialogues are written", low=1, high=1e6
        ),
        "text_every": Field(25, "iterations between transcripts in TensorBoard", low=1, high=1e6),
        "snapshots_every": Field(
            0,
            "iterations between policies written as `policies/<role>@<iteration>`; 0: none",
            low=0,
            high=1e6,
        ),
    },
    "policy": {
        "preset": Field(
            "qwen3_tiny",
            "the network, by name; not read where there is a folder",
            choices=(*SCRATCH_PRESETS, *RELEASED_PRESETS),
        ),
        "folder": Field(
            "",
            "a Hugging Face folder: network, weights, tokenizer and chat format; empty: the preset",
        ),
        "tokenizer": Field(
            "auto",
            "`auto` (the folder's, else `embedded`), `embedded`, or the path of a sentencepiece "
            "model or a Hugging Face folder",
        ),
        "chat": Field(
            "auto",
            "how a dialogue is spelled; auto: by the folder and the tokenizer",
            choices=("auto", "chatml", "qwen3", "qwen3_5", "llama3"),
        ),
        "thinking": Field(False, "whether a policy thinks aloud before it speaks"),
        "thoughts": Field(
            "keep", "what becomes of its earlier thoughts in its own view: `keep` is all there is"
        ),
        "start": Field(
            "sft",
            "`sft` (train it first), `random`, `pretrained` (the folder's weights as they are), or "
            "a policy folder that `make sft` or a run wrote",
        ),
        "dtype": Field("float32", "compute type of matmuls", choices=("float32", "bfloat16")),
        "attention": Field(
            "auto", "kernel of training attention", choices=("auto", "xla", "cudnn")
        ),
        "remat": Field(
            "auto",
            "whether layers are computed again in the backward pass; auto: as the size asks",
            choices=("auto", "yes", "no"),
        ),
        "delta_chunk": Field(
            0, "positions a chunk of the delta rule; 0: as the size asks", low=0, high=1024
        ),
    },
    "lora": {
        "rank": Field(0, "rank of the adapters that train; 0: all parameters do", low=0, high=1e4),
        "alpha": Field(32.0, "adapters weigh `alpha` / `rank`", low=0.0),
        "targets": Field(
            ("q", "k", "v", "o", "gate", "up", "down"),
            "kernels with an adapter: `q` in every layer, `attention/q` in those of that kind",
        ),
    },
    "mesh": {
        "data": Field(
            1, "devices over which rows are spread; -1: what the others leave", low=-1, high=1e5
        ),
        "fsdp": Field(1, "over which rows are spread and parameters cut", low=-1, high=1e5),
        "tensor": Field(1, "over which heads, widths and vocabulary are cut", low=-1, high=1e5),
    },
    "placement": Field(
        "shared", "whether roles share one mesh or have one each", choices=("shared", "split")
    ),
    "hosts": {
        "coordinator": Field(
            "", "`host:port` of process 0; empty: the launcher says it, or there is one process"
        ),
        "count": Field(0, "processes of the run; 0: as many as the launcher says", low=0, high=1e5),
        "index": Field(-1, "which of them this is; -1: the launcher says it", low=-1, high=1e5),
        "start_seconds": Field(300.0, "how long to wait until all are there", low=1.0, high=1e6),
        "silence_seconds": Field(
            30.0, "how long one may be silent before it is gone", low=5.0, high=1e6
        ),
    },
    "sft": {
        "seed": Field(-1, "seed of the start; -1 takes `seed`", low=-1, high=1e9),
        "families": Field(
            ("conceder", "reciprocator", "splitter", "wanderer", "trader"), "scripted teachers"
        ),
        "dialogues": Field(8000, "dialogues generated between teachers", low=1, high=1e7),
        "steps": Field(700, "updates: the strength of the start", low=1, high=1e7),
        "batch": Field(32, "dialogues an update", low=1, high=1e5),
        "learning_rate": Field(3e-3, "Adam step size; cosine to 5%", low=0.0),
        "number_weight": Field(2.0, "weight of a selection's numbers in the loss", low=0.0),
        "curriculum": Field(
            0.4, "share of the steps that begin with short dialogues", low=0.0, high=1.0
        ),
        "cut": Field(
            0,
            "length of pieces that dialogues are cut into in these, tokens; 0: the shorter, whole",
            low=0,
            high=1e7,
        ),
        "recitals": Field(
            0.0,
            "share of these in which a role recites fields of its prompt: all at first, then fewer",
            low=0.0,
            high=0.5,
        ),
        "deals_only": Field(True, "whether dialogues without a deal are left out"),
        "transcripts": Field(
            "", "a file of transcripts to learn from, one a line, in place of the teachers"
        ),
        "packed": Field(False, "whether several short examples share a row"),
    },
    "dond": {
        "data_dir": Field("", "folder of the original files; empty: enumerated scenarios"),
        "test_mode": Field("test200x5", "which test rows", choices=("test200x5", "rows1000")),
        "max_count": Field(4, "largest count of an item in enumerated scenarios", low=1, high=5),
        "split_seed": Field(
            2017, "seed of the hash that splits enumerated scenarios", low=0, high=1e9
        ),
        "split_fractions": Field((0.8, 0.1, 0.1), "train, val, test", low=0.0, high=1.0),
        "horizon_turns": Field(
            20, "turns after which a dialogue has no deal (10 rounds)", low=2, high=1e4
        ),
        "select_rule": Field(
            "any_try", "what a first selection needs", choices=("any_try", "last_try")
        ),
        "close": Field("either", "closing tags", choices=("either", "literal")),
        "penalty_malformed": Field(0.1, "taken from the offender of a malformed turn, points / 10"),
        "prompt": Field("full", "`full`, `short`, or a folder of prompt files"),
    },
    "telesales": {
        "language": Field("zh", "of profiles, prompts and rules", choices=("zh", "en")),
        "prompts_dir": Field("", "folder of prompt files of one's own; empty: ours"),
        "prompt_length": Field(
            "full", "of ours in training: `short` for tiny policies", choices=("full", "short")
        ),
        "seed": Field(0, "seed of the profiles", low=0, high=1e9),
        "train_profiles": Field(3000, "training profiles to learn from", low=1, high=1e6),
        "val_profiles": Field(200, "further training profiles, held out", low=1, high=1e6),
        "test_profiles": Field(500, "evaluation profiles", low=1, high=1e6),
        "composition": Field(
            "sampled",
            "of evaluation profiles: drawn, or in the paper's counts",
            choices=("sampled", "paper_exact"),
        ),
        "test_file": Field(
            "", "a file of evaluation profiles, all of which are used; empty: they are made"
        ),
        "stories": Field(
            "offline", "stories of evaluation profiles: of templates", choices=("offline", "none")
        ),
        "max_agent_turns": Field(15, "the agent's turns until a call ends", low=1, high=1e3),
        "score_step": Field(
            0.01,
            "what scores are multiples of, at the start and in the records of rule-based customers",
            choices=(0.01, 0.02, 0.05, 0.1),
        ),
    },
    "rollout": {
        "draws": Field(16, "scenarios drawn an iteration (Q)", low=1, high=1e5),
        "group": Field(4, "rollouts of a draw (G)", low=2, high=1e4),
        "max_new_tokens": Field(256, "longest turn, tokens", low=1, high=1e6),
        "max_view_tokens": Field(4096, "longest view of a role, tokens", low=8, high=1e7),
        "retries": Field(
            0, "times that a malformed turn is sampled again in training", low=0, high=1e3
        ),
    },
    "matchup": {
        "all": Field(
            0.7, "probability that all roles are live (the paper's p_both)", low=0.0, high=1.0
        ),
        "only": Field(
            (0.2, 0.1), "that only this role is live, in the roles' order", low=0.0, high=1.0
        ),
    },
    "pool": {
        "every": Field(10, "updates of a role between snapshots", low=1, high=1e6),
        "size": Field(20, "snapshots kept a role; the oldest leaves", low=1, high=1e5),
        "sample_per": Field(
            "rollout", "what shares a matchup", choices=("rollout", "scenario", "iteration")
        ),
        "store": Field("host", "whose memory holds snapshots", choices=("host", "device")),
    },
    "stabilise": {
        "pool": Field(True, "whether past policies hold seats"),
        "stagger": Field(True, "whether `update_every` and `update_offset` apply"),
    },
    "isolation": {
        "reward": Field("own", "whose reward pays a role", choices=("own", "shared")),
        "advantage": Field("role", "whose rewards normalise it", choices=("role", "joint")),
        "mask": Field("own", "whose words it is trained on", choices=("own", "all")),
        "update": Field("separate", "parameters and optimiser", choices=("separate", "tied")),
    },
    "advantage": {
        "ddof": Field(1, "degrees of freedom taken off the deviation", low=0, high=1),
        "eps": Field(1e-6, "added to the deviation", low=0.0),
    },
    "loss": {
        "normalise": Field(
            "tokens", "what one division is by", choices=("tokens", "sequences", "constant")
        ),
        "constant": Field(1000.0, "the divisor a sequence of `constant`, tokens", low=1.0),
        "clip_low": Field(0.2, "ratio clipped below 1 - this", low=0.0, high=1.0),
        "clip_high": Field(0.2, "ratio clipped above 1 + this", low=0.0),
        "kl_on_degenerate": Field(True, "whether KL and entropy act on groups without variance"),
        "epochs": Field(1, "passes over a batch", low=1, high=1e3),
    },
    "optimiser": {
        "b1": Field(0.9, "AdamW decay of the first moment", low=0.0, high=0.99999),
        "b2": Field(0.99, "of the second", low=0.0, high=0.99999),
        "eps": Field(1e-8, "added to the root of the second", low=0.0),
        "lengths": Field(
            (),
            "view lengths that a micro-batch is cut to, tokens; empty: never cut",
            low=1,
            high=1e7,
        ),
        "trained_share": Field(
            0.4,
            "share of a length's tokens that a pass at it has room to train on (the head, and in "
            "unrolled networks the last layer, are computed for these alone); rows with more take "
            "a greater length or the whole",
            low=0.01,
            high=1.0,
        ),
        "micro_batch": Field(
            16,
            "rows a pass forward and back; 0: what a measurement at the start says",
            low=0,
            high=1e6,
        ),
        "lanes": Field(
            1,
            "passes side by side on a CPU; 0: what a measurement at the start says",
            low=0,
            high=1e3,
        ),
        "packed": Field(False, "whether several short views share a row"),
        "memory_gb": Field(
            0.0,
            "memory that a measured pass may take, at most all there is; 0: half of that",
            low=0.0,
            high=1e6,
        ),
        "logp_chunk": Field(512, "tokens whose logits exist at once", low=1, high=1e7),
    },
    "rewards": {
        "min_coverage": Field(
            0.9, "least share of an iteration's rewards scored", low=0.0, high=1.0
        ),
        "turn": Field(0.2, "weight of a judge's turn scores (telesales)", low=0.0, high=1.0),
        "episode": Field(0.8, "weight of its score of the whole call", low=0.0, high=1.0),
        "gamma": Field(0.9, "discount of the scores of later turns", low=0.01, high=1.0),
    },
    "pipeline": {
        "max_staleness": Field(
            0,
            "1: the next iteration's dialogues are played while this one's updates run, by the "
            "parameters before them; 0: exactly on-policy",
            low=0,
            high=1,
        ),
        "truncate": Field(2.0, "largest importance weight of a token that was sampled so", low=1.0),
        "early_updates": Field(
            True,
            "whether a role whose rewards are all in updates, on a copy, while those of others "
            "are waited for",
        ),
    },
    "engine": {
        "rows": Field((8, 64), "batch sizes that are compiled", low=1, high=1e6),
        "new_tokens": Field(
            (32, 128), "lengths of a turn's input that are compiled", low=2, high=1e7
        ),
        "lengths": Field(
            (),
            "cache lengths that are compiled; empty: the longest view alone",
            low=1,
            high=1e7,
        ),
        "block": Field(
            4096,
            "tokens sampled in a step; from rollout.max_new_tokens on: whole turns",
            low=1,
            high=1e7,
        ),
        "stragglers": Field(
            0.0,
            "share of a call's rows whose turns the others don't wait for, below 1",
            low=0.0,
            high=0.99,
        ),
        "share_at_least": Field(
            16,
            "tokens of a common opening that is read once and copied; 0: never",
            low=0,
            high=1e7,
        ),
    },
    "evaluation": {
        "counterparts": Field(
            ("fair", "mirror", "lexi", "boulware", "greedy"),
            "held-out families; any policy by name, `column=name`, or several, `column=name+name`",
        ),
        "policies": Field(
            (), "who is evaluated by `evaluate --config --to`: names of policies, `label=name`"
        ),
        "reference": Field("", "the label that others are compared with; empty: the first"),
        "in_system": Field(True, "whether each policy meets who it trained with"),
        "self_play": Field(True, "whether each policy meets itself"),
        "crossplay": Field(False, "whether each policy meets each"),
        "scenarios": Field(100, "scenarios of a split; 0 for all", low=0, high=1e6),
        "split": Field("test", "which", choices=("val", "test")),
        "seeds": Field(1, "dialogues a scenario and seat", low=1, high=1e4),
        "retries": Field(2, "times that a malformed turn is sampled again", low=0, high=1e3),
        "temperature": Field(1.0, "sampling temperature", low=0.0),
        "auditor": Field(
            "", "the endpoint that audits each call of an evaluation (telesales); empty: rules"
        ),
    },
    "statistics": {
        "confidence": Field(0.95, "of intervals", low=0.5, high=0.999),
        "resamples": Field(2000, "bootstrap resamples of clusters", low=100, high=1e7),
        "permutations": Field(2000, "of a separated comparison", low=100, high=1e7),
        "seed": Field(0, "of both", low=0, high=1e9),
    },
    "roles": {},
    "endpoints": {},
}

OPEN = {"endpoints": ENDPOINT}
"""Sections whose entries a user names; every entry has the same fields."""

TELESALES: Mapping[str, Any] = {
    "domain": "telesales",
    "sft.families": ("competent", "rule_v1"),
    "sft.deals_only": False,
    "evaluation.counterparts": ("rule_v2",),
    "evaluation.seeds": 3,
}
"""Defaults that are others in this domain than in the first one."""
