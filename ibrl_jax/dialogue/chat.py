"""Chat templates as append-only renderers: a dialogue is only ever added to, never rendered anew.

```
<|im_start|> system \\n RULES + PRIVATE INPUT <|im_end|> \\n
<|im_start|> user \\n THEIR WORDS <|im_end|> \\n
<|im_start|> assistant \\n own words <|im_end|> \\n
             -- header ---  -- sampled -------  -- close
```

| format | families | header after `assistant \\n` |
| --- | --- | --- |
| chatml | Qwen2.5, SmolLM2, the embedded tokenizer | nothing |
| qwen3 | Qwen3 | nothing; without thinking an empty thought |
| qwen3_5 | Qwen3.5 | an open thought; without thinking an empty one |
| llama3 | Llama 3 | nothing; begins with `<|begin_of_text|>`, own header and end tokens |

A role's own thoughts stay in its own view (so that what it saw is what it is trained on) and leave
it nowhere: the public record is what the domain's referee shows of a turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ibrl_jax.dialogue.tokenizers import Tokenizer
from ibrl_jax.errors import UserError

ROLES = ("system", "user", "assistant")


class ChatTemplate(Protocol):
    """How one model family spells a dialogue, in pieces that are appended."""

    name: str
    """What a policy's folder calls the format."""
    opening: str
    """Text that the header has already said for the turn: the border of an open thought. It stands
    before the sampled text when a referee is asked what of a turn is shown."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a sampled turn, the one that the format itself uses first."""
        ...

    def system(self) -> tuple[list[int], list[int]]:
        """Ids before and after the system prompt's own."""
        ...

    def heard(self) -> tuple[list[int], list[int]]:
        """Ids before and after the counterpart's words."""
        ...

    def header(self) -> list[int]:
        """Ids that ask for one's own turn."""
        ...

    def close(self, stopped: bool) -> list[int]:
        """Ids after one's own turn; an end marker is added if the turn did not sample one."""
        ...


class _Format:
    """A dialogue is a row of messages: a head that names the role, words, an end.

    Args:
        begin: ids before the first message.
        heads: ids before a message's words, by role.
        end: the token that ends a message.
        gap: ids between an end and the next head.
        stops: further tokens that end a sampled turn.
    """

    opening: str = ""

    def __init__(
        self,
        name: str,
        *,
        begin: Sequence[int],
        heads: Mapping[str, Sequence[int]],
        end: int,
        gap: Sequence[int],
        stops: Sequence[int],
    ) -> None:
        self.name: str = name
        self._begin, self._heads, self._end, self._gap = begin, heads, end, gap
        self._stops = tuple(dict.fromkeys((end, *stops)))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stops

    def system(self) -> tuple[list[int], list[int]]:
        return [*self._begin, *self._heads["system"]], [self._end, *self._gap]

    def heard(self) -> tuple[list[int], list[int]]:
        return list(self._heads["user"]), [self._end, *self._gap]

    def header(self) -> list[int]:
        return list(self._heads["assistant"])

    def close(self, stopped: bool) -> list[int]:
        return list(self._gap) if stopped else [self._end, *self._gap]


class ChatML(_Format):
    """The format of Qwen2.5 and SmolLM2. No default system prompt, no beginning-of-text token.

    None of its own control tokens can stand inside a turn: a sampled one ends it, as it has no
    text that the other side could be shown.

    Args:
        stops: tokens that end a turn beside the format's own, as the model's folder lists them.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[int] = ()) -> None:
        start, newline = tokenizer.control("<|im_start|>"), tokenizer.encode("\n")
        super().__init__(
            "chatml",
            begin=(),
            heads={role: [start, *tokenizer.encode(role), *newline] for role in ROLES},
            end=tokenizer.control("<|im_end|>"),
            gap=newline,
            stops=(*stops, tokenizer.control("<|endoftext|>"), start),
        )


class Qwen3(ChatML):
    """ChatML with thoughts between `<think>` and `</think>`.

    Without thinking the header holds an empty thought, which the model does not say and is not
    trained on. It stays in the view, as all of it does.
    """

    family = "qwen3"
    opens = False
    """Whether the header opens the thought of a model that thinks."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[int], *, thinking: bool) -> None:
        super().__init__(tokenizer, stops)
        self.name = f"{self.family}+thinking" if thinking else self.family
        start, end = tokenizer.control("<think>"), tokenizer.control("</think>")
        blank = tokenizer.encode("\n\n")
        if not thinking:
            self._thought = [start, *blank, end, *blank]
        elif self.opens:
            self._thought = [start, *tokenizer.encode("\n")]
            self.opening = "<think>\n"
        else:
            self._thought = []

    def header(self) -> list[int]:
        return [*super().header(), *self._thought]


class Qwen35(Qwen3):
    """As Qwen3; with thinking the header opens the thought that the model goes on with."""

    family = "qwen3_5"
    opens = True


class Llama3(_Format):
    """The format of Llama 3: a beginning-of-text token once, and no dates in the system prompt."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[int]) -> None:
        head, tail = (
            tokenizer.control("<|start_header_id|>"),
            tokenizer.control("<|end_header_id|>"),
        )
        blank = tokenizer.encode("\n\n")
        super().__init__(
            "llama3",
            begin=[tokenizer.control("<|begin_of_text|>")],
            heads={role: [head, *tokenizer.encode(role), tail, *blank] for role in ROLES},
            end=tokenizer.control("<|eot_id|>"),
            gap=(),
            stops=(*stops, tokenizer.control("<|end_of_text|>"), head),
        )


_PLAIN: dict[str, Callable[[Tokenizer, Sequence[int]], ChatTemplate]] = {
    "chatml": ChatML,
    "llama3": Llama3,
}
_THINKING = {"qwen3": Qwen3, "qwen3_5": Qwen35}
CHATS = ("auto", *_PLAIN, *_THINKING)
"""What `config.policy.chat` may be."""

_OF_MODEL = {"qwen2": "chatml", "qwen3": "qwen3", "qwen3_5": "qwen3_5", "qwen3_5_text": "qwen3_5"}
"""Formats by the `model_type` of a folder's `config.json`; others go by the tokenizer."""


def load_chat(
    name: str, tokenizer: Tokenizer, folder: Path | None, *, thinking: bool, thoughts: str
) -> ChatTemplate:
    """The chat format of a model.

    Args:
        name: one of `CHATS`; `auto` goes by the folder's `config.json` and the tokenizer.
        folder: the released model's; None for a network of our own.
        thinking: whether the model thinks aloud before it speaks.
        thoughts: what becomes of a role's own earlier thoughts in its view; `keep` is all there is.

    Raises:
        UserError: the format is unknown, cannot be told, needs control tokens that the tokenizer
            lacks or cannot do what is asked; or the folder's stop ids cannot be read.
    """
    if thoughts != "keep":
        raise UserError(
            f"config.policy.thoughts is {thoughts!r}, and only `keep` can be trained: a view that "
            "loses earlier thoughts is not the text that its later turns were sampled after"
        )
    if name not in CHATS:
        raise UserError(f"config.policy.chat is {name!r}; it is one of {', '.join(CHATS)}")
    family = _family(tokenizer, folder) if name == "auto" else name
    stops = () if folder is None else stop_ids(folder)
    if family in _THINKING:
        return _THINKING[family](tokenizer, stops, thinking=thinking)
    if thinking:
        raise UserError(
            f"the chat format {family} knows no thinking; set config.policy.thinking=False"
        )
    return _PLAIN[family](tokenizer, stops)


def stop_ids(folder: Path) -> tuple[int, ...]:
    """Ids at which the folder's model stops: of `generation_config.json`, else of `config.json`.

    Raises:
        UserError: either file is damaged or names something else than ids.
    """
    for name in ("generation_config.json", "config.json"):
        values = _json(folder / name)
        text = values.get("text_config")
        named = values.get("eos_token_id")
        if named is None and isinstance(text, Mapping):
            named = text.get("eos_token_id")
        if named is None:
            continue
        ids = named if isinstance(named, list) else [named]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise UserError(
                f"{folder / name} has the eos_token_id {named!r}; it is an id or a list of ids"
            )
        return tuple(ids)
    return ()


def _family(tokenizer: Tokenizer, folder: Path | None) -> str:
    kind = "" if folder is None else _json(folder / "config.json").get("model_type", "")
    if kind in _OF_MODEL:
        family = _OF_MODEL[kind]
        # A policy of ours that was exported has the family's shape, and no token for thoughts.
        plain = family in _THINKING and not _knows(tokenizer, "<think>")
        return "chatml" if plain else family
    if _knows(tokenizer, "<|start_header_id|>"):
        return "llama3"
    if _knows(tokenizer, "<|im_start|>") and not _knows(tokenizer, "<think>"):
        return "chatml"
    raise UserError(
        f"neither the model type {kind or 'of a config.json'} nor the control tokens of the "
        f"tokenizer {tokenizer.name} tell the chat format; set config.policy.chat to one of "
        f"{', '.join(CHATS[1:])}"
    )


def _knows(tokenizer: Tokenizer, name: str) -> bool:
    try:
        tokenizer.control(name)
    except UserError:
        return False
    return True


def _json(file: Path) -> dict[str, Any]:
    """What a JSON file holds, nothing where there is none."""
    try:
        values = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); it may have been cut short") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no JSON object; it was damaged")
    return values
