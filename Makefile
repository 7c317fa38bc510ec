# Every job a person runs, each one line; `make` alone lists them. A job sets up what it needs in
# .venv once, and again only when a requirements file or the Python underneath has changed.

PYTHON ?= python3
N ?= 100000
JOBS ?= 2
SCALE ?= mini

PY := .venv/bin/python
RUN_READY := .venv/.ready-run
DEV_READY := .venv/.ready-dev
PARITY_PY := .venv-parity/bin/python
PARITY_READY := .venv-parity/.ready
BENCH_READY := .venv-bench/.ready
DISPOSABLE := .venv .venv-parity .venv-bench .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build *.egg-info
FLOORS := $(PY) .venv/bin/lint-imports --no-logo
# A table or figure of the paper: experiments/<the job's name>.py says what it is.
STUDY = $(PY) -m ibrl_jax.study --study=$@ --scale="$(SCALE)" $(if $(SEEDS),--seeds="$(SEEDS)") --jobs="$(JOBS)" $(ARGS)

# A variable that no job reads would be ignored in silence.
VARIABLES := PYTHON N JOBS SCALE SEEDS ARGS CONFIG RUN ROLE TO DEPLOY DATA DEVICE_GB DOMAIN MODEL URL
GIVEN := $(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(name)))
ifneq ($(filter-out $(VARIABLES),$(GIVEN)),)
$(error $(filter-out $(VARIABLES),$(GIVEN)) is no variable of these jobs; there are $(VARIABLES))
endif

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

ifdef DOMAIN # make sft DOMAIN=telesales
  CONFIG ?= configs/$(DOMAIN)/mini.py
endif

.PHONY: help quickstart test test-slow train sft evaluate report play export audit resume-check fuzz lint format \
	tensorboard human-corpus tokenizer models memory multihost parity parity-real bench bench-gpu \
	endpoint-check human-validation telesales transcripts seeds profile profiles table1 table2 table3 table4 \
	table5 table6 table7 table13 fig3 fig4 fig5 fig6 paper-check mismatch exploit evaluate-any crossplay clean

help: ## list the jobs (what a bare `make` does)
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

quickstart: $(RUN_READY) ## train two roles on two cores, evaluate them, write a report [ARGS=]
	@$(PY) -m ibrl_jax.train --config=configs/dond/mini.py --quickstart $(ARGS)

telesales: $(RUN_READY) ## train agent and customer on the rule-based stand-in, evaluate, report [ARGS=]
	@$(PY) -m ibrl_jax.train --config=configs/telesales/mini.py --quickstart $(ARGS)

train: need-CONFIG $(RUN_READY) ## train by a config: CONFIG=configs/dond/mini.py [ARGS="--config.seed=1"]
	@$(PY) -m ibrl_jax.train --config="$(CONFIG)" $(ARGS)

seeds: need-CONFIG $(RUN_READY) ## the same config on several seeds, side by side: CONFIG= [SEEDS=0,1,2 JOBS=2 ARGS=]
	@$(PY) -m ibrl_jax.many --config="$(CONFIG)" --seeds="$(or $(SEEDS),0,1,2)" --jobs="$(JOBS)" $(ARGS)

sft: need-CONFIG $(RUN_READY) ## only the supervised start of a config: CONFIG= [ARGS=]
	@$(PY) -m ibrl_jax.sft --config="$(CONFIG)" $(ARGS)

evaluate: need-RUN $(RUN_READY) ## evaluate a run: RUN=runs/mini/seed0 [ARGS=]
	@$(PY) -m ibrl_jax.evaluate --run="$(RUN)" $(ARGS)

report: need-RUN $(RUN_READY) ## write a run's report.html: RUN= [ARGS=]
	@$(PY) -m ibrl_jax.report --run="$(RUN)" $(ARGS)

play: need-RUN $(RUN_READY) ## talk to a trained policy in the terminal: RUN= [ARGS=]
	@$(PY) -m ibrl_jax.serve --run="$(RUN)" $(ARGS)

export: need-RUN need-ROLE need-TO $(RUN_READY) ## a policy as a Hugging Face folder: RUN= ROLE=agent0 TO=folder
	@$(PY) -m ibrl_jax.export --run="$(RUN)" --role="$(ROLE)" --to="$(TO)" $(ARGS)

tensorboard: $(RUN_READY) ## curves and transcripts in the browser: [RUN=] (all runs without it)
	@$(PY) -m tensorboard.main --logdir="$(if $(RUN),$(RUN),runs)" $(ARGS)

profile: need-CONFIG $(RUN_READY) ## where an iteration's time goes, by stage and as a trace: CONFIG= [ARGS=]
	@$(PY) -m ibrl_jax.profile --config="$(CONFIG)" $(ARGS)

audit: $(RUN_READY) ## show, bitwise, that the roles' updates are isolated [ARGS=]
	@$(PY) -m ibrl_jax.proofs.audit $(ARGS)

resume-check: $(RUN_READY) ## kill a run at random instants, resume, compare bitwise [ARGS=]
	@$(PY) -m ibrl_jax.proofs.resume_check $(ARGS)

endpoint-check: need-URL need-MODEL $(RUN_READY) ## what an endpoint can and lacks: URL= MODEL= [ARGS=--key-env=NAME]
	@$(PY) -m ibrl_jax.endpoints --url="$(URL)" --model="$(MODEL)" $(ARGS)

human-validation: $(RUN_READY) ## a blinded sheet of calls, and the agreement of two that are filled in: ARGS=
	@$(PY) -m ibrl_jax.evaluation.human_validation $(ARGS)

fuzz: $(RUN_READY) ## generated and mutated turns against the referee: [N=100000]
	@$(PY) -m ibrl_jax.domains.dond.fuzz $(N)

human-corpus: need-DATA $(RUN_READY) ## figures of the original human dialogues: DATA=folder
	@$(PY) -m ibrl_jax.human_corpus --data="$(DATA)"

table1: $(RUN_READY) ## TeleSales, held-out: IB-RL beside unilateral training [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

table2: $(RUN_READY) ## Deal-or-No-Deal: static counterparts or a learning one, five seeds [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

table3: $(RUN_READY) ## ablations of isolation: reward, advantage, mask, update [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

table4: $(RUN_READY) ## a pool of three static counterparts: returns against each [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

table5: $(RUN_READY) ## training profiles of TeleSales beside the paper's [ARGS=]
	@$(PY) -m ibrl_jax.profiles --table=5 $(ARGS)

table6: $(RUN_READY) ## evaluation profiles: the attributes [ARGS=]
	@$(PY) -m ibrl_jax.profiles --table=6 $(ARGS)

table7: $(RUN_READY) ## evaluation profiles: their composition beside the paper's [SCALE= SEEDS= ARGS=]
	@$(STUDY)

table13: $(RUN_READY) ## human validation: agreement and kappas [SCALE= SEEDS= ARGS=]
	@$(STUDY)

fig3: $(RUN_READY) ## with and without the pool and staggered updates, each alone too [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

fig4: $(RUN_READY) ## rewards of both roles in training [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

fig5: $(RUN_READY) ## checkpoints against a fixed counterpart and held-out ones [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

fig6: $(RUN_READY) ## how alike the counterpart's checkpoints speak [SCALE= SEEDS= JOBS= ARGS=]
	@$(STUDY)

paper-check: $(RUN_READY) ## the paper's own figures computed again, and those that cannot be right [ARGS=--data=folder]
	@$(PY) -m ibrl_jax.paper_check $(ARGS)

mismatch: need-RUN need-ROLE need-DEPLOY $(RUN_READY) ## what a policy loses against another counterpart: RUN= ROLE=agent0 DEPLOY=name [ARGS=]
	@$(PY) -m ibrl_jax.mismatch --run="$(RUN)" --role="$(ROLE)" --deploy="$(DEPLOY)" $(ARGS)

exploit: need-RUN need-ROLE $(RUN_READY) ## train an adversary against a frozen policy: RUN= ROLE=agent0 [ARGS=--iterations=60]
	@$(PY) -m ibrl_jax.exploit --run="$(RUN)" --role="$(ROLE)" $(ARGS)

evaluate-any: need-CONFIG need-TO $(RUN_READY) ## policies of any runs side by side: CONFIG=configs/dond/crossplay.py TO=folder [ARGS=]
	@$(PY) -m ibrl_jax.evaluate --config="$(CONFIG)" --to="$(TO)" $(ARGS)

crossplay: need-TO $(RUN_READY) ## every policy against every other: TO=folder [CONFIG=configs/dond/crossplay.py ARGS=]
	@$(PY) -m ibrl_jax.evaluate --config="$(or $(CONFIG),configs/dond/crossplay.py)" --to="$(TO)" $(ARGS)

profiles: need-CONFIG need-TO $(RUN_READY) ## evaluation profiles with stories: CONFIG= TO= [ARGS=--endpoint=NAME]
	@$(PY) -m ibrl_jax.profiles --config="$(CONFIG)" --to="$(TO)" $(ARGS)

transcripts: need-CONFIG need-TO $(RUN_READY) ## write synthetic transcripts: CONFIG= TO=calls.jsonl [ARGS=--count=1000]
	@$(PY) -m ibrl_jax.trainer.transcripts --config="$(CONFIG)" --to="$(TO)" $(ARGS)

tokenizer: $(RUN_READY) ## train the tiny tokenizers again from the synthetic corpora
	@$(PY) -m ibrl_jax.trainer.tokenizer

models: $(RUN_READY) ## list the networks that have a name, with their numbers of parameters
	@$(PY) -m ibrl_jax.models.table

memory: need-CONFIG $(RUN_READY) ## what a config takes on each device, compiled ahead of time: CONFIG= [DEVICE_GB=80]
	@$(PY) -m ibrl_jax.memory --config="$(CONFIG)" --device-gb="$(or $(DEVICE_GB),0)" $(ARGS)

multihost: $(RUN_READY) ## two processes train as one does, one is killed, the run goes on [ARGS=]
	@$(PY) -m ibrl_jax.proofs.multihost $(ARGS)

parity: $(PARITY_READY) ## random networks of every family beside the reference implementation (installs torch)
	@PYTHONPATH=. $(PARITY_PY) tests/parity/random_models.py $(ARGS)

parity-real: $(PARITY_READY) ## a small released model: its own words, then IB-RL on it (installs torch, fetches 93 MB)
	@PYTHONPATH=. $(PARITY_PY) tests/parity/real_model.py $(ARGS)

bench: $(RUN_READY) $(BENCH_READY) ## speed beside tunix, transformers and TRL (installs them and torch) [ARGS=]
	@$(PY) -m benchmarks.speed $(ARGS)

bench-gpu: $(RUN_READY) ## decoding and updating against what the accelerator can do [ARGS="--preset=qwen3_5_4b"]
	@$(PY) -m benchmarks.gpu $(ARGS)

test: $(DEV_READY) ## run the tests, a process a core; with ARGS="-k name" in one [ARGS=]
	@$(PY) -m pytest -m "not slow" -n auto --dist worksteal $(ARGS)

test-slow: $(DEV_READY) ## those on eight virtual devices and in two processes: many minutes [ARGS=]
	@$(PY) -m pytest -m slow $(ARGS)

lint: $(DEV_READY) ## ruff, formatting, types, and that imports run downward only
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m pyright && $(FLOORS)

format: $(DEV_READY) ## let ruff mend and format the code
	@$(PY) -m ruff check --fix . && $(PY) -m ruff format .

clean: ## remove .venv and every cache; runs/ stays
	@rm -rf $(DISPOSABLE) && find . -name __pycache__ -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------ what jobs stand on

NEEDS := need-CONFIG need-RUN need-DATA need-ROLE need-TO need-URL need-MODEL need-DEPLOY
.PHONY: $(NEEDS)
need-CONFIG: EXAMPLE := configs/dond/mini.py
need-RUN: EXAMPLE := runs/mini/seed0
need-DATA: EXAMPLE := path/to/the/original/files
need-ROLE: EXAMPLE := agent0
need-TO: EXAMPLE := exported/agent0
need-DEPLOY: EXAMPLE := scripted:fair
need-URL: EXAMPLE := http://127.0.0.1:8000/v1
need-MODEL: EXAMPLE := name-of-the-model
$(NEEDS): need-%:
	@test -n '$($*)' || { \
	  echo 'make $(MAKECMDGOALS) needs $*=..., such as $*=$(EXAMPLE)' >&2; exit 2; }

# The stamps are written last: an install that failed or was stopped is done again.
$(RUN_READY): requirements.txt constraints.txt $(PY)
	@$(call install,requirements.txt,constraints.txt)

$(DEV_READY): requirements-dev.txt $(RUN_READY)
	@$(call install,requirements-dev.txt,constraints.txt)

# An environment of its own, since nothing else needs torch.
$(PARITY_READY): requirements-parity.txt requirements.txt constraints.txt $(PY)
	@rm -rf .venv-parity && $(PY) -m venv .venv-parity
	@$(call install,requirements-parity.txt,constraints.txt)

# The peers that `make bench` measures want versions of their own: all are pinned in that file.
$(BENCH_READY): requirements-bench.txt $(PY)
	@rm -rf .venv-bench && $(PY) -m venv .venv-bench
	@$(call install,requirements-bench.txt)

$(PY):
	@$(PYTHON) -c '' 2>/dev/null || { \
	  echo 'no Python is called $(PYTHON): name one of 3.11 or newer by make PYTHON=...' >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Python 3.11 or newer is needed, which $(PYTHON) is not ('"`$(PYTHON) --version 2>&1`"'):' \
	    'name another by make PYTHON=...' >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '$(PYTHON) has no venv module: install it (Debian and Ubuntu: package python3-venv),' \
	    'or name another Python by make PYTHON=...' >&2; exit 2; }
	@rm -rf .venv && $(PYTHON) -m venv .venv || { rm -rf .venv; exit 2; }

# The packages go by on one line of the terminal; all that pip said stays in .venv/install.log.
define install
echo 'setting up $(@D) from $(1)'; \
{ $(@D)/bin/python -m pip install --no-compile --disable-pip-version-check --no-input -r $(1) $(if $(2),-c $(2)) 2>&1; \
  echo "pip ended with $$?"; } | tee $(@D)/install.log | { \
  code=1; test -t 1 && line_start='\r\033[K' || line_start=; \
  while IFS= read -r line; do case "$$line" in \
    "pip ended with "*) code=$${line##* } ;; \
    Collecting\ *|\ \ Downloading\ *|Installing\ *) \
      test -z "$$line_start" || printf "$$line_start%.78s" "$$line" ;; \
  esac; done; printf "$$line_start"; exit $$code; } && touch $@ || { \
  tail -n 8 $(@D)/install.log >&2; \
  echo 'pip could not install $(1); its last words stand above, all in $(@D)/install.log' >&2; exit 2; }
endef
