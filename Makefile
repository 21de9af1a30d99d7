# `make parity` and `make test` do all their set-up: they need Python 3.11 and a C++ compiler, and nothing else.

VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find unified_clip -type f -not -path '*/__pycache__/*' -not -name '*.so') pyproject.toml

.PHONY: test sanitize wheel-test oldest parity bench native-tables lint coverage record clean

test: lint coverage

# One process for each framework: two in one process can crash. Two processes at a time, the longest first.
SUITES := suite-torch suite-jax suite-jax-x64 suite-tensorflow suite-unit suite-paddle suite-without-torch \
	suite-numpy suite-without-numpy

coverage: $(VENV)/package
	rm -f .coverage .coverage.*
	UNIFIED_CLIP_NATIVE=1 $(MAKE) -j2 --output-sync=target --no-print-directory $(SUITES)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --include='*/_core/*' --fail-under=100
	$(BIN)/coverage report --fail-under=95

# NumPy has no device path. What is measured for coverage takes half as long again: PyTorch's device path covers the core's.
suite-%:
	@echo "== $*, host path"
	$(BIN)/coverage run $(BIN)/pytest -q tests/contract tests/frameworks tests/integrations --framework $*
	@[ $* = numpy ] || echo "== $*, device path"
	[ $* = numpy ] || UNIFIED_CLIP_PATH=framework $(if $(filter torch,$*),$(BIN)/coverage run) \
		$(BIN)/pytest -q tests/contract --framework $*
	@[ $* != torch ] || echo "== $*, device path without float64"
	[ $* != torch ] || UNIFIED_CLIP_PATH=pairs $(BIN)/coverage run $(BIN)/pytest -q tests/contract --framework $*

# With x64, what depends on dtypes.
NUMBERS := classes clipping containers derivatives examples in_place nonfinite norms refusals sparse values whole
suite-jax-x64:
	@echo "== jax with x64, host path"
	$(BIN)/pytest -q $(NUMBERS:%=tests/contract/test_%.py) --framework jax-x64
	@echo "== jax with x64, device path"
	UNIFIED_CLIP_PATH=framework $(BIN)/pytest -q $(NUMBERS:%=tests/contract/test_%.py) --framework jax-x64

suite-without-%:
	@echo "== $*, without the compiled kernels"
	UNIFIED_CLIP_NATIVE=0 $(if $(filter numpy,$*),$(BIN)/coverage run) $(BIN)/pytest -q tests/contract --framework $*

suite-unit:
	@echo "== the parts that need no framework"
	$(BIN)/coverage run $(BIN)/pytest -q tests/unit

# The kernels' tests on builds of their own, which stay under build/: two that stop at the first fault they see (misused
# memory and undefined behaviour; races between threads), and two with narrower vectors. GCC on x86-64 Linux only.
# pip's cache would mix builds that run at once, and sanitizers hold on to released memory, which one test measures.
sanitize: $(VENV)/requirements
	$(MAKE) -j2 --output-sync=target --no-print-directory \
		kernels-address,undefined kernels-thread kernels-x86-64 kernels-x86-64-v3

kernels-%: FLAGS = -fsanitize=$* -fno-sanitize-recover=all -fno-omit-frame-pointer -g
kernels-%: PRELOAD = $(shell g++ -print-file-name=$(if $(filter thread,$*),libtsan.so,libasan.so)) \
	$(shell g++ -print-file-name=libstdc++.so)
kernels-x86-64 kernels-x86-64-v3: FLAGS = -march=$*
kernels-x86-64 kernels-x86-64-v3: PRELOAD =
kernels-%: TESTS = $(wildcard tests/unit/test_native*.py)
kernels-thread: TESTS = tests/unit/test_native.py tests/unit/test_native_lists.py
kernels-%: export UNIFIED_CLIP_NATIVE = 1
kernels-%:
	@echo "== the kernels' tests, built with $(FLAGS)"
	CXX=g++ $(BIN)/pip install -q --no-cache-dir --no-deps --no-build-isolation --upgrade --target build/$@/site \
		-C build-dir=build/$@/cmake -C cmake.define.CMAKE_CXX_FLAGS="$(FLAGS) -DCLIP_WIDE=" .
	LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
		PYTHONPATH=build/$@/site $(BIN)/pytest -q -p no:cacheprovider --capture=sys \
		--deselect tests/unit/test_native_lists.py::test_memory_of_results_is_used_again_and_given_back \
		$(TESTS) tests/frameworks/test_torch_whole.py --framework torch

# What users get: a source archive, a wheel from it, built in isolation, and tests where there is nothing but NumPy. Without
# a compiler the archive is installed all the same, unless the kernels are required.
wheel-test: WHEEL = build/wheel-test
wheel-test:
	rm -rf $(WHEEL)
	python3 -m venv $(WHEEL)
	$(WHEEL)/bin/pip install -q --upgrade pip build
	UNIFIED_CLIP_NATIVE=1 $(WHEEL)/bin/python -m build --outdir $(WHEEL)/dist .
	$(WHEEL)/bin/pip install -q --group test $(WHEEL)/dist/*.whl
	UNIFIED_CLIP_NATIVE=1 $(WHEEL)/bin/pytest -q -p no:cacheprovider --framework numpy \
		tests/unit/test_native*.py tests/contract
	CXX=false $(WHEEL)/bin/pip install -q --no-deps --force-reinstall $(WHEEL)/dist/*.tar.gz
	$(WHEEL)/bin/python -Pc 'import unified_clip; assert not unified_clip.native_available()'
	! UNIFIED_CLIP_NATIVE=1 CXX=false $(WHEEL)/bin/pip install -q --no-deps --force-reinstall $(WHEEL)/dist/*.tar.gz 2> /dev/null

# The oldest releases that pyproject.toml allows, each framework in an environment of its own: docs/versions.md.
oldest: oldest-numpy oldest-torch oldest-tensorflow oldest-paddle oldest-jax

oldest-%: ENV = build/$@
oldest-%: EXTRAS = $* cli
oldest-numpy: EXTRAS = cli
oldest-jax: EXTRAS = jax bench
oldest-%:
	rm -rf $(ENV)
	python3 -m venv $(ENV)
	$(ENV)/bin/pip install -q uv
	UNIFIED_CLIP_NATIVE=1 $(ENV)/bin/uv pip install -q --python $(ENV) --resolution lowest-direct \
		--group test -r pyproject.toml $(EXTRAS:%=--extra %) .
	@echo "== $*, host path"
	UNIFIED_CLIP_NATIVE=1 $(ENV)/bin/pytest -q -p no:cacheprovider tests/contract --framework $*
	@[ $* = numpy ] || echo "== $*, device path"
	[ $* = numpy ] || UNIFIED_CLIP_PATH=framework $(ENV)/bin/pytest -q -p no:cacheprovider tests/contract --framework $*
	$(ENV)/bin/unified-clip parity --frameworks $* --out $(ENV)/report

lint: $(VENV)/package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python benchmarks/tables.py --check
	$(BIN)/python -m unified_clip.config.formats.table --check
	$(BIN)/python -m unified_clip.port.differences --check

parity: $(VENV)/package
	$(BIN)/unified-clip parity --out report
	$(BIN)/python parity/native_tables.py --check report/parity.json

# Nineteen minutes on two cores, in which nothing else should run.
bench: $(VENV)/package
	UNIFIED_CLIP_NATIVE=1 $(BIN)/unified-clip bench --out benchmarks/results
	$(BIN)/python benchmarks/tables.py

# The tables in docs/native_differences.md, after a run of the parity suite.
native-tables: $(VENV)/package
	$(BIN)/python parity/native_tables.py report/parity.json

# New recordings differ from the committed ones in their last bits on other processors.
record: $(VENV)/package
	$(BIN)/python parity/record_gradients.py

$(VENV)/package: $(VENV)/requirements $(SOURCES)
	UNIFIED_CLIP_NATIVE=1 $(BIN)/pip install -q --no-deps --no-build-isolation --force-reinstall .
	touch $@

$(VENV)/requirements: requirements.txt
	python3 -m venv $(VENV)
	$(BIN)/pip install -q -r requirements.txt
	touch $@

clean:
	rm -rf $(VENV) report build .coverage*
