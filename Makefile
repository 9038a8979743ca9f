# Two commands are enough on a fresh machine: `make run` and `make test`.
#
#   make run      set up, and start the app on http://127.0.0.1:8501
#   make test     set up with the development requirements and a browser, then run all tests but those of the next three
#   make test-cluster   the tests that need PostgreSQL, nginx (both from the system's packages), S3 or Ray
#   make faults   the long forms of tests: locks of minutes, hundreds of killed processes and random addresses
#   make gpu      on a machine with an NVIDIA GPU: the tests that need one, and benchmarks/results/gpu.json
#   make check    format, lint, types, import contracts, fast tests
#   make format   format the code, and fix what the linter can fix
#   make setup    the set-up alone, into .venv; does nothing when nothing changed
#   make cluster  start the head of a Ray cluster on this machine, which docs/deploy.md explains
#   make wheels   fill wheels/ with what `make gpu WHEELS=wheels` needs on such a machine without internet
#   make stop     end a scheduler that was left running
#   make plotly   build pages/static/plotly.min.js from frontend/ (needs npm); only after a new release of plotly or a change in frontend/
#   make lock     compile requirements*.in into requirements*.txt at their newest releases
#   make clean    end the scheduler and delete .venv; runs are kept
#
# Without an NVIDIA GPU, set-up takes PyTorch's CPU build where its index can be reached. TORCH_INDEX=<url> make setup
# takes torch and torchvision from another package index.
#
# make wheels TORCH=2.11 [PRESENT="names and files of packages that machine has"] [WHEELS=folder] is for a machine whose
# Python 3.12 has torch 2.11 on x86-64 Linux. make gpu WHEELS=folder leaves that machine's packages as they are, and takes
# from the folder what they lack. make gpu ARGS="--steps models --append" and the like are for benchmarks/gpu.py.

.DEFAULT_GOAL := help
.PHONY: help run test test-cluster cluster faults setup setup-dev setup-cluster check format gpu gpu-site wheels stop plotly lock clean
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	&& echo $$p && break; done)
PORT ?= 8501
# Where Python may not write bytecode, as in many containers, each process would compile all of torch anew: 5 s a start.
export UV_COMPILE_BYTECODE := 1
# What only the CUDA build of torch needs; left out when torch comes from another index.
TORCH_OWN := ^(torch|torchvision|triton|cuda-[a-z]+|nvidia-(cu|nccl|nvjit|nvshmem|nvtx)[a-z0-9-]*)==

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

run: setup
	@echo "For the command line, in another terminal: source $(VENV)/bin/activate, then python -m engine --help"
	$(BIN)/streamlit run app.py --server.port $(PORT)

# Tests start hundreds of processes of ours: half a second each where their bytecode is not kept.
test test-cluster faults check: export PYTHONDONTWRITEBYTECODE :=

test: setup-dev
	scripts/find_browser.sh
	$(BIN)/pytest -n 2 --dist worksteal --durations 20 -m "not gpu and not soak and not cluster"

test-cluster: $(VENV)/.setup-cluster-dev
	scripts/find_browser.sh
	$(BIN)/pytest -n 2 --dist worksteal --durations 20 -m cluster

faults: setup-dev
	scripts/find_browser.sh
	$(BIN)/pytest -n 2 --dist worksteal --durations 20 -m soak

check: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not slow and not browser and not gpu and not soak and not cluster"

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(VENV)/.setup
setup-dev: $(VENV)/.setup-dev
setup-cluster: $(VENV)/.setup-cluster

$(BIN)/uv:
	@test -n "$(PYTHON)" || { \
		echo "Model Vitals needs Python 3.11 to 3.14; none was found in PATH. Name one: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# This file holds the arguments with which uv finds torch. Another TORCH_INDEX installs torch anew; without TORCH_INDEX,
# the installed torch is kept.
$(VENV)/.torch-source: FORCE | $(BIN)/uv
	@if [ -n '$(TORCH_INDEX)' ]; then source='--index $(TORCH_INDEX)'; \
	elif [ -e $@ ]; then source=$$(cat $@); \
	else source=$$(scripts/torch_source.sh $(BIN)/uv $(BIN)/python $$(sed -n 's/^torch==//p' requirements.txt)); fi; \
	if [ ! -e $@ ] || [ "$$(cat $@)" != "$$source" ]; then \
		$(BIN)/uv pip uninstall --quiet --python $(BIN)/python torch torchvision 2>/dev/null; \
		echo "$$source" > $@; fi
FORCE:

$(VENV)/.setup: requirements.txt $(VENV)/.torch-source | $(BIN)/uv
	@echo "Installing Model Vitals into $(VENV)"
	@source=$$(cat $(VENV)/.torch-source); \
	if [ -z "$$source" ]; then \
		$(BIN)/uv pip install --python $(BIN)/python -r requirements.txt; \
	else \
		$(BIN)/uv pip install --python $(BIN)/python $$source \
			$$(grep -oE '^(torch|torchvision)==[^ ;]+' requirements.txt) && \
		grep -vE '$(TORCH_OWN)' requirements.txt > $(VENV)/rest.txt && \
		$(BIN)/uv pip install --python $(BIN)/python -r $(VENV)/rest.txt; \
	fi
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup requirements-dev.txt
	$(BIN)/uv pip install --python $(BIN)/python -r requirements-dev.txt
	@touch $@

$(VENV)/.setup-cluster: $(VENV)/.setup requirements-cluster.txt
	$(BIN)/uv pip install --python $(BIN)/python -r requirements-cluster.txt
	@touch $@

$(VENV)/.setup-cluster-dev: $(VENV)/.setup-dev $(VENV)/.setup-cluster requirements-cluster-dev.txt
	$(BIN)/uv pip install --python $(BIN)/python -r requirements-cluster.txt -r requirements-cluster-dev.txt
	@touch $@

# Ray's processes must see the token and the store's URL: the shell has both, or the environment file of a service.
cluster: export RAY_AUTH_MODE := token
cluster: setup-cluster
	@test -n "$$VITALS_DATABASE_URL" || { echo "Set VITALS_DATABASE_URL to a PostgreSQL database: docs/deploy.md"; exit 1; }
	umask 077; $(BIN)/ray get-auth-token --generate >/dev/null
	$(BIN)/ray start --head --dashboard-host 127.0.0.1 --dashboard-port 8265 --disable-usage-stats
	@echo "Start the app with RAY_AUTH_MODE=token VITALS_RAY_ADDRESS=http://127.0.0.1:8265. End: $(BIN)/ray stop"

# Beside a machine's own packages, which may warn of what ours do not, warnings are no errors.
GPU_SITE := .gpu-site
GPU_PYTHON = $(if $(WHEELS),PYTHONPATH="$(CURDIR)/$(GPU_SITE)" $(PYTHON),$(BIN)/python)
GPU_TESTS = $(shell grep -rl 'pytest\.mark\.gpu' tests --include='*.py')
gpu: $(if $(WHEELS),gpu-site,setup-dev)
	@status=0; \
	$(GPU_PYTHON) -m pytest -q -m gpu -p no:cacheprovider $(if $(WHEELS),-W default) $(GPU_TESTS) || status=$$?; \
	$(GPU_PYTHON) -m benchmarks.gpu --output benchmarks/results/gpu.json $(ARGS) || status=$$?; \
	exit $$status

gpu-site:
	$(PYTHON) scripts/wheels.py install $(WHEELS) $(GPU_SITE)

wheels: setup
	@test -n "$(TORCH)" || { echo "Which release of torch does the machine have? make wheels TORCH=2.11"; exit 1; }
	$(BIN)/python scripts/wheels.py download $(or $(WHEELS),wheels) --torch $(TORCH) --present $(PRESENT)

stop:
	@test -x $(BIN)/python && $(BIN)/python -m engine stop || echo "Nothing is set up, so nothing runs."

plotly:
	cd frontend && npm install --no-package-lock --no-audit --no-fund && npm run build
	cp frontend/node_modules/plotly.js/LICENSE pages/static/LICENSE.plotly.txt

lock: | $(BIN)/uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-emit-index-url \
		--custom-compile-command "make lock" requirements.in -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-emit-index-url \
		--custom-compile-command "make lock" requirements-dev.in -o requirements-dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-emit-index-url \
		--custom-compile-command "make lock" requirements-cluster.in -o requirements-cluster.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-emit-index-url \
		--custom-compile-command "make lock" requirements-cluster-dev.in -o requirements-cluster-dev.txt

clean: stop
	rm -rf $(VENV)
