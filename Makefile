# The Distributed Training Workbook. A fresh clone needs Python >= 3.11 and make; `make help` lists what there is.
# What a target does is written in Python; here it only says which program runs, and in which environment.
#
#   PYTHON=python3.12   the interpreter that .venv is made with
#   SETUP=0             use PYTHON's own environment as it is (its torch, its GPUs); nothing is installed
#   RANKS=3             labN: number of ranks       SOLUTION=1   labN: run the solved notebook

PYTHON ?= python3
SETUP ?= 1
STAMP := .venv/.installed

ifeq ($(OS),Windows_NT)
$(error The workbook starts ranks the Unix way. On Windows run it inside WSL, see README.md)
endif
ifeq ($(filter 0 1,$(SETUP)),)
$(error SETUP must be 1 (make .venv and install) or 0 (use PYTHON's environment as it is), not "$(SETUP)")
endif

# The checkout comes first on the path, in notebooks too, so what you edit is what runs; and the notebook's kernel is
# the one of this environment, not one that happens to be installed for the user.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
export JUPYTER_PREFER_ENV_PATH := 1
export RANKS SOLUTION

ifeq ($(SETUP),0)
PY := $(PYTHON)
LABS_READY := missing-labs
TEST_READY := missing-labs,test
else
PY := .venv/bin/python
LABS_READY := $(STAMP)
TEST_READY := $(STAMP)
endif

# In a container people are root, and Jupyter wants to hear that it is meant.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--ServerApp.allow_root=True)

.PHONY: help setup labs test notebooks lint bench doctor progress clean FORCE
.DEFAULT_GOAL := help
.SUFFIXES:

help:
	@echo 'make lab0        run lab 0 without a browser and keep a report in runs/lab0/ (RANKS=3, SOLUTION=1); lab2: 2a, 2b, 2c'
	@echo 'make labs        open JupyterLab on labs/'
	@echo 'make test        lint, unit tests, all notebooks, browser tests'
	@echo 'make progress    the exercises you have passed'
	@echo 'make doctor      is this machine fit for the labs, and what to do where it is not'
	@echo 'make bench       measure the library against the real thing on this machine'
	@echo 'make notebooks   authors: build labs/*.ipynb and solutions/*.ipynb from solutions/*.py'
	@echo 'make lint        ruff on all Python files'
	@echo 'make setup       make .venv and install (every target does so when it is needed)'
	@echo 'make clean       remove runs/, caches and .venv; your notebooks and progress stay'
	@echo 'SETUP=0 PYTHON=python3 uses that environment as it is and installs nothing (a GPU image, a cluster module)'

# A setup that was interrupted left no stamp and is done again; one that is done is not looked at twice.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -m course_lib.doctor.install

missing-%: FORCE
	@$(PYTHON) -m course_lib.doctor.install --missing $*

setup: $(TEST_READY)

# A wrong lab, RANKS or SOLUTION is refused before anything is installed.
options-%: FORCE
	@$(PYTHON) -m course_lib.doctor.options $*

lab%: options-lab% $(LABS_READY)
	@$(PY) -m course_lib.lab.headless $@

labs: $(LABS_READY)
	@$(PY) -m jupyter lab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir=labs $(AS_ROOT)

test: $(TEST_READY)
	@$(PY) tests/run_all.py

notebooks: $(LABS_READY)
	@$(PY) -m course_lib.lab.build

lint: $(TEST_READY)
	@$(PY) -m ruff check .

bench: $(LABS_READY)
	@$(PY) -m course_lib.bench spmd
	@$(PY) -m course_lib.bench collectives
	@$(PY) -m course_lib.bench ddp
	@$(PY) -m course_lib.bench tensor
	@$(PY) -m course_lib.bench pipeline
	@$(PY) -m course_lib.bench expert

# Installs nothing: it is asked when something does not work, which may be the setup.
doctor:
	@$(if $(wildcard $(PY)),$(PY),$(PYTHON)) -m course_lib.doctor

progress: $(LABS_READY)
	@$(PY) -m course_lib.lab.progress

clean:
	rm -rf .venv runs .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

FORCE:
