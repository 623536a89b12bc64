# From a fresh clone, with nothing but Python 3.11 or newer, a C compiler and make:
#
#     make demo      a bootstrap node and four volunteers train together on this machine
#     make test      every check
#
# Both make .venv first, once, with the versions of constraints.txt.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow format proto reference clean

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The first that is new enough and can make an environment; a version manager's stub that only complains is passed over.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$python"; break; }; done)

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '%-18s %s\n' "$$target" "$$text"; done

demo: $(INSTALLED) ## four volunteers train together here; options in ARGS, such as ARGS="--rounds 5 --no-tui"
	@$(BIN)/spes-peer demo $(ARGS)

test: $(INSTALLED) ## every check but the slow ones: lint, format, types, import contracts, tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not slow" --numprocesses logical --dist loadfile $(ARGS)

# Two at a time: a swarm mostly waits, once it has started.
test-slow: $(INSTALLED) ## whole swarms of real processes
	$(BIN)/pytest -m "slow and not timed" --numprocesses 2 --dist loadfile --durations=40 --reruns 1 -rR $(ARGS)
	$(BIN)/pytest -m "slow and timed" --durations=10 --reruns 1 -rR $(ARGS)

format: $(INSTALLED) ## lay out the code and mend what can be mended without thought
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# A stub file only where there is a service.
PROTOC := $(BIN)/python -m grpc_tools.protoc -Ispes_peer/wire=proto
PROTOS := $(patsubst proto/%,spes_peer/wire/%,$(wildcard proto/*.proto))
SERVICES := $(patsubst proto/%,spes_peer/wire/%,$(shell grep -l '^service' proto/*.proto))
proto: $(INSTALLED) ## generate spes_peer/wire anew from proto/
	$(PROTOC) --python_out=. --pyi_out=. $(PROTOS)
	$(PROTOC) --grpc_python_out=. $(SERVICES)

reference: $(INSTALLED) ## write docs/REFERENCE.md anew from the code
	$(BIN)/python docs/reference.py > docs/REFERENCE.md.new
	@mv docs/REFERENCE.md.new docs/REFERENCE.md

clean: ## remove .venv and everything else that was made here
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
		echo "spes-peer needs Python 3.11 or newer with venv: install it, or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@if ! { command -v cc || command -v gcc || command -v clang; } >/dev/null 2>&1; then \
		echo "spes-peer needs a C compiler, for the parts of its libraries that come as source: install gcc or clang" >&2; \
		exit 1; fi
	@if [ -e $@ ]; then echo "bringing $(VENV) up to date"; else \
		echo "making $(VENV) with $$($(PYTHON) --version): PyTorch and some hundred packages, once, in a minute or a few"; fi
	@$(PYTHON) -m venv $(VENV)
	@[ -t 1 ] && [ ! -e $@ ] || quiet=--quiet; $(BIN)/python -m pip install $$quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
