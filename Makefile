# mcagent. `make` alone says what there is.
SHELL := /bin/bash
PY := .venv/bin/python
STEP := .ci/step
PYTEST := $(PY) -m pytest -q
# What computes: one process for each processor, which takes over tests of another that has more left.
EACH := -n $(shell nproc) --dist worksteal
# Twice the processors: many of these tests wait, for a deadline or the loopback.
MANY := -n $(shell echo $$((2 * $$(nproc))))
# Labs wait for timers, too, but they count packets; API servers are busy.
SOME := -n $(shell echo $$(($$(nproc) * 3 / 2)))
# Tests start very many processes of the same modules: compiled once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# Names this run of make: the flaky tests of all its suites are counted together (tests/flaky.py).
MCAGENT_TEST_RUN := $(or $(MCAGENT_TEST_RUN),$(shell date +%Y%m%d-%H%M%S)-$(shell echo $$PPID))
export MCAGENT_TEST_RUN

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test test-all test-rest flaky lint inventory language unit properties embedded kube antrea antrea-if-there contract lab attacks test-failover test-planned \
	test-kernel kernel-if-there lab-shell k8s k8s-demo e2e e2e-if-there conformance mutants coverage bench bench-compare image sbom release test-release chart docs site lock clean

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: ## Install what is missing: Debian packages, a virtual environment in .venv
	@.ci/setup

demo: setup ## Two clusters on this machine: real Open vSwitch, agents, controllers and packets
	@devtools/mclab demo $(DEMO)

quick: lint unit ## Static checks and unit tests: two minutes

test: lint unit properties embedded kube contract lab attacks flaky ## Tests of everything that runs on this machine's own kernel: 25 minutes on two processors

test-all: test test-rest ## All tests: `make test`, the kernel datapath, Antrea's controllers, real Kubernetes: 80 minutes

# What CI runs after `make test`. Programs of others that are not there are named, with the tests that need them.
test-rest: test-release antrea-if-there kernel-if-there test-planned e2e-if-there flaky

flaky: setup
	@$(PY) -m tests.flaky

lint: setup ## Static checks: style, types, layers
	@$(STEP) "style (ruff)" -- .venv/bin/ruff check .
	@$(STEP) "format (ruff)" -- .venv/bin/ruff format --check .
	@$(STEP) "types (mypy, strict)" -- .venv/bin/mypy
	@$(STEP) "layers (import-linter)" -- .venv/bin/lint-imports
	@$(STEP) "no test has disappeared" -- $(PY) -m devtools.test_inventory
	@$(STEP) "standard language" -- $(PY) -m devtools.language

inventory: setup ## List new test functions in tests/inventory, so that `make lint` notices when one disappears
	@$(PY) -m devtools.test_inventory --update

language: setup ## Lower the list of names and words that are still to be replaced (tests/language/allowed.txt)
	@$(PY) -m devtools.language --update

unit: setup ## Unit tests: values only, no root
	@$(STEP) -v "unit tests" -- $(PYTEST) $(EACH) -m "not costly" tests/unit

properties: setup ## Properties of whole worlds and of sequences of steps: values only, no root
	@$(STEP) -v "properties" -- $(PYTEST) $(EACH) -m costly tests/unit

embedded: setup ## The control plane, informers and admin commands on embedded API servers, over the loopback
	@tests/prometheus/find-prometheus --build >/dev/null || [ $$? -eq 1 ]
	@.ci/setup browser
	@$(STEP) -v "embedded API server tests" -- $(PYTEST) $(MANY) tests/embedded

contract: setup ## Each backend against the real thing, in namespaces (root)
	@$(STEP) -v "contract tests" -- $(PYTEST) -n auto --dist loadfile tests/contract

lab: setup ## Packets through labs of namespaces with real agents, `mclab demo --all-cnis` among them (root)
	@tests/prometheus/find-prometheus --build >/dev/null || [ $$? -eq 1 ]
	@$(STEP) -v "lab tests" -- $(PYTEST) $(SOME) --dist loadfile -m "not failover" tests/lab

attacks: setup ## What hostile clusters, Pods and users try (docs/security.md; root); BUDGET=5m generates attacks for so long
ifdef BUDGET
	@$(PY) -m tests.attacks.generated --budget $(BUDGET) $(ATTACKS)
else
	@tests/kube/find-apiserver --build >/dev/null || [ $$? -eq 1 ]
	@$(STEP) -v "attacks" -- $(PYTEST) -n auto --dist loadfile tests/attacks
endif

kube: setup ## What an API server must do: the embedded one, and real kube-apiserver and etcd (built if there is Go)
	@tests/kube/find-apiserver --build >/dev/null || [ $$? -eq 1 ]
	@$(STEP) -v "API server tests" -- $(PYTEST) $(SOME) --dist loadfile tests/kube

# Its worlds wait for Antrea's timers most of the time: all at once.
BESIDE_ANTREA := $(STEP) -v "beside Antrea" -- $(PYTEST) $(MANY) --dist loadfile tests/antrea
antrea: setup ## Beside Antrea's own controllers, real ones (left out where they are not: tests/antrea/programs.py) (root)
	@tests/kube/find-apiserver --build >/dev/null || [ $$? -eq 1 ]
	@$(BESIDE_ANTREA)

antrea-if-there: setup
	@$(BESIDE_ANTREA)

test-failover: setup ## Faults of gateways under load, against the clock: wants an idle machine (root)
	@$(STEP) -v "failover tests" -- $(PYTEST) -m failover tests/lab

# They count every datagram, so they run alone.
test-planned: setup ## Gateways that are drained, cordoned, deleted and created again lose no packet (root)
	@$(STEP) -v "planned changes of gateways" -- $(PYTEST) -m failover tests/lab/test_drain.py tests/lab/test_gateways_planned.py

test-kernel: setup ## Tests that depend on the datapath, on the kernel datapath, in test kernels (builds one if there is none)
	@$(STEP) "a test kernel" -- tests/kernel/find-kernel --build
	@$(STEP) -v "kernel lane" -- $(PY) tests/kernel/lane.py

kernel-if-there: setup
	@tests/kernel/find-kernel --build >/dev/null || true
	@$(STEP) -v "kernel lane" -- $(PY) tests/kernel/lane.py --optional

lab-shell: setup ## A shell in a running lab on the kernel datapath, in a test kernel (LAB=arguments of lab up)
	@tests/kernel/lab-shell $(LAB)

k8s: setup ## Two clusters of real Kubernetes on this machine: kubelets, containerd, CNIs (K8S=arguments of mck8s up)
	@devtools/mck8s setup
	@devtools/mck8s up $(K8S)

k8s-demo: setup ## mcagent on two such clusters: installed, joined, asked, a gateway's power taken; all removed again
	@devtools/mck8s setup
	@devtools/mck8s demo

e2e: setup ## The user guide, conformance and faults on two clusters of real Kubernetes, installed with the chart (root; builds once)
	@devtools/mck8s setup $(if $(MCS_CONFORMANCE),--conformance)
	@tests/helm/find-helm --build >/dev/null
	@$(STEP) -v "end to end" -- $(PYTEST) tests/e2e

# Only where the programs are already; the image is of this tree, so it is built.
e2e-if-there: setup
	@! devtools/k8s/find-programs >/dev/null 2>&1 || devtools/mck8s setup $(if $(MCS_CONFORMANCE),--conformance) >/dev/null
	@$(STEP) -v "end to end" -- $(PYTEST) tests/e2e

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
	@tests/helm/find-helm --build >/dev/null || [ $$? -eq 1 ]
	@$(STEP) -v "release" -- $(PYTEST) tests/release

chart: setup ## The Helm chart: linted, rendered, its manifests compared (builds Helm once if there is Go)
	@tests/helm/find-helm --build >/dev/null || [ $$? -eq 1 ]
	@$(STEP) -v "chart" -- $(PYTEST) tests/unit/test_chart.py tests/kube/test_chart.py

docs: setup ## Write the generated pages again (tests fail when they are stale)
	@$(PY) -m devtools.pipeline_tables docs/pipeline.md
	@$(PY) -m devtools.configuration_tables docs/configuration.md
	@$(PY) -m devtools.doctor_page docs/doctor.md
	@$(PY) -m tests.attacks.security_page docs/security.md
	@$(PY) -m tests.unit.metrics_page docs/reference/metrics.md
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
