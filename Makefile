# The commands of the README and of CI are these.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.wager

.PHONY: setup native demo test parity lint bench exact engines arm wheel wheel-test clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements-dev.txt CMakeLists.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -r requirements-dev.txt
	flock $(VENV)/.lock $(BIN)/pip install -q --no-build-isolation --no-deps -e .
	$(BIN)/python -c "from wager.ops.base import choose; ops = choose('auto', 1); print('op set:', ops.name, ops.instruction_set)"
	touch $@

# Rebuild the extension after a change under native/.
native: $(STAMP)
	flock $(VENV)/.lock $(BIN)/pip install -q --no-build-isolation --no-deps -e .
	$(BIN)/python -c "import wager._native" || \
	  { echo "the extension did not build; see: $(BIN)/pip install -v --no-build-isolation --no-deps -e ."; exit 1; }

demo: setup
	$(BIN)/wager pull smollm2-135m
	$(BIN)/wager bench smollm2-135m --workload copy,rename,explain,random --clients 1 --demo

test: setup
	$(BIN)/wager pull smollm2-135m
	$(BIN)/python -m pytest -q -m "not parity and not engines and not exact and not wheel"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

parity: setup
	$(BIN)/pip install -q -r requirements-parity.txt
	$(BIN)/wager pull smollm2-135m
	$(BIN)/python -m pytest -q -m parity

exact: setup
	$(BIN)/wager pull smollm2-135m
	$(BIN)/python -m pytest -q -m exact

bench: setup
	$(BIN)/wager pull smollm2-135m
	$(BIN)/python -m benchmarks.run_all

engines: setup
	scripts/peers.sh .peers
	$(BIN)/wager pull smollm2-135m
	$(BIN)/python -m pytest -q -m engines

# The ARM kernels under an emulator.
arm:
	scripts/check_arm.sh

# The sdist, and from it alone this platform's wheel. On Linux auditwheel names the oldest system
# that it runs on, and refuses a wheel without the extension.
wheel: setup
	$(BIN)/pip install -q -r requirements-wheel.txt
	rm -rf dist
	$(BIN)/python -m build
	test -z "$$(ls dist | grep -e '-none-any\.whl$$')" || { echo "the extension did not build"; exit 1; }
	if test "$$(uname)" = Linux; then \
	  PATH="$(abspath $(BIN)):$$PATH" auditwheel repair -w dist dist/*-linux_*.whl && \
	  rm dist/*-linux_*.whl; fi
	ls -l dist

wheel-test: wheel
	$(BIN)/python -m pytest -q -m wheel

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
