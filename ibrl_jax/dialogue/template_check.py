"""Whether our rendering of a dialogue is that of the tokenizer's own chat template.

Ours only ever appends. A template may render earlier messages anew (Qwen3's takes the thoughts out
of all turns before the last question); there the two must part, and it is said where.

```
s u        + header      ours = template's?
s u a                    ours = template's?      each of ours begins with the one before;
s u a u    + header      ours = template's?      does each of the template's?
s u a u a                ours = template's?
```
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ibrl_jax.dialogue.chat import ChatTemplate
from ibrl_jax.dialogue.hf_tokenizer import THOUGHT, HFTokenizer
from ibrl_jax.dialogue.tokenizers import Tokenizer

_SYSTEM = "You share three kinds of items with another person."
_HEARD = ("hi, what do you need?", "one of them is enough for me")
_OWN = ("both balls, please", "then it is a deal")
_THOUGHTS = ("balls are worth most to me", "that is fair")
_AROUND = 8
"""Tokens shown on each side of the place where two renderings part."""


def differences(chat: ChatTemplate, tokenizer: Tokenizer, thinking: bool) -> str | None:
    """Where the rendering of a sample dialogue is not that of the tokenizer's template, in words.

    Args:
        thinking: what the template is told, and whether the sample's own turns hold thoughts.

    Returns:
        None where the two are equal, token for token, or where there can be no template.
    """
    if not isinstance(tokenizer, HFTokenizer):
        return None  # a sentencepiece model never has one
    if not tokenizer.has_template:
        return f"the tokenizer {tokenizer.name} has no chat template of its own to compare with"
    try:
        theirs = _theirs(tokenizer, thinking)
    except Exception as error:  # a template is somebody's program
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return f"the chat template of {tokenizer.name} cannot be rendered ({why[:200]})"
    ours = _ours(chat, tokenizer, thinking)
    parted = next((i for i in range(len(ours)) if ours[i] != theirs[i]), None)
    if parted is None:
        return None
    place = _common(ours[parted], theirs[parted])
    said = (
        f"the chat format {chat.name} and the template of {tokenizer.name} part in a dialogue of "
        f"{parted + 2} messages at token {place}: "
        f"ours is {_shown(tokenizer, ours[parted], place)}, "
        f"the template's {_shown(tokenizer, theirs[parted], place)}"
    )
    if any(after[: len(before)] != before for before, after in pairwise(theirs)):
        said += (
            "; the template is not append-only (a longer dialogue does not begin with the shorter "
            "one), and ours keeps what was read and sampled"
        )
    return said


def _theirs(tokenizer: HFTokenizer, thinking: bool) -> list[list[int]]:
    own = _OWN
    if thinking:
        own = [
            f"{THOUGHT[0]}\n{thought}\n{THOUGHT[1]}\n\n{words}"
            for thought, words in zip(_THOUGHTS, _OWN, strict=True)
        ]
    messages = [{"role": "system", "content": _SYSTEM}]
    for heard, said in zip(_HEARD, own, strict=True):
        messages += [{"role": "user", "content": heard}, {"role": "assistant", "content": said}]
    return [
        tokenizer.templated(messages[:count], thinking=thinking, ask=count % 2 == 0)
        for count in range(2, len(messages) + 1)
    ]


def _ours(chat: ChatTemplate, tokenizer: Tokenizer, thinking: bool) -> list[list[int]]:
    """The same dialogue as an agent appends it, its own turns as a model would sample them."""
    stages: list[list[int]] = []
    before, after = chat.system()
    ids = [*before, *tokenizer.encode(_SYSTEM), *after]
    for heard, thought, words in zip(_HEARD, _THOUGHTS, _OWN, strict=True):
        before, after = chat.heard()
        ids += [*before, *tokenizer.encode(heard), *after, *chat.header()]
        stages.append(list(ids))
        if thinking:
            if not chat.opening:
                ids += [tokenizer.control(THOUGHT[0]), *tokenizer.encode("\n")]
            ids += [*tokenizer.encode(f"{thought}\n"), tokenizer.control(THOUGHT[1])]
            ids += tokenizer.encode("\n\n")
        ids += [*tokenizer.encode(words), chat.stop_ids[0], *chat.close(stopped=True)]
        stages.append(list(ids))
    return stages


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _shown(tokenizer: Tokenizer, ids: Sequence[int], place: int) -> str:
    start, stop = max(0, place - _AROUND), place + _AROUND
    text = "".join(tokenizer.pieces(ids[start:stop]))
    return repr(("..." if start else "") + text + ("..." if stop < len(ids) else ""))
