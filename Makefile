# Entry points for people and for CI. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

NAME ?= default
CLUSTER ?= tests/cluster/clusters/default.yaml
KEEP ?=
ARGS ?=
NODES ?= 5000
ONLY ?=
TABLE ?=
SILENT ?=
VERSION ?=
FILTER ?= policies_together:: sharing:: quiet:: rejected:: samples:: unhealthy_taint::
TARGET := target
CLUSTER_CMD := $(TARGET)/release/gpunode-cluster
CARGO_DENY_VERSION := 0.20.2
CARGO_MACHETE_VERSION := 0.9.2
MDBOOK_VERSION := 0.5.4

.PHONY: help
help: ## list the entry points
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: kubernetes images ## show gpunode on a cluster of simulated GPU nodes; KEEP=1 leaves it up
	@KEEP=$(KEEP) tests/e2e/demo.sh

.PHONY: check
check: ## formatting, clippy and every test that needs neither root nor a cluster: the first thing to run
	@tests/check.sh

.PHONY: test
test: ## everything that CI runs: check, lint, the demo, and the tests that need root and local clusters
	@tests/run.sh

.PHONY: packages
packages:
	@tests/cluster/install-packages.sh

.PHONY: kubernetes
kubernetes: packages
	@tests/cluster/build/build.sh

.PHONY: programs
programs: ## build the programs; the kubectl plugin goes into target/cluster/bin
	@echo "building gpunode (release)"
	@cargo build --release --locked -p gpunode-agent -p gpunode-operator -p kubectl-gpunode -p gpunode-fake-nvml -p gpunode-cluster
	@node-agent/hook/build.sh "$(CURDIR)/$(TARGET)" --release
	@tests/mps-control/build.sh
	@install -D -m 755 $(TARGET)/release/kubectl-gpunode $(TARGET)/cluster/bin/kubectl-gpunode

.PHONY: images
images: programs ## archives of the two images in target/images
	@manifests/images/build.sh $(TARGET)/release $(TARGET)/images

.PHONY: cluster-up
cluster-up: kubernetes images ## a local cluster with gpunode installed (NAME=default, CLUSTER=file.yaml)
	@$(CLUSTER_CMD) up --name $(NAME) --cluster $(CLUSTER)
	@tests/cluster/install-gpunode.sh $(NAME)

.PHONY: cluster-down
cluster-down: ## stop the local cluster (NAME=default)
	@test -x $(CLUSTER_CMD) || cargo build --release --locked -p gpunode-cluster
	@$(CLUSTER_CMD) down --name $(NAME)

.PHONY: crds
crds: ## generate manifests/crds from crds/src
	@cargo build --workspace --locked --quiet --bin gpunode-crds
	@$(TARGET)/debug/gpunode-crds manifests/crds

.PHONY: docs
docs: ## generate docs/reference and docs/pictures from the CRDs, the programs and their metrics
	@cargo build --workspace --locked --quiet --bin gpunode-docs --bin kubectl-gpunode --bin gpunode-operator --bin gpunode-agent
	@$(TARGET)/debug/gpunode-docs references docs

.PHONY: book
book: mdbook ## build the documentation site in target/book
	@tests/docs/book.sh

.PHONY: chart
chart: ## generate templates, schema and README tables of manifests/helm/gpunode
	@cargo build --workspace --locked --quiet --bin gpunode-chart
	@$(TARGET)/debug/gpunode-chart

.PHONY: lint
lint: cargo-deny cargo-machete mdbook ## formatting, clippy, docs, licences, generated files, the site, purity of the pure crates
	@tests/lint.sh

# cargo-deny runs for seconds; without optimisation it compiles in half the time.
.PHONY: cargo-deny
cargo-deny:
	@cargo deny --version 2>/dev/null | grep -qx 'cargo-deny $(CARGO_DENY_VERSION)' \
	  || cargo install --locked --debug --version $(CARGO_DENY_VERSION) cargo-deny

.PHONY: cargo-machete
cargo-machete:
	@[ "$$(cargo machete --version 2>/dev/null)" = '$(CARGO_MACHETE_VERSION)' ] \
	  || cargo install --locked --version $(CARGO_MACHETE_VERSION) cargo-machete

# Two minutes on one core; without optimisation it builds the site in seconds.
.PHONY: mdbook
mdbook:
	@[ "$$(mdbook --version 2>/dev/null)" = 'mdbook v$(MDBOOK_VERSION)' ] \
	  || cargo install --locked --debug --no-default-features --features search --version $(MDBOOK_VERSION) mdbook

.PHONY: function-order
function-order: programs ## record which functions an agent executes, and write node-agent/function-order.txt
	@tests/function-order/run.sh

.PHONY: bench
bench: kubernetes images ## measure the figures of docs/benchmarks.md, compare them with their targets, write them there
	@tests/bench.sh

.PHONY: bench-fleet
bench-fleet: $(if $(filter index,$(ONLY)),,kubernetes) ## measure 5,000 simulated nodes (NODES=5000, ONLY=labels,failover, ONLY=index, TABLE=1)
	@NODES=$(NODES) ONLY=$(ONLY) TABLE=$(TABLE) KEEP=$(KEEP) SILENT=$(SILENT) tests/bench-fleet.sh

# Two builds: built together, the agent would get features of the check. This agent runs on the host, whose glibc
# may be older than that of the image.
.PHONY: gpu-check
gpu-check: ## compare gpunode with nvidia-smi on this machine, which has a GPU; changes no setting of it (ARGS=--help)
	@GPUNODE_OLDER_GLIBC=1 cargo build --release --locked -p gpunode-agent
	@cargo build --release --locked -p gpunode-gpu-check
	@$(TARGET)/release/gpunode-gpu-check $(ARGS)

.PHONY: version
version: ## write VERSION=x everywhere, and cut CHANGELOG.md; then commit, and make release
	@release/version.sh "$(VERSION)"

.PHONY: release
release: ## build what a release publishes, twice with equal digests, into target/releases/VERSION (VERSION=x, docs/release.md)
	@release/build.sh "$(VERSION)"

.PHONY: dashboards
dashboards: ## draw the Grafana dashboards with recorded series in a browser, and write the pictures of docs/monitoring.md
	@tests/monitoring/pictures.sh

.PHONY: oldest
oldest: kubernetes images ## cluster tests on the oldest Kubernetes that gpunode supports (FILTER= for all of them)
	@FILTER="$(FILTER)" tests/oldest.sh

.PHONY: soak
soak: kubernetes images ## kill agents at random and fuzz, each test for long (SOAK_SECONDS=1800, GPUNODE_SOAK_SEED=n)
	@tests/soak.sh
