# mcagent. `make` alone says what there is.
SHELL := /bin/bash
PY := .venv/bin/python
STEP := .ci/step
SUITES := $(PY) -m tests.suites
# Tests start very many processes of the same modules: compiled once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup leftovers demo quick test gate test-all repeat affected test-lab test-timing packets test-quarantined lint inventory language unit properties embedded kube antrea contract lab attacks test-failover test-planned \
	test-kernel lab-shell k8s k8s-demo e2e conformance mutants coverage bench bench-compare image sbom release test-release chart docs site lock clean

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: ## Install what is missing: Debian packages, a virtual environment in .venv
	@.ci/setup

leftovers: setup ## Remove what interrupted runs left: labs, namespaces, temporary directories; print what is free
	@-$(PY) -m devtools.leftovers

demo: ## Two clusters on this machine: real Open vSwitch, agents, controllers and packets
	@.ci/setup demo
	@-$(PY) -m devtools.leftovers
	@devtools/mclab demo $(DEMO)

quick: lint unit ## Static checks and unit tests: two minutes

test: leftovers lint ## The tests that CI runs: a quarter of an hour on two processors
	@$(SUITES) unit properties embedded kube contract packets attacks

gate: ## What CI will do with HEAD: a clone in a temporary directory, .ci/run in a clean environment
	@.ci/gate

test-all: leftovers ## All tests, or PARTS="lab timing"; a row in docs/notes/test-runs.md. Also the kernel datapath, Antrea, real Kubernetes
	@$(PY) -m tests.all_suites $(PARTS)

affected: setup ## The parts of test-all that belong to what changed (SINCE=main)
	@$(PY) -m tests.affected $(or $(SINCE),main)

repeat: setup ## A test many times beside two busy processes (TEST=tests/..., TIMES=20)
	@$(PY) -m tests.under_load '$(TEST)' --times $(or $(TIMES),20)

test-quarantined: setup ## Tests that fail without a fault of the code (tests/quarantine.txt)
	@$(SUITES) quarantined

lint: setup ## Static checks: style, types, layers
	@$(STEP) "style (ruff)" -- .venv/bin/ruff check .
	@$(STEP) "format (ruff)" -- .venv/bin/ruff format --check .
	@$(STEP) "types (mypy, strict)" -- .venv/bin/mypy
	@$(STEP) "layers (import-linter)" -- .venv/bin/lint-imports
	@$(STEP) "no test has disappeared" -- $(PY) -m devtools.test_inventory
	@$(STEP) "standard language" -- $(PY) -m devtools.language
	@$(STEP) "regular expressions without ambiguous repetition" -- $(PY) -m devtools.patterns

inventory: setup ## List new test functions in tests/inventory, so that `make lint` notices when one disappears
	@$(PY) -m devtools.test_inventory --update

language: setup ## Lower the list of names and words that are still to be replaced (tests/language/allowed.txt)
	@$(PY) -m devtools.language --update

unit: setup ## Unit tests: values only, no root
	@$(SUITES) unit

properties: setup ## Properties of whole worlds and of sequences of steps: values only, no root
	@$(SUITES) properties

embedded: setup ## The control plane, informers and admin commands on embedded API servers, over the loopback
	@$(SUITES) embedded

contract: setup ## Each backend against the real thing, in namespaces (root)
	@$(SUITES) contract

packets: setup ## Packets through labs of namespaces with real agents: one lab for each capability of the dataplane (root)
	@$(SUITES) packets

test-lab: setup ## All other labs: every CNI profile, tutorials, the demo, faults (root)
	@$(SUITES) lab

lab: setup ## Both of them (root)
	@$(SUITES) packets lab

test-timing: setup ## Tests that assert a time, a rate, or that nothing is lost (root)
	@$(SUITES) timing

attacks: setup ## What hostile clusters, Pods and users try (docs/security.md; root); BUDGET=5m generates attacks for so long
ifdef BUDGET
	@$(PY) -m tests.attacks.generated --budget $(BUDGET) $(ATTACKS)
else
	@$(SUITES) attacks
endif

kube: setup ## What an API server must do: the embedded one, and real kube-apiserver and etcd (built if there is Go)
	@$(SUITES) kube

antrea: setup ## Beside Antrea's own controllers, real ones (left out where they are not: tests/antrea/programs.py) (root)
	@$(SUITES) antrea

test-failover: setup ## Faults of gateways under load, against the clock: wants an idle machine (root)
	@$(SUITES) failover

# They count every datagram, so they run alone.
test-planned: setup ## Gateways that are drained, cordoned, deleted and created again lose no packet (root)
	@$(SUITES) planned

test-kernel: setup ## Tests that depend on the datapath, on the kernel datapath, in test kernels (builds one if there is none)
	@$(STEP) "a test kernel" -- tests/kernel/find-kernel --build
	@$(STEP) -v "kernel lane" -- $(PY) -m tests.kernel.lane

lab-shell: setup ## A shell in a running lab on the kernel datapath, in a test kernel (LAB=arguments of lab up)
	@tests/kernel/lab-shell $(LAB)

k8s: setup ## Two clusters of real Kubernetes on this machine: kubelets, containerd, CNIs (K8S=arguments of mck8s up)
	@devtools/mck8s setup
	@devtools/mck8s up $(K8S)

k8s-demo: leftovers ## mcagent on two such clusters: installed, joined, asked, a gateway's power taken; all removed again
	@devtools/mck8s setup
	@devtools/mck8s demo

e2e: setup ## The user guide, conformance and faults on two clusters of real Kubernetes, installed with the chart (root; builds once)
	@devtools/mck8s setup $(if $(MCS_CONFORMANCE),--conformance)
	@$(SUITES) e2e

conformance: setup ## The MCS API's conformance suite on two clusters of real Kubernetes (MCS_CONFORMANCE=its program; root)
	@[ -z "$(MCS_CONFORMANCE)" ] || devtools/mck8s setup --conformance
	@devtools/mck8s conformance --optional $(CONFORMANCE)

mutants: setup ## Which small changes of the code no unit test notices (BUDGET=20m, SINCE=a revision, or SAMPLE=150, PACKAGE=one)
	@$(PY) -m devtools.mutants $(if $(SAMPLE),--sample $(SAMPLE),--budget $(or $(BUDGET),20m)) \
	  $(if $(SINCE),--since $(SINCE)) $(if $(PACKAGE),--package $(PACKAGE)) $(MUTANTS)

coverage: setup ## Which code unit and embedded tests do not run, by package; fails below the floors of pyproject.toml
	@$(PY) -m devtools.coverage_floors

bench: setup ## Measurements: printed, not asserted (root)
	@for b in tests/bench/*.py; do b=$${b%.py}; echo "==> $$b"; $(PY) -m "$${b//\//.}" || exit 1; done

bench-compare: setup ## Ratios of benchmarks of two revisions, in alternating rounds (REF=revision, COMPARE=options of devtools.bench_compare; root)
	@$(PY) -m devtools.bench_compare $(REF) $(COMPARE)

image: ## The images of agent and controllers, and of Open vSwitch, with buildah, podman or docker (BUILDER=, BUILD_FLAGS=)
	@deploy/image/build agent
	@deploy/image/build openvswitch

sbom: ## What is in the image, Debian's and Python's packages: dist/sbom.spdx.json
	@deploy/image/build sbom

release: setup ## The files of a release, from HEAD: dist/release (RELEASE=--without-images, or --platforms linux/amd64,linux/arm64)
	@.ci/setup images
	@$(PY) -m devtools.release $(RELEASE)

test-release: setup ## That two builds of a release have the same bytes, and that its files work
	@$(SUITES) release

chart: setup ## The Helm chart: linted, rendered, its manifests compared (builds Helm once if there is Go)
	@$(SUITES) chart

docs: setup ## Write the generated pages again (tests fail when they are stale)
	@$(PY) -m devtools.pipeline_tables docs/pipeline.md
	@$(PY) -m devtools.configuration_tables docs/configuration.md
	@$(PY) -m devtools.doctor_page docs/doctor.md
	@$(PY) -m tests.attacks.security_page docs/security.md
	@$(PY) -m tests.worlds.metrics_page docs/reference/metrics.md
	@$(PY) -m devtools.cli_page docs/reference/cli.md
	@$(PY) -m devtools.crd_page docs/reference/crds.md
	@$(PY) -m devtools.chart_schema deploy/helm/mcagent/values.schema.json
	@$(PY) -m devtools.dashboards deploy/helm/mcagent/files/monitoring/dashboards
	@$(PY) deploy/generate

site: setup ## The documentation as a site, built strictly: dist/site
	@NO_MKDOCS_2_WARNING=1 $(STEP) "documentation (mkdocs, strict)" -- .venv/bin/mkdocs build --strict

lock: setup ## Resolve the locked versions anew (needs uv)
	uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    pyproject.toml -o .ci/requirements.lock
	uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    pyproject.toml --group dev -o .ci/requirements-dev.lock
	uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    --group build -o .ci/requirements-build.lock

clean: ## Remove what the build made here (not Debian packages)
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist build
