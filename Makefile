# Two commands on a fresh machine: `make quickstart` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt
TRITON := triton==3.6.0

.PHONY: quickstart test test-all test-gpu test-faults browser packaged lint types format lock clean

quickstart: .venv/core
	$(BIN)/elektron pretrain

test: .venv/test lint types browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto  # a core for each, rather than all for one

# Beside these the products of all choices of all objectives, in minutes.
test-all: test
	OMP_NUM_THREADS=1 $(BIN)/pytest -m grid

# All the faults of docs/reliability.md, many times each, and processes that train together. Half an hour, or it hangs.
test-faults: .venv/test
	OMP_NUM_THREADS=1 timeout --foreground --signal=INT 1800 $(BIN)/pytest -n auto -m 'faults or distributed' --faults full

# On a machine with a GPU: the kernels on it, in bfloat16 too.
test-gpu: .venv/test
	$(BIN)/pytest tests/kernels/test_*_kernel.py tests/train/test_step.py tests/train/test_distributed.py

# The page is looked at in Debian's Chromium. Where it is not and cannot be had, those tests are skipped and say so.
browser:
	@command -v chromium >/dev/null || { \
	    if [ "$$(id -u)" != 0 ]; then why='not root'; \
	    elif ! command -v apt-get >/dev/null; then why='no apt-get'; \
	    elif echo 'installing chromium, to look at the page with'; { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
	        chromium fonts-liberation; } >/dev/null 2>&1; then why=; else why='apt-get failed'; fi; \
	    [ -z "$$why" ] || echo "no chromium ($$why): the tests in a browser are skipped"; }

# The model that comes with Elektron, made anew: CORPUS is its text, DEV has marked errors to calibrate with.
packaged: .venv/core
	$(BIN)/elektron pretrain configs/packaged.toml --corpus $(CORPUS)
	$(BIN)/elektron export runs/elektron-english --to src/elektron/packaged --weights float16 --licence apache-2.0 \
		--text "It has read 407 MB of English Wikipedia (2015, CC BY-SA 3.0) and 327 MB of books in the public domain."
	$(BIN)/elektron calibrate src/elektron/packaged --dev $(DEV)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test
	$(BIN)/basedpyright

format: .venv/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

# Triton for its interpreter, in which kernels are tested without a GPU. It is no dependency: a torch for GPUs brings its
# own.
.venv/test: .venv/core
	$(PIP) --editable '.[test]' $(TRITON)
	touch $@

# The same environment for CI, by checksums: nothing is installed that is not listed, not even to build with.
.venv/hashed: .ci/requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip --disable-pip-version-check install --quiet --require-hashes --requirement $<
	$(BIN)/pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	touch .venv/core .venv/test $@

# To be run, on a machine like CI's, when constraints.txt has changed.
lock:
	$(PYTHON) -m venv .venv
	$(PIP) --dry-run --ignore-installed --report - --requirement constraints.txt '.[test]' $(TRITON) hatchling editables \
		| $(PYTHON) .ci/lock.py > .ci/requirements.txt

clean:
	rm -rf .venv runs build dist .pytest_cache .ruff_cache .hypothesis
