# make demo: from nothing to an atlas. make test: the tests. make reproduce: the study of four bases, about 25 minutes.
# Each makes its environment on first use.
# In an active virtual environment (or with PYTHON=…) that one is used instead of .venv.

ifdef VIRTUAL_ENV
ENVIRONMENT := $(VIRTUAL_ENV)
else
ENVIRONMENT := .venv
endif
PYTHON ?= $(ENVIRONMENT)/bin/python
BOOTSTRAP ?= python3
INSTALLED := $(ENVIRONMENT)/.vectors-in-the-wild-installed

.PHONY: demo reproduce test slow check bench clean

demo: $(INSTALLED)
	$(PYTHON) -m scripts.demo

reproduce: $(INSTALLED)
	$(PYTHON) -m scripts.reproduce

test: $(INSTALLED)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check --quiet .
	$(PYTHON) -m mypy
	$(PYTHON) -c 'from importlinter.cli import import_linter; import_linter()' lint --no-logo
	$(PYTHON) -m pytest --numprocesses 2 --dist loadfile

slow: $(INSTALLED)
	$(PYTHON) -m pytest -m "slow or not slow"

bench: $(INSTALLED)
	$(PYTHON) -m scripts.bench

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(ENVIRONMENT)/bin/python || $(BOOTSTRAP) -m venv $(ENVIRONMENT)
	$(PYTHON) -m pip install --quiet --upgrade-strategy only-if-needed -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .demo build dist *.egg-info
