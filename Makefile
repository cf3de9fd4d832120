PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := interp tests tools benchmarks notebooks docs

.PHONY: test test-tl4 check slow published published-tests lint types types-for-pyright lowest notebooks demo bench docs clean

# pip would compile all 20,000 files of a venv, which takes a minute. Instead, what the tests import is compiled once, at
# the end of the installation.
INSTALL := pip install --quiet --disable-pip-version-check --no-compile

# One single-threaded process per core, because some tests compare numbers to the last bit. Bytecode is kept even if the
# environment says not to, because every process would otherwise compile torch and transformers again for tens of seconds.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Lint and quick tests, then whole commands and trained models, as users run them: without checking types at every call
test: check
	$(PYTEST) -m "e2e and not slow" --jaxtyping-packages=

# Tests that take several seconds, and those of every kind of model and every command where `make test` takes just one
slow: $(STAMP)
	$(PYTEST) -m "slow and not published" --jaxtyping-packages=

# Every command on two published models, which are made in the user's cache (or $INTERP_PUBLISHED), and their tests
published: published-tests
	$(BIN)/python tools/published_runs.py

published-tests: $(STAMP)
	INTERP_PUBLISHED_NEEDED=1 $(PYTEST) tests/published --jaxtyping-packages=

# To be run before every commit
check: $(STAMP) lint
	$(PYTEST) -m "not e2e and not slow and not published"

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(MAKE) --no-print-directory -j 2 types types-for-pyright

types:
	$(BIN)/mypy
types-for-pyright:
	$(BIN)/basedpyright --pythonpath $(BIN)/python -p tests/typing

# Bridges, and notebooks and whole commands on them, with a TransformerLens that has no hooked models. Other packages are
# taken from the main venv. How pages look and how runs are stopped and divided does not depend on TransformerLens.
TL4 := $(VENV)-tl4
TL4_STAMP := $(TL4)/.installed
PACKAGES = import sysconfig; print(sysconfig.get_path("purelib"))
test-tl4: $(TL4_STAMP)
	INTERP_TEST_REPORT= INTERP_HOOKED_PYTHON=$(CURDIR)/$(BIN)/python $(subst $(BIN)/,$(TL4)/bin/,$(PYTEST)) \
		tests/bridge tests/cli/test_cli.py $(patsubst %,tests/e2e/test_%.py,bundled oracles survey) \
		--jaxtyping-packages=

$(TL4_STAMP): $(STAMP)
	test -x $(TL4)/bin/python || $(PYTHON) -m venv $(TL4)
	$(BIN)/python -c '$(PACKAGES)' > "$$($(TL4)/bin/python -c '$(PACKAGES)')/shared.pth"
	sed 's/^transformer-lens==.*/transformer-lens==4.3.0/' constraints.txt > $(TL4)/constraints.txt
	$(TL4)/bin/$(INSTALL) -e '.[dev]' -c $(TL4)/constraints.txt
	touch $(TL4_STAMP)

# Lint, types and all tests with the lowest versions that pyproject.toml allows
lowest: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tools/lowest.py --venv $(VENV)-lowest -- -n 2 --dist loadfile

# To renew the outputs kept in the notebooks: TQDM_DISABLE=1 PYTHONWARNINGS=ignore .venv/bin/jupyter execute --inplace FILES
# What `make demo` finds in published models is left out where these could not be made.
notebooks: $(STAMP)
	$(PYTEST) --nbmake notebooks $(if $(wildcard runs/demo/all-MiniLM-L6-v2),,--ignore notebooks/published.ipynb)

demo: $(STAMP)
	$(BIN)/python tools/demo.py

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

bench: $(STAMP) $(TL4_STAMP)
	$(BIN)/$(INSTALL) -e '.[bench]' -c constraints.txt
	$(BIN)/python benchmarks --tl4 $(TL4)/bin/python

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "interp needs Python 3.11 or newer; make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) torch -c constraints.txt
	$(BIN)/$(INSTALL) -e '.[dev,docs]' -c constraints.txt
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -W ignore -c "import interp.testing, interp.plots, sklearn.pipeline, transformer_lens"
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(VENV)-lowest $(TL4) .pytest_cache .mypy_cache .ruff_cache build dist site
