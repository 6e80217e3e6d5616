# Every target sets up .venv by itself; see tools/venv.sh. Choose an interpreter with PYTHON=…, a folder with VENV=….
VENV ?= .venv
JOBS ?= 2
PY = $(VENV)/bin/python
export VENV

.PHONY: help venv demo test bench lint format tour docs clean

help:
	@echo "make demo    a real transformer captured, explained, compiled, run and trained beside eager"
	@echo "make test    all tests (JOBS=2 processes; ARGS='-k name' to choose)"
	@echo "make bench   graphlift beside eager and torch.compile; writes benchmarks/RESULTS.md (ARGS='--quick')"
	@echo "make tour    every form a five-line function goes through"
	@echo "make docs    write docs/config.md and docs/breaks.md from the flags and reasons in the code"
	@echo "make lint    ruff and mypy"

venv:
	@tools/venv.sh

demo: venv
	@$(PY) examples/demo.py $(ARGS)

test: venv
	$(PY) -m pytest -n $(JOBS) --dist loadfile $(ARGS)

bench: venv
	@$(PY) -m benchmarks.run $(ARGS)

tour: venv
	@$(PY) docs/tour.py

docs: venv
	@$(PY) -m graphlift.report.docs docs

lint: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: venv
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src -name '*.so' -delete
