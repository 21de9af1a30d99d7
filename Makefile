# `make test` and `make parity` do all their set-up: they need Python 3.11 or newer and a C++ compiler, and nothing else.
# The table in CONTRIBUTING.md says which proof runs where.

MAKEFLAGS += --no-builtin-rules # with them, make looks for a rule for each source file
PYTHON := python3
VENV := .venv
BIN = $(VENV)/bin
REQUIREMENTS := requirements.txt
WANTED = -r $(REQUIREMENTS)
SOURCES := $(shell find unified_clip -type f -not -path '*/__pycache__/*' -not -name '*.so') pyproject.toml
# Tests start hundreds of Python processes. Where this variable forbids to keep compiled modules, each compiles them anew.
export PYTHONDONTWRITEBYTECODE :=

ALL_FRAMEWORKS := torch jax tensorflow paddle numpy
NIGHTLY_FRAMEWORKS := mlx

# FRAMEWORKS: the frameworks that `make parity` and `make test` install and run, as in FRAMEWORKS="torch paddle".
comma := ,
empty :=
space := $(empty) $(empty)
CHOSEN := $(sort $(subst $(comma), ,$(FRAMEWORKS)))
ifneq ($(filter-out $(ALL_FRAMEWORKS) $(NIGHTLY_FRAMEWORKS),$(CHOSEN)),)
$(error FRAMEWORKS has an unknown name: $(filter-out $(ALL_FRAMEWORKS) $(NIGHTLY_FRAMEWORKS),$(CHOSEN)). Choose from: \
	$(ALL_FRAMEWORKS) $(NIGHTLY_FRAMEWORKS))
endif

# $(RUN) NAME NOTE COMMAND: lines with what runs, how far it is, and its result. --show: the command prints, too.
RUN = $(PYTHON) tools/progress.py

.PHONY: test test-all test-chosen nightly coverage lint style tables gpu-torch gpu-code sanitize parity parity-run \
	parity-chosen wheel-test oldest bench bench-smoke native-tables record clean gpu gpu-jax docs site \
	$(foreach name,$(ALL_FRAMEWORKS) $(NIGHTLY_FRAMEWORKS),test-$(name) env-$(name))

# -- the change tier: what every change has to pass

# One suite more at once than there are cores, because suites also wait for other processes. Each runs in one process, the
# longest first. All run, even if one fails.
# ALSO: the other checks of .ci/run.
CORES := $(shell getconf _NPROCESSORS_ONLN)
AT_ONCE = -j$(shell expr $(CORES) + 1) --keep-going --no-print-directory
SUITES := suite-unit suite-torch suite-jax suite-tensorflow suite-paddle style device-torch suite-numpy tables
CHECKS = $(SUITES) $(ALSO:sanitize=$(SANITIZERS))
LONGEST_FIRST = kernels-address,undefined suite-unit suite-torch suite-jax suite-tensorflow kernels-thread suite-paddle \
	kernels-baseline gpu-code gpu-torch style parity device-torch suite-numpy tables
test: $(if $(CHOSEN),test-chosen,test-all)

test-all:
	@$(MAKE) -j2 --no-print-directory $(VENV)/requirements $(VENV)/wheel
	@$(MAKE) $(AT_ONCE) WORKERS= $(filter $(CHECKS),$(LONGEST_FIRST)) $(filter-out $(LONGEST_FIRST),$(CHECKS))

test-chosen:
	@$(MAKE) --keep-going --no-print-directory $(CHOSEN:%=test-%)

# The tests of one framework, in an environment that has no other.
$(ALL_FRAMEWORKS:%=test-%): test-%:
	@$(MAKE) --no-print-directory VENV=.venv-$* REQUIREMENTS=requirements/$*.txt suite-$*

# Only the environment of one framework, with the package.
$(ALL_FRAMEWORKS:%=env-%) $(NIGHTLY_FRAMEWORKS:%=env-%): env-%:
	@$(MAKE) --no-print-directory VENV=.venv-$* REQUIREMENTS=requirements/$*.txt .venv-$*/package

# For a framework that only the nightly tier tests, both paths and its cases of the parity suite.
$(NIGHTLY_FRAMEWORKS:%=test-%): test-%:
	@$(MAKE) --no-print-directory VENV=.venv-$* REQUIREMENTS=requirements/$*.txt suite-$* device-$* parity-$*

# One process imports one framework: two can crash. A suite by itself runs in several such processes; a file's tests stay
# in one of them, since they share what its fixtures start.
WORKERS = -n auto --maxprocesses 8 --dist loadfile
PYTEST = $(if $(COVERAGE),$(BIN)/coverage run) $(BIN)/pytest -q $(WORKERS) $(if $(NIGHTLY),,-m "not nightly")

# XLA's and LLVM's optimizations, and XLA's code for fused operations, take most of the time of JAX's tests: the nightly
# tier has them.
suite-jax: SETTING = $(if $(NIGHTLY),,JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS=--xla_cpu_use_fusion_emitters=false)

# TensorFlow contains XLA, too.
suite-tensorflow: SETTING = $(if $(NIGHTLY),,XLA_FLAGS="--xla_backend_optimization_level=0 \
	--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false")

# The kernels for GPUs: run on an emulated GPU, and compiled for several real ones. .ci/run does both if they have changed.
GPU_TESTS := $(wildcard tests/frameworks/test_torch_gpu_*.py)
suite-torch: LEFT_OUT = $(GPU_TESTS:%=--ignore=%)

suite-% gpu-%: export UNIFIED_CLIP_NATIVE = 1
suite-%: $(VENV)/package
	@$(SETTING) $(RUN) $@ "all tests that use $*" \
		$(PYTEST) tests/contract tests/frameworks tests/distributed tests/integrations --framework $* $(LEFT_OUT)

gpu-torch: $(VENV)/package
	@$(RUN) $@ "the kernels for GPUs, on an emulated GPU" $(PYTEST) $(GPU_TESTS) --framework torch

gpu-code: $(VENV)/package
	@$(RUN) $@ "the kernels for GPUs, compiled by NVRTC" $(BIN)/pytest -q tests/unit/native/test_gpu_code.py

suite-unit: $(VENV)/package
	@$(RUN) $@ "tests that need no framework" $(PYTEST) tests/unit tests/docs tests/meta

lint: style tables

style: $(VENV)/requirements
	@$(RUN) $@ "ruff and mypy" sh -c "$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy"

TABLES := benchmarks/tables.py benchmarks/speed_plot.py tools/formats_table.py tools/command_line.py tools/port_differences.py \
	tools/native_tables.py tools/differences_plot.py
tables: $(VENV)/package
	@$(RUN) $@ "the generated tables and plots" sh -c "$(TABLES:%=$(BIN)/python % --check &&) true"

# WITHOUT: modes to leave out, by default two that take most of the time: torch.compile, and four processes. `WITHOUT=` runs
# all modes.
WITHOUT = compiled,processes_4
parity: $(if $(CHOSEN),parity-chosen,parity-run)

parity-run: $(VENV)/package
	@$(RUN) --show parity "the cases of parity/ on $(sort numpy $(or $(CHOSEN),$(ALL_FRAMEWORKS))), then report/index.html" \
		$(BIN)/unified-clip parity --out report $(if $(WITHOUT),--without $(WITHOUT)) \
		$(if $(CHOSEN),--frameworks $(subst $(space),$(comma),$(sort numpy $(CHOSEN))))

# An environment with these frameworks and what the suite needs, in the versions of requirements/. The suite calls optax.
parity-chosen: EXTRAS = cli $(filter-out numpy,$(CHOSEN:jax=optax))
parity-chosen:
	@$(MAKE) --no-print-directory VENV=.venv-parity-$(subst $(space),-,$(CHOSEN)) SIZE="$(SIZE_OF_CHOSEN)" \
		WANTED="-r pyproject.toml $(EXTRAS:%=--extra %) $(CHOSEN:%=-c requirements/%.txt)" parity-run

$(NIGHTLY_FRAMEWORKS:%=parity-%): parity-%: $(VENV)/package
	$(BIN)/unified-clip parity --frameworks numpy,$* --out build/parity-$*

# -- the nightly tier: every proof there is. A release needs it green.

# One part that fails does not hide the others. WITHOUT: of `make parity`, not of this.
nightly:
	$(MAKE) --keep-going --no-print-directory WITHOUT= NIGHTLY=1 lint coverage device-jax device-tensorflow \
		device-paddle suite-jax-x64 device-jax-x64 $(NIGHTLY_FRAMEWORKS:%=test-%) without-torch emulated-torch gpu-code sanitize \
		parity bench-smoke wheel-test oldest docs

# All tests on all paths. NumPy has no device path, and PyTorch's covers the core's.
coverage: export COVERAGE = 1
coverage: export NIGHTLY = 1
coverage: $(VENV)/package
	@echo "== coverage"
	rm -f .coverage .coverage.*
	$(MAKE) --keep-going --no-print-directory suite-unit $(ALL_FRAMEWORKS:%=suite-%) gpu-torch device-torch \
		without-numpy
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --fail-under=95
	$(BIN)/coverage report --include='*/_core/*,*/_api/*,*/_distributed/*,*/_compute/device.py' --fail-under=100

PATHS := device-torch device-jax device-tensorflow device-paddle device-mlx without-numpy without-torch
device-%: export UNIFIED_CLIP_PATH = framework
device-%: export UNIFIED_CLIP_NATIVE = 1
without-%: export UNIFIED_CLIP_NATIVE = 0
$(PATHS): $(VENV)/package
	@$(RUN) $@ "the contract on another path" $(PYTEST) tests/contract --framework $(lastword $(subst -, ,$@))

# With the kernels for GPUs, on an emulated GPU.
emulated-torch: export UNIFIED_CLIP_PATH = framework
emulated-torch: export UNIFIED_CLIP_EMULATED_GPU = 1
emulated-torch: export UNIFIED_CLIP_NATIVE = 1
emulated-torch: $(VENV)/package
	@$(RUN) $@ "the contract with the kernels for GPUs" $(PYTEST) tests/contract --framework torch

# On a machine with a CUDA device, in an environment with this package and a CUDA build of PyTorch: tests with the kernels
# and without, memory errors where NVIDIA's checker is installed, then times. It takes about ten minutes on an H100, and
# writes build/gpu/summary.txt after each step.
gpu: export PYTHONSAFEPATH = 1
gpu:
	@python -c "import sys, torch; torch.cuda.is_available() or sys.exit('make gpu needs a GPU: PyTorch finds no CUDA device. \
	Use a machine that has one, and a CUDA build of PyTorch.')"
	python tools/gpu_checks.py --out build/gpu

# The contract on JAX's arrays on a GPU.
gpu-jax: export PYTHONSAFEPATH = 1
gpu-jax:
	python -m pytest -q -p no:cacheprovider -W default -m "not nightly" tests/contract --framework jax-cuda

# With x64, what depends on dtypes.
NUMBERS := classes clipping containers derivatives in_place norms rejections sparse memory
device-jax-x64: export UNIFIED_CLIP_PATH = framework
suite-jax-x64 device-jax-x64: $(VENV)/package
	@$(RUN) $@ "the contract with x64" $(PYTEST) $(NUMBERS:%=tests/contract/test_%.py) --framework jax-x64

# The kernels' tests on builds of their own, which stay under build/: two that stop at the first fault they see (misused
# memory and undefined behaviour; races between threads), and two with narrower vectors. GCC on x86-64 Linux only.
# die_after_fork: a child of fork() starts threads of its own, which this sanitizer refuses unless told otherwise.
# pip's cache would mix builds that run at once, and sanitizers hold on to released memory, which one test measures.
SANITIZERS := kernels-address,undefined kernels-thread kernels-baseline
sanitize: $(VENV)/requirements
	@$(MAKE) $(AT_ONCE) $(SANITIZERS) $(if $(NIGHTLY),kernels-avx2)

# Sanitizers check what the source does. Most of their build is GCC's optimizations, which the nightly tier has.
kernels-%: FLAGS = -fsanitize=$* -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
kernels-%: OPTIMIZATION = $(if $(NIGHTLY),-O3,-O1)
kernels-baseline kernels-avx2: FLAGS =
kernels-baseline kernels-avx2: OPTIMIZATION = -O3
# The instruction sets to compile: the tests run with the widest that the processor has, so a wider one is left out.
VECTORS = AVX2$(if $(shell grep -m 1 avx512bw /proc/cpuinfo),;AVX512)
kernels-baseline: VECTORS =
kernels-avx2: VECTORS = AVX2
kernels-%: PRELOAD = $(shell g++ -print-file-name=$(if $(filter thread,$*),libtsan.so,libasan.so)) \
	$(shell g++ -print-file-name=libstdc++.so)
kernels-baseline kernels-avx2: PRELOAD =
kernels-%: TESTS = $(wildcard tests/unit/native/test_*.py)
kernels-thread: TESTS = $(addprefix tests/unit/native/test_,native.py native_lists.py threads.py xla.py)
# Tests in graphs whose gradients are short, and of memory, run in one thread: only the nightly tier checks them for races.
OPERATORS = tests/frameworks/test_torch_operators.py
kernels-thread: OPERATORS += $(if $(NIGHTLY),,-k "not test_torch_operators and not keeps_no_long_one or several_threads")
# Vectors may change the bits of a result, not how graphs call the kernels.
kernels-baseline: OPERATORS += $(if $(NIGHTLY),,-k "not test_torch_operators or bits or half_way")
kernels-%: export UNIFIED_CLIP_NATIVE = 1
kernels-%:
	@CXX=g++ $(RUN) $@ "compile with $(OPTIMIZATION) $(FLAGS), vectors $(VECTORS)" \
		$(BIN)/pip install -q --no-cache-dir --no-deps --no-build-isolation --upgrade --target build/$@/site \
		-C build-dir=build/$@/cmake -C install.strip=false $(UNITY) -C cmake.define.CMAKE_CXX_FLAGS="$(FLAGS)" \
		-C cmake.define.CMAKE_CXX_FLAGS_RELEASE="$(OPTIMIZATION) -DNDEBUG" \
		-C cmake.define.CLIP_VECTORS="$(VECTORS)" .
	@$(RUN) $@ "tests of the kernels" env LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS=detect_leaks=0 \
		UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:die_after_fork=0 \
		PYTHONPATH=build/$@/site $(BIN)/pytest -q -p no:cacheprovider --capture=sys $(if $(NIGHTLY),,-m "not nightly") \
		--deselect tests/unit/native/test_native_lists.py::test_memory_of_results_is_used_again_and_given_back \
		$(TESTS) tests/frameworks/test_torch_collected_gradients.py $(OPERATORS) --framework torch

# What users get: a source archive, a wheel from it, built in isolation, and tests where NumPy is the only framework. The
# environment has no NVRTC, which `gpu-code` needs.
# Without a compiler the archive is installed all the same, unless the kernels are required.
wheel-test: WHEEL = build/wheel-test
wheel-test:
	rm -rf $(WHEEL)
	python3 -m venv $(WHEEL)
	$(WHEEL)/bin/pip install -q --upgrade pip build
	UNIFIED_CLIP_NATIVE=1 $(WHEEL)/bin/python -m build --outdir $(WHEEL)/dist .
	$(WHEEL)/bin/pip install -q --group test "$$(echo $(WHEEL)/dist/*.whl)[cli]"
	UNIFIED_CLIP_NATIVE=1 $(WHEEL)/bin/pytest -q -p no:cacheprovider --framework numpy \
		tests/unit/native tests/contract --ignore tests/unit/native/test_gpu_code.py
	CXX=false $(WHEEL)/bin/pip install -q --no-deps --force-reinstall $(WHEEL)/dist/*.tar.gz
	$(WHEEL)/bin/python -Pc 'import unified_clip; assert not unified_clip.native_available()'
	! UNIFIED_CLIP_NATIVE=1 CXX=false $(WHEEL)/bin/pip install -q --no-deps --force-reinstall $(WHEEL)/dist/*.tar.gz 2> /dev/null

# The oldest releases that pyproject.toml allows, each framework in an environment of its own: docs/install.md.
oldest: oldest-numpy oldest-torch oldest-tensorflow oldest-paddle oldest-jax oldest-mlx

oldest-%: ENV = build/$@
oldest-%: EXTRAS = $* cli
oldest-numpy: EXTRAS = cli
oldest-jax: EXTRAS = optax cli
oldest-%: OLDEST_PYTHON = $(or $(shell python3.10 -c "import sys; print(sys.executable)" 2> /dev/null),$(PYTHON))
# Not in the clone, whose package has no kernels: Python 3.10 looks for packages where it starts.
oldest-%: CONTRACT = sh -c 'cd $(ENV) && exec bin/pytest -q $(WORKERS) -p no:cacheprovider \
	-c $(CURDIR)/pyproject.toml $(CURDIR)/tests/contract $(CURDIR)/tests/frameworks/test_each_*.py --framework $* "$$@"' sh
oldest-%:
	rm -rf $(ENV)
	$(OLDEST_PYTHON) -m venv $(ENV)
	$(ENV)/bin/pip install -q uv
	UNIFIED_CLIP_NATIVE=1 $(ENV)/bin/uv pip install -q --python $(ENV) --resolution lowest-direct \
		--group test -r pyproject.toml $(EXTRAS:%=--extra %) .
	@$(RUN) $@ "the contract with the oldest releases, host path" env UNIFIED_CLIP_NATIVE=1 $(CONTRACT)
	@[ $* = numpy ] || $(RUN) $@ "the same on the device path, without nightly tests" \
		env UNIFIED_CLIP_PATH=framework $(CONTRACT) -m "not nightly"

# The site, in build/site. A warning, such as of a broken link, is an error. So is a public name without a signature,
# parameters, errors or an example. The browser runs the notebook on a wheel without kernels.
docs:
	$(MAKE) --no-print-directory VENV=.venv-docs REQUIREMENTS=requirements/docs.txt site

site: export NO_MKDOCS_2_WARNING = 1
site: export UNIFIED_CLIP_NATIVE = 0
site: $(VENV)/requirements
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tools.site
	rm -rf build/wheel
	CXX=false $(BIN)/pip wheel -q --no-deps --wheel-dir build/wheel .
	cd build && $(abspath $(BIN))/jupyter lite build --apps lab --no-unused-shared-packages --no-sourcemaps \
		--contents ../docs/notebook.ipynb --piplite-wheels $(CURDIR)/build/wheel/*.whl --output-dir docs/lite
	$(BIN)/mkdocs build --strict
	$(BIN)/python -m tools.site.rendered

# About 35 minutes on two cores, in which nothing else should run.
bench: $(VENV)/package
	UNIFIED_CLIP_NATIVE=1 $(BIN)/unified-clip bench --out benchmarks/results
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/speed_plot.py

# Whether every pair runs. The times mean nothing, and tests/frameworks/test_each_bench.py compares the numbers.
bench-smoke: $(VENV)/package
	UNIFIED_CLIP_NATIVE=1 $(BIN)/unified-clip bench --out build/bench \
		--frameworks torch,tensorflow,paddle,jax,numpy --lists 10x10 --seconds 0.01

# The tables in docs/native_differences.md, after a run of the parity suite.
native-tables: $(VENV)/package
	$(BIN)/python tools/native_tables.py
	$(BIN)/python tools/differences_plot.py

# New recordings differ from the committed ones in their last bits on other processors.
record: $(VENV)/package
	$(BIN)/python tools/record_gradients.py

$(VENV)/package: $(VENV)/requirements $(VENV)/wheel
	@$(BIN)/pip install -q --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@touch $@

# nanobind's files are compiled as one, which takes a third of the processor time.
UNITY = -C cmake.define.CMAKE_UNITY_BUILD=ON -C cmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE=0

# `make test` builds the wheel while it installs the frameworks. An interrupted build leaves no wheel behind. AVX-512 is left
# out if the processor has only AVX2.
AVX2_ONLY = $(if $(shell grep -m 1 -w avx2 /proc/cpuinfo 2> /dev/null | grep -v avx512bw),-C cmake.define.CLIP_VECTORS=AVX2)
$(VENV)/wheel: $(VENV)/tools $(SOURCES)
	@rm -rf $@ $@.part
	@UNIFIED_CLIP_NATIVE=1 $(RUN) kernels "compile unified_clip" \
		$(BIN)/pip wheel -q --no-deps --no-build-isolation --wheel-dir $@.part $(UNITY) $(AVX2_ONLY) .
	@mv $@.part $@

$(VENV)/requirements: $(VENV)/tools $(REQUIREMENTS) $(wildcard requirements/*.txt)
	@$(RUN) install "$(SIZE)" $(UV_INSTALL) $(WANTED)
	@touch $@

# Megabytes to download. The rest: NumPy, the command line and the build tools; for the tests, also Triton and all other tools.
MB_torch := 210
MB_tensorflow := 650
MB_paddle := 210
MB_jax := 160
MB_mlx := 15
sum_of = $(shell expr $(2) $(foreach framework,$(1),+ 0$(MB_$(framework))))
CUDA := $(if $(PIP_FIND_LINKS),, and several GB of CUDA if PyTorch is not its CPU build)
SIZE_OF_ALL = $(ALL_FRAMEWORKS) and the tools for tests, about $(call sum_of,$(ALL_FRAMEWORKS),300) MB to download$(CUDA)
SIZE_OF_CHOSEN = $(sort numpy $(CHOSEN)), about $(call sum_of,$(CHOSEN),80) MB to download$(if $(filter torch,$(CHOSEN)),$(CUDA))
SIZE = $(if $(filter requirements.txt,$(REQUIREMENTS)),$(SIZE_OF_ALL),$(REQUIREMENTS))

# uv installs these 5 GB in a third of pip's time. It does not read pip's settings, so lists of wheels are passed on.
UV_INSTALL = $(BIN)/uv pip install -q --python $(VENV) $(PIP_FIND_LINKS:%=--find-links %)
$(VENV)/tools: requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d. Pass a newer Python, as in: \
	make PYTHON=python3.11" % sys.version_info[:2])'
	@$(RUN) tools "make $(VENV), and install the tools that compile unified_clip" sh -c "$(PYTHON) -m venv $(VENV) && \
		$(BIN)/pip install -q uv && $(UV_INSTALL) -r $<"
	@touch $@

clean:
	rm -rf .venv .venv-* report build .coverage*
