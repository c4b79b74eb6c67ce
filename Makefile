# make book    install everything, run every notebook on this computer, build the book
# make test    all checks: style, types, tests, notebooks, the book in a browser
# make bench   measure how fast the parts are
# make serve   show the book at http://127.0.0.1:8000, with full-text search
# make lock    write requirements.lock anew from pyproject.toml
# make clean   remove the book and what tests left; results in .reglib and .venv stay
#
# PYTHON=python3.12 chooses another Python, PROFILE=workstation a longer run (see README.md).

PROFILE ?= laptop
BIN := .venv/bin
# Where the tests put their own book, so that yours stays.
TRY := $(CURDIR)/_build/test
TRYING := REGLIB_EXECUTED=$(TRY)/executed REGLIB_STORE=$(TRY)/store
CHROMIUM := chromium chromium-browser google-chrome

.PHONY: book test bench serve lock clean chromium
.DELETE_ON_ERROR:

book: .venv/installed
	$(BIN)/python -m suite run --profile $(PROFILE)
	$(BIN)/python -m suite book
	@echo "The book: open file://$(CURDIR)/_build/html/index.html"

# The newest Python that runs and can make an environment. Names alone do not tell: a shim may not run.
PYTHON ?= $(shell for python in $(foreach version,3.13 3.12 3.11,python$(version) \
    /usr/bin/python$(version) /usr/local/bin/python$(version)) python3; do \
    $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
    2>/dev/null && echo $$python && break; done)

# The file `installed` is written last. Without it an environment may hold half a package, and is made
# anew, from what pip has downloaded already.
.venv/installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 with venv was found. On Debian or Ubuntu:"; \
	    echo "    apt install python3 python3-venv"; \
	    echo "or name one: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into .venv with $(PYTHON): several GB, once"
	@test -f $@ || $(PYTHON) -m venv --clear .venv
	@rm -f $@
	$(BIN)/python -m pip install --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Usage: $(call step,NUMBER,WHAT,TIME LEFT,COMMAND)
step = @printf '\n[%s/8] %s (about %s left)\n' '$(1)' '$(2)' '$(3)'; start=$$(date +%s); \
    $(4) || { echo "[$(1)/8] $(2): FAILED"; exit 1; }; \
    echo "[$(1)/8] $(2): $$(($$(date +%s) - start)) s"

test: .venv/installed
	@rm -rf $(TRY)
	$(call step,1,style,8 min,$(BIN)/ruff check . && $(BIN)/ruff format --check .)
	$(call step,2,types,8 min,$(BIN)/mypy)
	$(call step,3,unit tests and doctests,8 min,OMP_NUM_THREADS=1 $(BIN)/pytest -m "not browser" --doctest-modules reglib suite tests \
	    --ignore=tests/references --ignore=tests/test_pages.py --ignore=tests/test_readme.py)
	$(call step,4,code blocks and commands of the pages,4 min,$(BIN)/pytest tests/test_pages.py tests/test_readme.py)
	$(call step,5,notebooks at profile smoke,3 min,$(TRYING) \
	    $(BIN)/python -m suite run --profile smoke)
	$(call step,6,notebooks against stored outputs,2 min,$(TRYING) $(BIN)/pytest --nbval-lax --nbval-kernel-name=python3 \
	    --nbval-cell-timeout=300 tests/references)
	$(call step,7,the book without a warning,1 min,$(TRYING) \
	    $(BIN)/python -m suite book --html $(TRY)/html --no-pdf)
	@$(MAKE) --no-print-directory chromium
	$(call step,8,the book in a browser,1 min,REGLIB_BOOK_HTML=$(TRY)/html $(BIN)/pytest -rs tests/test_book_browser.py)

# Where there is none and this is root on Debian, get one; elsewhere say so.
chromium:
	@for name in $(CHROMIUM); do command -v $$name >/dev/null && exit; done; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
	else echo "No Chromium: the tests in a browser will NOT run"; fi

bench: .venv/installed
	$(BIN)/python -m benchmarks

serve:
	@$(BIN)/python -m suite serve

lock:
	rm -rf _build/lock
	$(PYTHON) -m venv _build/lock
	_build/lock/bin/python -m pip install --editable ".[test]" packaging
	_build/lock/bin/python .ci/lock.py > _build/requirements.lock
	mv _build/requirements.lock requirements.lock

clean:
	rm -rf _build book/_build book/executed .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@echo "Kept: .reglib (results, data) and .venv (packages); remove them by hand if you want to"
