# Each target makes the virtual environment when it is missing, and installs again only after
# pyproject.toml or constraints.txt changed. `make` alone prints what there is.

VENV ?= .venv
BENCH_ARGS ?=
FUZZ_S ?= 600
FUZZ_ARGS ?=
HOSTILE_S ?= 1800
HOSTILE_ARGS ?=
PAUSES ?= 0.003
SOAK_S ?= 1200
SOAK_ARGS ?=
PROGRAMS ?= 5000
IDENTITY_ARGS ?=
TEST_ARGS ?=
# Files and folders of the suite; none: all of it.
TESTED ?=
CORPUS_ARGS ?=
# Of the machine with the GPU: its interpreter, which has jax for CUDA; where the results lie, and
# those of an earlier run, which this one goes on; seconds for each part; which parts (none: all).
GPU_PYTHON ?= python3
GPU_OUT ?= dist/gpu
GPU_BEFORE ?=
GPU_TIME ?= 480
GPU_PARTS ?=
GPU_REHEARSAL ?=
GPU_AGAIN ?=
IMAGE ?= jaxd:py3.12
# Interpreters that `make dist` tries; none: one of each supported minor version that is found.
DIST_PYTHONS ?=
CLIENT_JAX ?= 0.6 0.7 0.8 0.9
LOCK_PYTHONS ?= python3.11 python3.12 python3.13
# Files are shared out among this many processes at most; each of those has a server of its own.
TEST_PROCESSES ?= 4
EXTRAS ?= server,demo,dev,libraries
DEMO_ARGS ?=

# The first of these that is 3.11 to 3.14 and can make a virtual environment. Asked by running it:
# a name on the PATH may be a shim for a version that is not installed.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3.14 python3; do \
  "$$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null \
  && { echo "$$p"; break; }; done)

bin := $(VENV)/bin
pip := $(bin)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
# By the file, because many fixtures of a module do the work of all its tests; in the order in which
# they stand, because the short ones come last.
parallel := -n logical --maxprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# Hundreds of processes are started that import the same sources: Python compiles them once, also
# where somebody has told it not to.
unexport PYTHONDONTWRITEBYTECODE

# What hypothesis reads out of all sources, and of Unicode, takes each process ten seconds to find; a new
# checkout has it as soon as it has the environment.
export HYPOTHESIS_STORAGE_DIRECTORY ?= $(abspath $(VENV))/.hypothesis

.DELETE_ON_ERROR:
.PHONY: help demo test slow test-docker test-variants soak faults fuzz hostile pauses lint lint-docker house bench clean
.PHONY: client-jax locks audit sbom corpus corpus-quick identity gpu gpu-wheels docs dist

help:
	@echo 'make demo    train on real digits from two fresh processes; the second compiles nothing'
	@echo 'make test    the test suite, in a few minutes (TEST_ARGS="-k name" for a part)'
	@echo 'make slow    the rest of it: the tests that take seconds each'
	@echo 'make soak    the tests that take minutes; then clients of all kinds while everything breaks,'
	@echo '             for SOAK_S=1200 seconds, 0 for not at all (SOAK_ARGS="--seed 7")'
	@echo 'make faults  the fault matrix: kill, stop, cut and starve everything, and check what clients see'
	@echo 'make fuzz    malformed bytes for every parser, for FUZZ_S=600 seconds (FUZZ_ARGS="frames message")'
	@echo 'make hostile a hostile server and a hostile client, for HOSTILE_S=1800 seconds, with an oracle in'
	@echo '             their victims (HOSTILE_ARGS="--revert all" reverts fixes: the holes must be found)'
	@echo 'make identity   PROGRAMS=5000 random programs, edited while they run, each answer compared with'
	@echo '             that of plain jax (IDENTITY_ARGS="--seed 7", "--switch-off all": must be found)'
	@echo 'make pauses  the test suite while every thread stops between lines now and then, which shows'
	@echo '             what depends on which is faster (PAUSES=0.003 of all lines)'
	@echo "make corpus  other people's programs by jaxd run, beside python, out of CORPUS_DIR"
	@echo '             (CORPUS_ARGS="--help"; --suites for their tests by pytest --jaxd)'
	@echo 'make corpus-quick   the part of it that needs no downloads'
	@echo 'make test-docker    build the image, run it, restart it (Docker, or root on Debian 12)'
	@echo 'make test-variants  resolve what the images for GPU and TPU install (downloads 6 GB)'
	@echo 'make locks   the hashes of what the images install (LOCK_PYTHONS="…/python3.11 …"; 10 GB)'
	@echo 'make audit   known vulnerabilities of what the images install; says so where nobody can be asked'
	@echo 'make sbom    what an image holds (IMAGE=jaxd:py3.12), as CycloneDX in dist/'
	@echo 'make lint    ruff check, ruff format --check, mypy --strict, lint-imports (who may import whom)'
	@echo 'make house   the figures of the source tree, and what breaks its rules'
	@echo 'make docs    the documents as a site, in dist/site; a warning is an error'
	@echo 'make dist    wheel and sdist in dist, checked, and tried in clean environments (DIST_PYTHONS="...")'
	@echo 'make bench   measure against plain jax, its disk cache and others (BENCH_ARGS="--help")'
	@echo 'make client-jax   clients with other versions of jax, CLIENT_JAX="0.6 0.7 0.8 0.9", beside this server'
	@echo 'make gpu     what needs a GPU, with GPU_PYTHON=python3 (its own jax) into GPU_OUT=dist/gpu, GPU_TIME=480'
	@echo '             seconds for each part; goes on where it stopped (GPU_REHEARSAL=1: on a CPU)'
	@echo 'make gpu-wheels   into dist/gpu-wheels what a machine with a GPU and no network lacks'
	@echo 'make clean   remove the environments and everything else that the targets wrote'
	@echo
	@echo 'EXTRAS=server,demo,dev leaves out flax, equinox, optax, haiku and others.'
	@echo 'PYTHON=python3.12 chooses the interpreter, VENV=.venv-3.12 the environment.'

demo: $(VENV)/.demo
	@$(bin)/python -m jaxd.cli demo $(DEMO_ARGS)

test: $(VENV)/.dev
	@$(bin)/python -m pytest -q $(parallel) $(TEST_ARGS) $(TESTED)

slow: $(VENV)/.dev
	@$(bin)/python -m pytest -q -m 'slow and not soak' $(parallel) $(TEST_ARGS) $(TESTED)

soak: $(VENV)/.dev
	@$(bin)/python -m pytest -q -m soak -o timeout=180 -o faulthandler_timeout=0 $(parallel) $(TEST_ARGS)
	@test $(SOAK_S) = 0 || PYTHONPATH=client:server:shared $(bin)/python -m tests.soak --seconds $(SOAK_S) $(SOAK_ARGS)

faults: $(VENV)/.dev
	@$(bin)/python -m pytest -q -m faults -o timeout=180 -o faulthandler_timeout=0 $(TEST_ARGS)

fuzz: $(VENV)/.fuzz
	@PYTHONPATH=client:server:shared $(bin)/python -m tests.fuzz --seconds $(FUZZ_S) $(FUZZ_ARGS)

hostile: $(VENV)/.dev
	@PYTHONPATH=client:server:shared $(bin)/python -m tests.hostile --seconds $(HOSTILE_S) $(HOSTILE_ARGS)

identity: $(VENV)/.dev
	@PYTHONPATH=$(CURDIR)/client:$(CURDIR)/server:$(CURDIR)/shared $(bin)/python -m tests.generator --programs $(PROGRAMS) $(IDENTITY_ARGS)

pauses: $(VENV)/.dev
	@PAUSES=$(PAUSES) PYTHONPATH=$(CURDIR)/tests/pauses $(bin)/python -m pytest -q -m 'not soak and not docker and not variants and not faults and not gpu' \
	  -o timeout=180 -o faulthandler_timeout=0 $(parallel) $(TEST_ARGS)

# A client has the jax of its user, and the server another one.
client-jax: $(VENV)/.dev
	@for v in $(CLIENT_JAX); do \
	  test -e $(VENV)-jax-$$v/.made || { echo "installing jax $$v into $(VENV)-jax-$$v (once) ..." \
	  && $(bin)/python -m venv --clear $(VENV)-jax-$$v \
	  && $(VENV)-jax-$$v/bin/python -m pip install -qq --disable-pip-version-check "jax==$$v.*" rpyc cloudpickle flatbuffers \
	  && touch $(VENV)-jax-$$v/.made; } || exit 1; \
	done
	@CLIENT_PYTHONS='$(foreach v,$(CLIENT_JAX),$(CURDIR)/$(VENV)-jax-$(v)/bin/python)' \
	  $(bin)/python -m pytest -q -m 'slow or not slow' -n 0 $(TEST_ARGS) tests/end_to_end/test_client_jax.py

test-docker: $(VENV)/.dev
	@$(bin)/python -m pytest -q -m docker -o timeout=0 -o faulthandler_timeout=0 $(TEST_ARGS)

test-variants: $(VENV)/.dev
	@$(bin)/python -m pytest -q -m variants -o timeout=0 -o faulthandler_timeout=0 $(TEST_ARGS)

locks:
	@cd docker && '$(PYTHON)' lock.py $(LOCK_PYTHONS)

# pip-audit ends with 1 when it found something, and also when the service does not answer or does not
# know a package (--strict).
audit: $(VENV)/.audit
	@found=0; for lock in docker/locks/*.txt; do \
	  said=$$($(bin)/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r "$$lock" 2>&1) \
	    && { echo "$$lock: $$said"; continue; }; \
	  echo "$$lock: $$said" | tail -n 20; \
	  case "$$said" in *Found*known*vulnerabilit*) found=1;; \
	    *) echo "$$lock: NOT CHECKED, the service could not be asked about all of it";; esac; \
	done; exit $$found

sbom:
	@mkdir -p dist
	@docker run --rm --entrypoint cat '$(IMAGE)' /opt/jaxd/sbom.cdx.json \
	  >'dist/$(subst /,-,$(subst :,-,$(IMAGE))).cdx.json'
	@echo 'dist/$(subst /,-,$(subst :,-,$(IMAGE))).cdx.json'

lint: $(VENV)/.dev lint-docker
	@$(bin)/python -m ruff check --quiet .
	@$(bin)/python -m ruff format --check --quiet .
	@$(bin)/python -m mypy --no-error-summary
	@$(bin)/lint-imports --no-cache --no-logo >/dev/null || { $(bin)/lint-imports --no-cache --no-logo; exit 1; }

corpus: $(VENV)/.dev
	@PYTHONPATH=client:server:shared $(bin)/python -m tests.corpus $(CORPUS_ARGS)

corpus-quick: $(VENV)/.dev
	@PYTHONPATH=client:server:shared $(bin)/python -m tests.corpus --quick --scratch $(CORPUS_ARGS)

house: $(VENV)/.dev
	@$(bin)/python -m tests.house

# hadolint has a program for one kind of processor only.
lint-docker: $(VENV)/.dev
	@test ! -x $(bin)/hadolint || $(bin)/hadolint --failure-threshold warning docker/Dockerfile
	@$(bin)/check-jsonschema --builtin-schema vendor.compose-spec -q docker/compose*.yaml
	@$(bin)/kubernetes-validate --strict docker/kubernetes.yaml >/dev/null

# The source folder is this one, so that links mean the same in the site and in the files.
docs: $(VENV)/.docs
	@PYTHONPATH=client:server:shared $(bin)/python -m sphinx -W --keep-going -n -q -j 2 -c docs -b html \
	  -d build/doctrees . dist/site
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' >dist/site/index.html
	@echo 'dist/site/index.html'

# Wheel and sdist are tried in clean environments; DIST_PYTHONS names the interpreters.
dist: $(VENV)/.dist
	@$(bin)/python -m tests.documents.distribution $(DIST_PYTHONS)

bench: $(VENV)/.dev
	@$(bin)/python -m benchmarks $(BENCH_ARGS)

# With no environment of its own: jax and its plugin are those of the machine.
gpu:
	@GPU_AGAIN='$(GPU_AGAIN)' '$(GPU_PYTHON)' -m tests.gpu --output '$(GPU_OUT)' --seconds $(GPU_TIME) \
	  --wheels dist/gpu-wheels --parts '$(GPU_PARTS)' $(if $(GPU_BEFORE),--before '$(GPU_BEFORE)') \
	  $(if $(GPU_REHEARSAL),--rehearsal)

gpu-wheels: $(VENV)/.dev
	@$(bin)/python -m tests.gpu.carried dist/gpu-wheels

clean:
	@rm -rf .venv .venv-* build dist
	@rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find client server shared tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made:
	@test -n '$(PYTHON)' || { \
	  echo 'make: no Python 3.11 to 3.14 that can make a virtual environment was found.'; \
	  echo 'On Debian or Ubuntu: apt-get install python3 python3-venv'; \
	  echo 'Or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12'; exit 1; } >&2
	@'$(PYTHON)' -m venv '$(VENV)'
	@touch $@

# The environment for development holds all that the demo needs, so it counts as both.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.made
	@echo 'installing jaxd[$(EXTRAS)] into $(VENV) (once; one to three minutes) ...'
	@$(pip) -e '.[$(EXTRAS)]'
	@touch $(VENV)/.demo $@

$(VENV)/.fuzz: $(VENV)/.dev
	@$(pip) -e '.[fuzz]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(pip) -e '.[docs]'
	@touch $@

$(VENV)/.dist: $(VENV)/.made pyproject.toml constraints.txt
	@$(pip) -e '.[dist]'
	@touch $@

$(VENV)/.audit: $(VENV)/.made pyproject.toml constraints.txt
	@$(pip) -e '.[audit]'
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.made
	@echo 'installing jaxd[server,demo] into $(VENV) (once; one to three minutes) ...'
	@$(pip) -e '.[server,demo]'
	@touch $@
