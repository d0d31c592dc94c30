# Targets for a checkout of hpcfwi. `make` lists them.

CONFIG ?=
RANKS ?= $(if $(CONFIG),2,1)
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup run test torture test-gpu memcheck-gpu lint docs bench bench-gpu job-gpu performance
.PHONY: clean

# The launcher of ranks, for all recipes and for the tests. A rank uses several threads, so that it must
# not be bound to one core. The other variables are only for Open MPI 4 and 5. They allow root, which
# containers use; allow more ranks than cores, and then let waiting ranks yield their core; and avoid
# copies between ranks that need ptrace rights, which containers do not have.
export MPIRUN ?= mpirun --bind-to none
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_btl_vader_single_copy_mechanism := none
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMPI_MCA_mpi_yield_when_idle := 1
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Keep compiled modules, so that not every rank of every run and test compiles them.
unexport PYTHONDONTWRITEBYTECODE

# Four files of tests run at a time, with one thread each. The files that launch ranks or start a cluster
# come first, because they wait more than they compute. The tests of the engines and of inversions
# follow, because they take longest and should not run alone at the end.
SLOW_TESTS := tests/run/ tests/slurm/ tests/parallel/ tests/wave/ tests/inversion/
TEST_FOLDERS = $(sort $(dir $(wildcard tests/*/test_*.py tests/*/*/test_*.py)))
TESTS = $(SLOW_TESTS) $(wildcard tests/test_*.py) $(filter-out $(SLOW_TESTS:=%),$(TEST_FOLDERS))
SIDE_BY_SIDE := --numprocesses=4 --dist=loadfile --no-loadscope-reorder

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: .venv/.complete ## install everything into .venv, and MPI and parallel HDF5 with apt if allowed

.venv/.complete: setup.cfg pyproject.toml .ci/setup.sh
	@.ci/setup.sh
	@touch $@

run: setup ## invert the Marmousi model (CONFIG=inputs/marmousi.toml RANKS=2 for another input)
	@$(if $(CONFIG),,echo "Looking for the Marmousi2 model, which is fetched the first time." && \
	    hpcfwi dataset marmousi2 --to build --quiet)
	$(MPIRUN) -n $(RANKS) hpcfwi run $(or $(CONFIG),inputs/marmousi_best.toml)

# Tests that are marked "long" are variants of others, with more ranks, kills or targets.
FORMS ?= -m "not long"
test: setup ## run the tests (ARGS="-k gradient" selects, FORMS= adds the long tests, HPCFWI_DATA=DIR the real models)
	@OMP_NUM_THREADS=1 pytest $(SIDE_BY_SIDE) $(FORMS) $(ARGS) $(TESTS)

torture: FORMS := -m long
torture: test ## run the long tests, then kill or signal a small inversion 200 times; 45 minutes (BLOWS=20 SEED=1)
	@python -m tests.torture $(or $(BLOWS),200) $(SEED)

# Files that may use the name of a parameter: the parameters of models, the equations and what solves
# the acoustic one, and the known models.
NAMES_VP := model.py|inversion/parameters|wave/(equation|autograd|problem|engines/)|datasets|bench

# With PYTHON=python3 the targets for GPUs use that Python and the checkout, without a .venv. Compiled
# kernels are kept between targets, in a folder of this user.
COMPILED = /tmp/hpcfwi-$$(id -u)
PLACES = PYTHONPATH=$(CURDIR):$$PYTHONPATH TRITON_CACHE_DIR=$${TRITON_CACHE_DIR:-$(COMPILED)} \
    NUMBA_CACHE_DIR=$${NUMBA_CACHE_DIR:-$(COMPILED)}
ON_GPU = $(PLACES) $(or $(PYTHON),python)
GPU_TESTS := cells tiles kernels loop engine scattering staggered ranks
test-gpu: $(if $(PYTHON),,setup) ## check that the engines agree on this machine's GPU
	@$(or $(PYTHON),python) -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
	    || echo "There is no GPU here: Triton interprets the kernels, and what needs a GPU is skipped."
	$(ON_GPU) -m pytest $(ARGS) $(addprefix tests/wave/engines/gpu/test_,$(addsuffix .py,$(GPU_TESTS)))

# Without PyTorch's cache each array has separate memory; otherwise an access beyond an array may be
# valid, in the next array.
memcheck-gpu: $(if $(PYTHON),,setup) ## look for accesses beyond arrays on this machine's GPU, with compute-sanitizer
	$(PLACES) PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \
	    $(or $(PYTHON),python) -m pytest $(or $(ARGS),-k "format or sampled or rebuilt or batch") \
	    tests/wave/engines/gpu/test_engine.py

bench-gpu: $(if $(PYTHON),,setup) ## measure this machine's GPU (OUT=DIR, CASES="256x256x256 4096x4096")
	$(ON_GPU) benchmarks/gpu.py $(if $(OUT),--output $(OUT)) $(if $(CASES),--cases $(CASES))

job-gpu: $(if $(PYTHON),,setup) ## invert Marmousi on this GPU twice, and on two ranks, and compare the bits (CONFIG=, OUT=DIR)
	$(ON_GPU) benchmarks/job.py $(or $(CONFIG),inputs/marmousi.toml) $(if $(OUT),--output $(OUT))

MOST_IMPORTS := 24
lint: setup ## check style, types and the direction of imports
	ruff check
	ruff format --check
	mypy
	lint-imports
	@! grep -rnw --include='*.py' vp hpcfwi | grep -vE '^hpcfwi/($(NAMES_VP))' \
	    || { echo "vp is named where any parameter of a model may stand."; exit 1; }
	@grep -rc --include='*.py' '^from hpcfwi' hpcfwi | awk -F: '$$2 > $(MOST_IMPORTS) { bad = 1; \
	    print $$1 " imports from " $$2 " modules of hpcfwi; expected at most $(MOST_IMPORTS)" } END { exit bad }'

docs: .venv/.docs ## build the documentation of README.md, docs/, examples/ and docstrings in build/docs
	python docs/keys.py
	sphinx-build -q --fresh-env --fail-on-warning --keep-going -c docs -d build/doctrees . build/docs
	@echo "build/docs/README.html"

.venv/.docs: setup.cfg | setup
	pip install --quiet --disable-pip-version-check --no-warn-conflicts \
	    --no-build-isolation --editable '.[docs]'
	@touch $@

# Deepwave and Devito see the packages of .venv, but .venv does not see them: Devito brings a package that
# is named `benchmarks`, like the folder. pip would warn of versions of packages in .venv that are installed
# without their dependencies on purpose, such as torchvision.
build/peers/.complete: setup.cfg | setup
	python -m venv build/peers
	python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	    > "$$(build/peers/bin/python -c 'import site; print(site.getsitepackages()[0])')/venv.pth"
	build/peers/bin/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts \
	    --editable '.[deepwave,devito]'
	@touch $@

bench: setup build/peers/.complete ## measure this machine, and compare hpcfwi with Deepwave and Devito, which needs a C compiler
	hpcfwi bench
	build/peers/bin/python benchmarks/engines.py
	build/peers/bin/python benchmarks/engines.py --long

performance: setup ## write docs/performance.md and the tables of docs/cluster.md from benchmarks/results
	python benchmarks/report.py

clean: ## remove the files that setup and the checks created; keep runs/
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
