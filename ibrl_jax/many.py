"""`make seeds`: a config with several seeds, each a process on cores of its own.

    python -m ibrl_jax.many --config=configs/dond/mini.py --seeds=0,1,2,3 --jobs=2 --evaluate

Runs that are finished are not run again, and one that was stopped goes on from its last checkpoint.
With --evaluate each is evaluated and reported too. Without --jobs there are as many at a time as
there are cores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError
from ibrl_jax.host import cores
from ibrl_jax.jobs.processes import Job
from ibrl_jax.jobs.queue import run_jobs, seeds_of, shares
from ibrl_jax.trainer.finished import is_finished
from ibrl_jax.trainer.run import RunFolder


def main(argv: Sequence[str], console: Console) -> None:
    options = Options([o for o in argv if o != "--"], ("config", "seeds", "jobs", "evaluate"))
    file = options.need("config", "configs/dond/mini.py")
    seeds = seeds_of(options.need("seeds", "0,1,2,3"))
    at_once = options.number("jobs", min(cores(), len(seeds)))
    shares(at_once)
    evaluate = options.flag("evaluate")
    jobs = [job(file, options.overrides, seed, evaluate=evaluate) for seed in seeds]
    ended = run_jobs(jobs, at_once, console)
    failed = [e.job.name for e in ended if e.ending == "failed"]
    unfinished = [e.job.name for e in ended if e.ending in ("stopped", "not begun")]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}; "
            "the same command goes on with what is not done"
        )
    if unfinished:
        raise KeyboardInterrupt(
            f"stopped with {', '.join(unfinished)} not finished; the same command goes on from here"
        )
    console.print(f"all {len(jobs)} runs are done", highlight=False)


def job(file: str, overrides: Sequence[str], seed: int, *, evaluate: bool) -> Job:
    """The run of one seed.

    Raises:
        UserError: the config cannot be used, or its folder holds another run.
    """
    if any(option.startswith("--config.seed=") for option in overrides):
        raise UserError("--seeds says which seeds there are; leave --config.seed out")
    options = [*overrides, f"--config.seed={seed}"]
    config = configs.load(file, options)
    folder = RunFolder.of(config)
    folder.check(config)
    command = [sys.executable, "-m", "ibrl_jax.train", f"--config={file}", *options]
    return Job(
        name=f"{config.name}/seed{seed}",
        command=(*command, "--quickstart") if evaluate else tuple(command),
        folder=folder.path,
        total=config.iterations,
        finished=is_finished(folder, config, evaluate=evaluate),
    )


if __name__ == "__main__":
    run(main)
