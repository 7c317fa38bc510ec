"""What every command has in common: its options, and how it ends.

A user's mistake is one sentence on standard error and exit code 2, and so is a disk that is full or
locked, a path that cannot be, and memory that is not enough; Ctrl-C is 130; anything else that goes
wrong is a fault of ours and shows its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from ibrl_jax import host
from ibrl_jax.errors import UserError

_LOCKED = (errno.EACCES, errno.EROFS)
_NO_SUCH_PLACE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP)
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")


class Options:
    """`--name=value` options of a command, and the `--config.key=value` overrides among them."""

    def __init__(self, argv: Sequence[str], known: Sequence[str]) -> None:
        self.overrides = [option for option in argv if option.startswith("--config.")]
        self._values: dict[str, str] = {}
        for option in argv:
            if option in self.overrides:
                continue
            name, equals, value = option.removeprefix("--").partition("=")
            if not option.startswith("--") or name not in known:
                names = ", ".join(f"--{name}" for name in known)
                raise UserError(
                    f"{option!r} is no option here; there are {names} and --config.key=value"
                )
            self._values[name] = value if equals else "true"

    def need(self, name: str, example: str) -> str:
        """An option's value. Raises UserError if it was not given."""
        if not self._values.get(name):
            raise UserError(f"--{name} is needed, such as --{name}={example}")
        return self._values[name]

    def flag(self, name: str) -> bool:
        """Whether an option was given. Raises UserError for a value that is none of a flag's."""
        text = self._values.get(name, "false")
        if text not in ("true", "false"):
            raise UserError(f"--{name} is {text!r}; it is given alone, as --{name}, or left out")
        return text == "true"

    def get(self, name: str, default: str) -> str:
        return self._values.get(name) or default

    def number(self, name: str, default: int) -> int:
        """A whole number of at least 0. Raises UserError for anything else."""
        text = self.get(name, str(default))
        if not text.isdecimal():
            raise UserError(f"--{name} is {text!r}; it must be a whole number, such as {default}")
        return int(text)


def refuse(options: Iterable[str], names: Sequence[str], why: str) -> None:
    """Raises UserError for an option of one of these names (`*`: any), which would change nothing.

    `names` are without dashes, `config.` included; `why` goes on after the name.
    """
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if any(fnmatchcase(name, pattern) for pattern in names):
            raise UserError(f"--{name} {why}; leave it out")


def notes(console: Console) -> Callable[[str], None]:
    """What prints a remark of a command, dimmed; its text is no markup."""

    def note(text: str) -> None:
        console.print(f"· {text}", style="dim", highlight=False, markup=False, soft_wrap=True)

    return note


def run(
    main: Callable[[Sequence[str], Console], None], *, interrupted: str = "interrupted"
) -> None:
    """Runs a command on the command line's options and exits.

    `interrupted` is said after a Ctrl-C that brings no sentence of its own.
    """
    host.prepare()
    console = Console(emoji=False)  # `scripted:anchor:` is a name
    try:
        main(sys.argv[1:], console)
    except UserError as error:
        _end(str(error), 2)
    except KeyboardInterrupt as stop:
        _end(str(stop) or interrupted, 130)
    except Exception as error:
        problem = unwritable(error) or out_of_memory(error)
        if problem is None:
            raise
        _end(problem, 2)
    sys.exit(0)


def unwritable(error: BaseException) -> str | None:
    """A sentence on what is wrong with the disk or the path, if that is what went wrong.

    Libraries that write for us raise errors of their own for a full disk, which only say so in
    their text or in what caused them.
    """
    chain = list(_causes(error))
    names = [cause.filename for cause in chain if isinstance(cause, OSError) and cause.filename]
    place = os.fsdecode(names[0]) if names and not isinstance(names[0], int) else ""
    at = f" at {place}" if place else ""
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno in _LOCKED or (error.errno in _NO_SUCH_PLACE and error.filename):
            return _cannot_write(at, error.errno)
        if error.errno == errno.ENOENT and place and not Path(place).parent.is_dir():
            return f"cannot read or write{at}: {os.strerror(error.errno)}; its folder is not there"
    for number in (errno.ENOSPC, errno.EDQUOT):
        if any(os.strerror(number) in str(cause) for cause in chain):
            return _cannot_write(at, number)
    return None


def out_of_memory(error: BaseException) -> str | None:
    """A sentence on what takes less memory, if there was not enough of it."""
    for cause in _causes(error):
        said = (str(cause).splitlines() or [""])[0]
        if isinstance(cause, MemoryError) or any(words in said for words in _NO_MEMORY):
            return (
                f"there is not enough memory ({said[:160] or type(cause).__name__}); less is taken "
                "by a smaller config.optimiser.micro_batch, config.sft.batch, "
                "config.rollout.draws, config.rollout.max_view_tokens or network, and make memory "
                "says how much"
            )
    return None


def _cannot_write(at: str, number: int) -> str:
    return f"cannot write{at}: {os.strerror(number)}; what was saved before is whole"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _end(sentence: str, code: int) -> None:
    print(sentence, file=sys.stderr)
    sys.exit(code)
