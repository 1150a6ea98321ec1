# The two commands most people need: `make train` and `make test`. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install train test test-long check benchmark clean

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

train: install
	$(BIN)/python train.py +experiment=imagenet_elastic

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Two tests at a time: half of one is waiting.
test: check
	$(BIN)/pytest --numprocesses 2 --dist worksteal

test-long: install
	$(BIN)/pytest -m long

benchmark: install
	for script in benchmarks/*.py; do OMP_NUM_THREADS=1 $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv build dist *.egg-info
