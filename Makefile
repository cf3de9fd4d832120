PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: test lint notebooks demo bench clean

test: $(STAMP) lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# To renew the outputs that they keep: TQDM_DISABLE=1 PYTHONWARNINGS=ignore .venv/bin/jupyter execute --inplace FILES
notebooks: $(STAMP)
	$(BIN)/python -m pytest --nbmake notebooks

demo: $(STAMP)
	for model in tiny-gpt2 tiny-bert; do \
		bos=$$(test $$model = tiny-gpt2 && echo --bos); \
		$(BIN)/interp frequency --model $$model --corpus bundled $$bos --scales 0:1:0.1 --out runs/demo/$$model --overwrite || exit; \
		$(BIN)/interp attention --model $$model --corpus bundled $$bos --out runs/demo/$$model --overwrite || exit; \
		$(BIN)/interp encoding --model $$model --corpus bundled $$bos --out runs/demo/$$model --overwrite || exit; \
		$(BIN)/interp probe --model $$model --pairs bundled --limit 100 $$bos --out runs/demo/$$model --overwrite || exit; \
	done
	$(BIN)/interp generate --model tiny-gpt2 --prompts bundled --bos --out runs/demo/tiny-gpt2 --overwrite
	$(BIN)/interp page runs/demo

bench: $(STAMP)
	$(BIN)/python benchmarks/frequency.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/encoding.py
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/collect.py
	$(BIN)/python benchmarks/probing.py

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit("interp needs Python 3.11 or newer; make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(BIN)/pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
