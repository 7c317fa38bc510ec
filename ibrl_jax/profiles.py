"""`make table5`, `table6`, `table7`: profiles of TeleSales beside the paper's; and a file of them.

    python -m ibrl_jax.profiles --table=7 [--composition=sampled] [--size=500] [--seed=0]
                                          [--language=zh] [--out=FOLDER]
    python -m ibrl_jax.profiles --config=CONFIG --to=FILE [--endpoint=NAME] [--attempts=3]

The first prints Markdown; `--out` also writes it there, and the same as CSV. The second writes a
config's evaluation profiles, one a line, with their stories: by the endpoint of that name in the
config (Table 8), or out of templates. `config.telesales.test_file` reads such a file; a story that
it has by now is kept. A file that is there is never written over. What the endpoint was asked and
cost stands in `<FILE>.ledger.jsonl` beside it, what it answered in its `cache_dir`, or else in
`<FILE>.cache`. A later start for the same file goes on from both, its budget included; the sum is
printed at the end, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.domains.telesales.labels import LANGUAGES, Language
from ibrl_jax.domains.telesales.profiles.composition import COMPOSITIONS, PAPER_SIZE
from ibrl_jax.domains.telesales.profiles.files import dump_profiles
from ibrl_jax.domains.telesales.profiles.schema import EvaluationProfile
from ibrl_jax.domains.telesales.profiles.tables import Beside, table5, table6
from ibrl_jax.domains.telesales.prompts import Prompts
from ibrl_jax.domains.telesales.story import compile_all, compile_offline, with_story
from ibrl_jax.endpoints import Endpoint
from ibrl_jax.entry import Options, refuse, run
from ibrl_jax.errors import UserError
from ibrl_jax.whole import replacing

TABLES = ("5", "6", "7")

_OF_TABLE_7 = ("composition", "size", "seed", "language")
_OF_A_TABLE = ("table", *_OF_TABLE_7, "out")
_OF_A_FILE = ("config", "to", "endpoint", "attempts")


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, (*_OF_A_TABLE, *_OF_A_FILE))
    if any(options.get(name, "") for name in ("to", "config")):
        refuse(argv, _OF_A_TABLE, "is of tables, and --to writes a config's profiles to a file")
        if not options.get("endpoint", ""):
            why = "is of stories by an endpoint, and no --endpoint is named"
            refuse(argv, ["attempts", "config.endpoints.*"], why)
        _write(options, console)
    else:
        refuse(argv, [*_OF_A_FILE, "config.*"], "is of files, by --config and --to")
        if options.get("table", "7") != "7":
            refuse(argv, _OF_TABLE_7, "is of table 7 alone")
        _print(options, console)


def _print(options: Options, console: Console) -> None:
    number = options.need("table", "7")
    if number not in TABLES:
        raise UserError(f"--table is {number!r}; the tables of profiles are {', '.join(TABLES)}")
    table = {"5": table5, "6": table6}[number]() if number != "7" else _composition(options)
    console.print(table.markdown(), highlight=False, markup=False, soft_wrap=True)
    if out := options.get("out", ""):
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in (("md", table.markdown() + "\n"), ("csv", table.csv())):
            (folder / f"table{number}.{ending}").write_text(text, encoding="utf-8")


def _composition(options: Options) -> Beside:
    """Table 7 of freshly made profiles, in the composition that was asked for or in both."""
    wanted = options.get("composition", "")
    if wanted and wanted not in COMPOSITIONS:
        raise UserError(f"--composition is {wanted!r}; there are {', '.join(COMPOSITIONS)}")
    spoken = options.get("language", "zh")
    language: Language | None = next((known for known in LANGUAGES if known == spoken), None)
    if language is None:
        raise UserError(f"--language is {spoken!r}; there are {', '.join(LANGUAGES)}")
    size, seed = options.number("size", PAPER_SIZE), options.number("seed", 0)
    if size < 1:
        raise UserError("--size is 0; it must be 1 or more")

    from ibrl_jax.studies.sheets import composed  # late: it draws too, which takes a second to load

    return composed(seed, size, language, [kind for kind in COMPOSITIONS if wanted in ("", kind)])


def _write(options: Options, console: Console) -> None:
    """Writes the profiles with their stories, all of them or none."""
    from ibrl_jax.dialogue.build import build_domain, build_endpoint
    from ibrl_jax.domains.telesales.domain import TeleSales

    config = configs.load(
        options.need("config", "configs/telesales/qwen3_5-4b.py"), options.overrides
    )
    domain = build_domain(config)
    if not isinstance(domain, TeleSales):
        raise UserError(f"the config's domain is {domain.name}; profiles are of telesales")

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    name, to = options.get("endpoint", ""), Path(options.need("to", "profiles.jsonl"))
    if to.is_dir():
        raise UserError(f"--to is {to}, a folder; it must be a file in it or elsewhere")
    if to.exists():
        raise UserError(
            f"{to} is there already, and its stories may have been paid for; write to another "
            "--to, or move it away"
        )
    if name and name not in config.endpoints:
        has = ", ".join(config.endpoints) or "none"
        raise UserError(f"--endpoint is {name!r}; config.endpoints has {has}")
    profiles = domain.evaluation_set
    without = [profile for profile in profiles if profile.story is None]
    if name:
        attempts = options.number("attempts", 3)
        of_name = config.endpoints[name]
        of_name.cache_dir = of_name.cache_dir or f"{to}.cache"  # no story is paid for twice
        endpoint = build_endpoint(config, name, Path(f"{to}.ledger.jsonl"))
        try:
            told = asyncio.run(_told(endpoint, without, domain.prompts, attempts))
        finally:
            say(endpoint.ledger.told())
    else:
        seed = domain.settings.seed
        told = [with_story(profile, compile_offline(profile, seed)) for profile in without]
    by_id = {profile.id: profile for profile in told}
    told = [by_id.get(profile.id, profile) for profile in profiles]
    to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as beside:
        beside.write_bytes(dump_profiles(told))
    say(
        f"{len(told)} profiles with stories are in {to}; --config.telesales.test_file={to} "
        "evaluates on them"
    )


async def _told(
    endpoint: Endpoint, profiles: Sequence[EvaluationProfile], prompts: Prompts, attempts: int
) -> Sequence[EvaluationProfile]:
    """All profiles with an endpoint's stories. Raises UserError if some got none."""
    try:
        told, failed = await compile_all(endpoint, profiles, prompts, attempts=attempts)
    finally:
        await endpoint.aclose()
    if failed:
        raise UserError(
            f"{len(failed)} of {len(profiles)} profiles got no story, the first, {failed[0].id}, "
            f"since {failed[0].reason}; nothing was written: start again, with more --attempts "
            f"than {attempts} where they cross a boundary, more max_tokens where they are cut off "
            "(what was answered is not asked again)"
        )
    return told


if __name__ == "__main__":
    run(main)
