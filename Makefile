# What to type here, and nothing else: the work is done by tests/kit (set-up), tests/demo and
# tests/bench. Every target installs what it needs first, so that each works on a fresh machine.

MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:

# PYTHONPATH: kit, demo and bench are packages below tests/, not part of what is installed.
PYTHON := PYTHONPATH=tests .venv/bin/python
PYTEST := $(PYTHON) -m pytest
# Two hosts or guests at a time, each file's story in one process: a host mostly waits for Ansible, and
# an emulated guest mostly uses one core.
IN_PAIRS := --numprocesses=2 --dist=loadfile

help: ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Variables of demo: DEMO_DRIVER (nvidia), DEMO_KERNEL (chosen), DEMO_DISTRO (debian:12)."
	@echo "  What is kept between runs lies in \$$PROVISION_TEST_CACHE, else \$$XDG_CACHE_HOME/provision-tests,"
	@echo "  else /var/cache/provision-tests; it may be deleted at any time."

demo: build ## The main job on real input: build a driver, install it, use it in containers (root)
	@$(PYTHON) -m demo

test: check engine-test host-test vm-test ## All but the long stories: check, real engines, hosts, kernels (root, about an hour)

check: setup ## Format, lints, types, layers, unit and golden tests (under 3 minutes)
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports
	@$(PYTHON) -m kit.rust check
	@$(PYTHON) -m kit.rust test
	$(PYTEST) $(wildcard tests/unit tests/golden) tests/kit

engine-test: build
	$(PYTEST) tests/engine --durations=15

host-test: build ## The Ansible collection on Debian hosts in containers with systemd, by ssh (root)
	$(PYTEST) tests/hosts $(IN_PAIRS) --durations=15

vm-test: build ## Real kernels in QEMU guests, with or without KVM (root, some 30 minutes)
	$(PYTEST) tests/vm --ignore=tests/vm/long $(IN_PAIRS) --durations=15

vm-long-test: build ## More stories in guests: site.yml, CoreOS, kernels that come and go, mishaps (root; not part of test)
	$(PYTEST) tests/vm/long $(IN_PAIRS) --durations=15

vagrant-test: build ## `vagrant up`, provision and reload on a box made here (root; not part of test)
	@tests/kit/setup.sh install vagrant-libvirt libvirt-daemon-system dnsmasq-base slirp4netns iptables
	$(PYTEST) tests/vagrant --durations=5

bench: build ## The table of speed and size, as ratios measured in one run (root)
	@$(PYTHON) -m bench

build: setup ## The virtual environment, and the hook as build/oci-decorator
	@$(PYTHON) -m kit.rust build

clean: ## Remove everything that was made in this folder
	rm -rf .venv build hooks/target .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info
	find src tests -name __pycache__ -prune -exec rm -rf {} +

setup:
	@tests/kit/setup.sh packages
	@tests/kit/setup.sh venv

.PHONY: help demo test check engine-test host-test vm-test vm-long-test vagrant-test bench build clean setup
