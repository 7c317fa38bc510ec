"""Chat templates as append-only renderers: a dialogue is only ever added to, never rendered anew.

```
<|im_start|> system \\n RULES + PRIVATE INPUT <|im_end|> \\n
<|im_start|> user \\n THEIR WORDS <|im_end|> \\n
<|im_start|> assistant \\n own words <|im_end|> \\n
             -- header ---  -- sampled -------  -- close
```

A role's own thoughts stay in its own view (so that what it saw is what it is trained on) and leave
it nowhere: the public record is what the domain's referee shows of a turn.
"""

from __future__ import annotations

from typing import Protocol

from ibrl_jax.dialogue.tokenizers import Tokenizer


class ChatTemplate(Protocol):
    """How one model family spells a dialogue, in pieces that are appended."""

    name: str
    """What a policy's folder calls the format."""

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


class ChatML:
    """The format of the Qwen families. No default system prompt, no beginning-of-text token.

    No control token can stand inside a turn: a sampled one ends it, as it has no text that the
    other side could be shown.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.name: str = "chatml"
        self._start = tokenizer.control("<|im_start|>")
        self._end = tokenizer.control("<|im_end|>")
        self._text_end = tokenizer.control("<|endoftext|>")
        self._newline = tokenizer.encode("\n")
        self._names = {name: tokenizer.encode(name) for name in ("system", "user", "assistant")}

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self._end, self._text_end, self._start)

    def system(self) -> tuple[list[int], list[int]]:
        return self._message("system")

    def heard(self) -> tuple[list[int], list[int]]:
        return self._message("user")

    def header(self) -> list[int]:
        return [self._start, *self._names["assistant"], *self._newline]

    def close(self, stopped: bool) -> list[int]:
        return list(self._newline) if stopped else [self._end, *self._newline]

    def _message(self, name: str) -> tuple[list[int], list[int]]:
        return [self._start, *self._names[name], *self._newline], [self._end, *self._newline]
