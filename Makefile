# `make demo` and `make test` are all a newcomer needs: each makes .venv and installs what it needs.
# PYTHON=... chooses the interpreter (3.11 or newer) that .venv is made from.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
PYTEST_ARGS ?=

# One thread for each test process: two cores are enough. (worksteal: a module on one of them.)
TEST_ENV = JAX_PLATFORMS=cpu OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	XLA_FLAGS="--xla_cpu_multi_thread_eigen=false"
# Tests compile plainly, for speed (tests/conftest.py); these flags compile them as users do.
AS_USERS = --xla_backend_optimization_level=3 --xla_cpu_use_fusion_emitters=true

.PHONY: demo test test-compiled lint smoke bench lock clean
.DELETE_ON_ERROR:

demo: .venv/.demo
	$(BIN)/meanfield doctor
	$(BIN)/meanfield run digits_training
	$(BIN)/meanfield run ntk_digits --preset smoke
	$(BIN)/meanfield figures digits_training ntk_digits

test: .venv/.test
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal $(PYTEST_ARGS)

# Every formula and its derivatives against other routes, in the programs that users run.
test-compiled: .venv/.test
	$(TEST_ENV) XLA_FLAGS="$(AS_USERS)" $(BIN)/pytest -n 2 --dist worksteal tests/gradients tests/consistency

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# Every experiment at its smallest, with all claims checked, then every figure and the report.
smoke: .venv/.demo
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(TEST_ENV) $(BIN)/meanfield run all --preset smoke --jobs 2 --check --out "$$folder" && \
	$(BIN)/meanfield figures --check --results "$$folder" && \
	$(BIN)/meanfield report "$$folder"

bench: .venv/.demo
	for file in experiments/bench/*.py; do $(BIN)/python $$file || exit $$?; done

# One file for Python 3.11, 3.12 and 3.13: the versions differ by environment markers.
lock: .venv/.test
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras \
		--strip-extras --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--upgrade -q -o requirements.lock

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@test -n "$(PYTHON)" || \
		{ echo "no Python found; expected Python >= 3.11; pass PYTHON=/path/to/python3"; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is no Python >= 3.11; pass PYTHON=/path/to/python3"; exit 2; }
	"$(PYTHON)" -m venv --clear .venv
	touch $@

.venv/.demo: .venv/.made pyproject.toml requirements.lock
	$(BIN)/python -m pip install -q -e '.[data]' -c requirements.lock
	touch $@

.venv/.test: .venv/.made pyproject.toml requirements.lock
	$(BIN)/python -m pip install -q -e '.[data,dev]' -c requirements.lock
	touch $@ .venv/.demo
