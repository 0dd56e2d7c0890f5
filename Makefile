# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help serve test lint bench compiled clean

help:
	@echo "make serve     set up, then run (until the live system lands: a sample simulation)"
	@echo "make test      set up, then run every test"
	@echo "make lint      formatting, types, layering"
	@echo "make bench     the figures the README quotes, reduced; FULL=1 for all of them"
	@echo "make compiled  build the optional compiled core into build/compiled"
	@echo "make clean     remove what these made"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@

serve: $(READY)
	@echo "The live system is not here yet; this is the same scheduler on a simulated cluster."
	$(BIN)/fermata simulate simulator/samples/resnet50.yaml

test: $(READY)
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks.goodput $(if $(FULL),,--quick)
	$(BIN)/python -m benchmarks.flat_top $(if $(FULL),,--quick)
	$(BIN)/python -m benchmarks.core_speed $(if $(FULL),,--quick)

compiled: $(READY)
	$(BIN)/python -m router.compiled build/compiled

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
