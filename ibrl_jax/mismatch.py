"""`make mismatch RUN=... ROLE=... DEPLOY=...`: what a policy loses against another counterpart.

    python -m ibrl_jax.mismatch --run=RUN --role=agent0 [--train=NAME] --deploy=NAME [--to=FILE]

Names are those of evaluations (`frozen:<run>:<role>`, `scripted:<family>`, `api:<endpoint>`);
`--train` is by default who the policy trained with. What is played is `config.evaluation`'s; the
result is printed and written to `<run>/mismatch.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, run


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "role", "train", "deploy", "to"))

    from ibrl_jax.trainer.mismatch import measure, told
    from ibrl_jax.trainer.run import RunFolder, write_json

    folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
    config = configs.override(folder.config(), options.overrides)
    role = options.need("role", "agent0")
    deploy = options.need("deploy", f"frozen:{folder.path}:start")
    train = options.get("train", "")
    found = measure(folder, config, role, notes(console), train=train, deploy=deploy)
    file = Path(options.get("to", str(folder.path / "mismatch.json")))
    write_json(file, found)
    text = f"{role} of {folder.path}: trained with {found['train']}, deployed with {deploy}"
    for line in (text, told(found), f"written to {file}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
