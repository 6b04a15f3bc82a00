# What to type here, and nothing else: the work is done by .ci/setup and hooks/build.sh, tests/demo
# and tests/bench. Every target installs what it needs first, so that each works on a fresh machine.

MAKEFLAGS += --no-builtin-rules --no-print-directory
# `make demo WORLD=debian:13`: any target, in a bare Debian that ends with it (tests/kit/world.py).
ifdef WORLD
$(firstword $(MAKECMDGOALS)):
	@.ci/setup world
	@PYTHONPATH=tests .venv/bin/python -m kit.world '$(WORLD)' make $(MAKECMDGOALS) $(filter-out WORLD=%,$(MAKEOVERRIDES))
$(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS)): ;
.PHONY: $(MAKECMDGOALS)
else

.DEFAULT_GOAL := help
# Where a shell sets it, each of the thousands of starts of `provision` compiles all sources again.
unexport PYTHONDONTWRITEBYTECODE
# What tests and programs here read is UTF-8, whatever the locale's encoding.
export PYTHONUTF8 := 1
ifndef IN_PAIRS
.NOTPARALLEL:
endif

# PYTHONPATH: kit, demo and bench are packages below tests/, not part of what is installed.
PYTHON := PYTHONPATH=tests .venv/bin/python
PYTEST := $(PYTHON) -m pytest
SHIPPING := PYTHONPATH=release .venv/bin/python -m shipping
# Test files say which of them share a process: tests/kit/schedule.py.
WORKERS ?= 2
FOREIGN ?= $(filter-out $(shell uname -m),x86_64 aarch64)
# Tests that need neither root nor a network, and those with real engines, hosts and kernels. Each
# test is of one tier: tests/kit/schedule.py.
QUICK := tests/unit tests/golden tests/kit
REAL := tests/engine tests/hosts tests/vm tests/vagrant
SHARED := --numprocesses=$(WORKERS) --durations=20
# By another name: `make --dry-run` runs whole recipe lines that have the usual one.
SELF := $(MAKE)
# After the tests, whatever their status; what prepares is at its end, then.
PRUNED := status=$$?; wait; $(PYTHON) -m kit.prepare prune; exit $$status

help: ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  The steps of these: announce, check-python, check-crate, and setup, check-, demo-, first-, all- and"
	@echo "  nightly-setup, which install what is needed."
	@echo
	@echo "  Variables: FILE of engine-test, host-test and vm-test; DEMO_DRIVER (nvidia), DEMO_KERNEL (chosen),"
	@echo "  DEMO_DISTRO (debian:12) of demo; ONLY (every row) of bench; WORKERS ($(WORKERS)) of tests with"
	@echo "  engines, hosts and guests; HOMEPAGE, MAINTAINER (NAME <ADDRESS>) of the packages that dist makes; WORLD"
	@echo "  (debian:12, debian:13, debian:testing), in which bare Debian a target runs (root)."
	@echo "  What is kept between runs lies in \$$PROVISION_TEST_CACHE, else \$$XDG_CACHE_HOME/provision-tests,"
	@echo "  else /var/cache/provision-tests; it may be deleted at any time."

demo: announce demo-setup build ## The main job on real input: build a driver, install it, use it in containers (root)
	@$(PYTHON) -m demo

announce:
	@.ci/setup announce

uninstall-demo: ## Take back what `make demo` and the tests left: packages, caches, what `make clean` removes (root)
	@.ci/setup uninstall
	@$(MAKE) clean

check: check-setup ## Formats, lints, types, layers; the first tier's tests without root (under 3 minutes)
	@$(MAKE) --jobs=2 --output-sync=target IN_PAIRS=1 check-python check-crate

check-python: lint-python
	@$(SELF) quick

check-crate: lint-crate
	PROVISION_INSTALLS=no tests/in-memory.sh hooks/build.sh test

quick: ## The first tier's small tests alone
	PYTHONPATH=tests tests/in-memory.sh .venv/bin/python -m pytest $(QUICK) --tier=1 --numprocesses=2

lint-python: ## Formats, lints, types, layers and reference tables of Python
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports
	PYTHONPATH=release .venv/bin/python -m reference --check

# Here and in check-setup, nothing but .venv and caches of the user's own is installed.
lint-crate: ## Formats and lints of the crate
	PROVISION_INSTALLS=no hooks/build.sh check

# What the first engine begins with is made beside the compiler.
test: first-setup ## What a change must not break: all small tests, the main job on real input (root, 12 minutes)
	@PYTHONPATH=tests nice .venv/bin/python -m kit.prepare 1 & \
	$(SELF) --jobs=2 --output-sync=target IN_PAIRS=1 quick dev && \
	$(PYTEST) $(REAL) --tier=1 $(SHARED); $(PRUNED)

dev: ## The crate's tests, and the hook without optimization
	@tests/in-memory.sh hooks/build.sh dev

test-all: all-setup build ## What `make test` leaves out of a day: engines, hosts, a host's life, lints, release (root, 30 minutes)
	@PYTHONPATH=tests nice .venv/bin/python -m kit.prepare 2 & \
	$(SELF) --jobs=2 --output-sync=target IN_PAIRS=1 lint-python lint-crate && \
	$(PYTEST) $(QUICK) $(REAL) --tier=2 $(SHARED); $(PRUNED)

# From when make begins: set-up counts too.
END_BY := $(if $(MINUTES),$(or $(shell expr $$(date +%s) + 60 \* '$(MINUTES)' 2>/dev/null),$(error MINUTES is a whole number, not '$(MINUTES)')))
test-nightly: nightly-setup build ## What is long or rare, guests too (root, hours); MINUTES=25: what ends by then, by lot
	@$(PYTEST) $(QUICK) $(REAL) --tier=3 $(if $(END_BY),--end-by=$(END_BY)) $(SHARED); $(PRUNED)

engine-test: all-setup build ## Tests with real engines (root): FILE=test_chain for one file, else those of a day
	@$(PYTEST) tests/engine$(if $(FILE),/$(FILE).py, --tier=1 --tier=2) $(SHARED)

host-test: all-setup build ## Tests of hosts by Ansible and Ignition (root): FILE, as above
	@$(PYTEST) tests/hosts$(if $(FILE),/$(FILE).py, --tier=1 --tier=2) $(SHARED)

vm-test: nightly-setup build ## Tests in guests with kernels of their own (root): FILE=test_life for one file, else all, hours
	@$(PYTEST) tests/vm$(if $(FILE),/$(FILE).py) $(SHARED)

# At night: Debian 12, RPM distros, and that the same commit gives the same bytes, which is a second release.
packages-test: first-setup build ## The packages of a release on a bare Debian 13 (root)
	@.ci/setup dist
	$(PYTEST) tests/engine/test_packages.py -k 'not rpm and not same_bytes and not bookworm'

bench: all-setup build ## The table of speed and size, as ratios measured in one run (root); ONLY=ROW for one
	@$(PYTHON) -m bench $(if $(ONLY),--only '$(ONLY)')

gpu-kit: build ## What a machine with an NVIDIA GPU needs for our checks there, to be carried to it: build/gpu-kit
	@command -v go >/dev/null || .ci/setup install golang-go
	@$(PYTHON) -m kit.gpu_kit build/gpu-kit

mutants: first-setup build ## Mutants of agent, store, kmod, build and the crate's boundaries, and which the tests let live
	@command -v ip >/dev/null || .ci/setup install iproute2
	@$(PYTHON) -m bench.mutants
	@hooks/mutants.sh

build: setup ## The virtual environment, and the hook as build/oci-decorator
	@hooks/build.sh build

collection: build ## The Ansible collection and all that it brings, packed below build/
	@$(PYTHON) ansible/build_collection.py --output build

dist: build ## A release in build/dist: packages, wheel, collection, sums; with KEY and URL signed repositories
	@.ci/setup dist
	@$(MAKE) foreign
	@$(SHIPPING)
	$(if $(KEY)$(URL)$(PREVIOUS),@$(MAKE) dist-sign)

dist-sign: ## Sign the release of `make dist`, with KEY and URL; needs no other file than build/dist
	@PYTHONPATH=release:src python3 -m shipping.publish --output build/dist --key '$(KEY)' --url '$(URL)' $(if $(PREVIOUS),--previous '$(PREVIOUS)')

# The hook for the other architectures of a release, with rustup; FOREIGN= for none.
foreign: ## The hook for other architectures: FOREIGN (aarch64)
	@for arch in $(FOREIGN); do ARCH=$$arch hooks/build.sh build || exit; done

dist-verify: build ## Make the release of `make dist` again elsewhere, and compare every byte
	@$(SHIPPING) --verify

reference: setup ## The generated parts of docs/reference, from the code
	@PYTHONPATH=release .venv/bin/python -m reference

docs: ## The documentation as a site without a network, build/docs/index.html; a broken link is an error
	@.ci/setup docs
	@$(PYTHON) -m kit.pages stage build/docs-source
	@rm -rf build/docs
	build/docs-venv/bin/sphinx-build --quiet --fail-on-warning --keep-going --builder html \
		--doctree-dir build/docs-cache --conf-dir .ci/site build/docs-source build/docs
	@cp build/docs/README.html build/docs/index.html
	@$(PYTHON) -m kit.pages check build/docs

diagrams: ## The pictures of docs/diagrams, from their text (after a change; root where Graphviz is missing)
	@command -v dot >/dev/null || .ci/setup install graphviz
	@.ci/site/draw

recording: all-setup build ## A recording of a kernel upgrade, docs/diagrams/life.svg, from a real run (root)
	rm -f build/life.jsonl
	$(PYTEST) tests/vm/test_kernel_upgrade.py --numprocesses=0 --record=build/life.jsonl
	@PYTHONPATH=release .venv/bin/python -m screencast build/life.jsonl docs/diagrams/life.svg

clean: ## Remove everything that was made in this folder
	rm -rf .venv build hooks/target .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info
	find src tests -name __pycache__ -prune -exec rm -rf {} +

setup:
	@.ci/setup build

check-setup:
	@.ci/setup check

demo-setup:
	@.ci/setup demo

first-setup:
	@.ci/setup test

all-setup:
	@.ci/setup test-all

nightly-setup:
	@.ci/setup nightly

.PHONY: help demo demo-setup announce uninstall-demo check check-python check-crate quick lint-python lint-crate \
	test dev test-all test-nightly engine-test host-test vm-test packages-test foreign bench gpu-kit mutants build collection dist dist-sign dist-verify reference docs diagrams recording clean setup check-setup \
	first-setup all-setup nightly-setup

endif
