# make demo: train small models and build an atlas of them. make notebook: write docs/guide/atlas.ipynb again from that atlas.
# make test: the checks and the faster tests. make slow: the slower tests. make studies: whole studies (half an hour).
# make reproduce: the study of four bases, about 25 minutes. make docs: the site of docs/, in site/.
# Each target makes its environment (.venv) on first use, unless a virtual environment is active or PYTHON=… is given.

ifdef VIRTUAL_ENV
ENVIRONMENT := $(VIRTUAL_ENV)
else
ENVIRONMENT := .venv
endif
PYTHON ?= $(ENVIRONMENT)/bin/python
BOOTSTRAP ?= python3
# Two processes more than two cores: some tests wait, for a browser, a time limit or a server that does not answer.
# Each process takes four seconds to collect the tests.
SHARED_OUT := --numprocesses 4 --dist loadfile --no-loadscope-reorder
# Containers often set it; then every process would compile the thousands of files that it imports.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := $(ENVIRONMENT)/.vectors-in-the-wild-installed

.PHONY: demo notebook reproduce test types suite slow studies bench docs clean

demo: $(INSTALLED)
	$(PYTHON) -m scripts.demo

notebook: $(INSTALLED)
	$(PYTHON) -m scripts.notebook

reproduce: $(INSTALLED)
	$(PYTHON) -m scripts.reproduce

# What takes longer than a second is checked while the tests start.
test: $(INSTALLED)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check --quiet .
	@$(MAKE) --no-print-directory --jobs 2 types suite

types: $(INSTALLED)
	$(PYTHON) -c 'from importlinter.cli import import_linter; import_linter()' lint --no-logo
	$(PYTHON) -m mypy

suite: $(INSTALLED)
	$(PYTHON) -m pytest $(SHARED_OUT)

slow: $(INSTALLED)
	$(PYTHON) -m pytest $(SHARED_OUT) -m "slow and not study"

studies: $(INSTALLED)
	$(PYTHON) -m pytest -m study --timeout 3600

bench: $(INSTALLED)
	$(PYTHON) -m scripts.bench

# The site, in site/: a warning is an error. To read it while it changes: zensical serve
docs: $(INSTALLED)
	$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(PYTHON) -m zensical build --strict

# Python compiles what is used, when it is used; pip would compile every file of every package first (a minute).
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(ENVIRONMENT)/bin/python || $(BOOTSTRAP) -m venv $(ENVIRONMENT)
	$(PYTHON) -m pip install --quiet --no-compile --upgrade-strategy only-if-needed -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .demo build dist site *.egg-info
