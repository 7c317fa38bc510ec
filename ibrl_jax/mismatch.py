"""`make mismatch RUN=... ROLE=... DEPLOY=...`: what a policy loses against another counterpart.

    python -m ibrl_jax.mismatch --run=RUN --role=agent0 [--train=NAME] --deploy=NAME [--to=FILE]

Names are those of evaluations (`frozen:<run>:<role>`, `scripted:<family>`, `api:<endpoint>`);
`--train` is by default who the policy trained with. What is played is `config.evaluation`'s; the
result is printed and written to `<run>/mismatch/<role>-<deploy>.json`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, refuse, run
from ibrl_jax.errors import UserError
from ibrl_jax.names import bare


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "role", "train", "deploy", "to"))

    from ibrl_jax.contests.duel import UNREAD
    from ibrl_jax.contests.mismatch import measure, told
    from ibrl_jax.evaluation.store import cell_file
    from ibrl_jax.trainer.run import RunFolder, write_json

    refuse(options.overrides, (*UNREAD, "config.evaluation.retries"), "changes nothing here")
    folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
    config = configs.override(folder.config(), options.overrides)
    role = options.need("role", "agent0")
    deploy = options.need("deploy", f"frozen:{folder.path}:start")
    train = options.get("train", "")
    name = Path(cell_file(role, bare(deploy))).with_suffix(".json")
    file = Path(options.get("to", str(folder.path / "mismatch" / name)))
    _check_place(file, role=role, train=train, deploy=deploy)
    found = measure(folder, config, role, notes(console), train=train, deploy=deploy)
    text = f"{role} of {folder.path}: trained with {found['train']}, deployed with {deploy}"
    for line in (text, told(found)):  # first, so that no disk can lose it
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    _check_place(file, role=role, train=found["train"], deploy=deploy)
    write_json(file, found)
    console.print(f"written to {file}", highlight=False, markup=False, soft_wrap=True)


def _check_place(file: Path, **asked: str) -> None:
    """Raises UserError if something else is there, another mismatch too, and OSError if nothing
    can be written.

    `asked` is what a result says of itself; empty: not known yet.
    """
    from ibrl_jax.trainer.run import read_json

    if file.exists():
        try:
            known = read_json(file)
        except (UserError, OSError):
            known = {}
        if not {"train", "deploy", "direct"} <= set(known):
            raise UserError(f"{file} is there and is no mismatch; name another file by --to")
        for key, value in asked.items():
            if value and known.get(key, value) != value:
                raise UserError(
                    f"{file} is the mismatch of {key} {known.get(key)}, not {value}; name another "
                    "file by --to"
                )
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=file.parent):
        pass


if __name__ == "__main__":
    run(main)
