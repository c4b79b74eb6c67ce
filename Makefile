# make book    install everything, run every notebook with the kept results, build the book
# make pdf     the same, and print it to one PDF with Chromium
# make rerun   compute a part of it on this computer, from nothing, and say whether it agrees
# make test    all checks: style, types, tests, notebooks, the book in a browser
# make bench   measure how fast the parts are
# make serve   show the book at http://127.0.0.1:8000, with full-text search
# make lock    write both locks anew from pyproject.toml
# make clean   remove the book and what tests left; results in .reglib and .venv stay
#
# PYTHON=python3.12 chooses another Python, PROFILE=desktop a longer rerun.

BIN := .venv/bin
# Where the tests put their own book, so that yours stays.
TRY := $(CURDIR)/_build/test
TRYING := REGLIB_EXECUTED=$(TRY)/executed REGLIB_STORE=$(TRY)/store
COMMA := ,
CHROMIUM := chromium chromium-browser google-chrome

.PHONY: book pdf rerun test bench serve lock clean chromium
.DELETE_ON_ERROR:

book: PROFILE ?= desktop
book: .venv/installed
	$(BIN)/python -m suite run --profile $(PROFILE)
	$(BIN)/python -m suite book $(PDF)
	@echo "The book: open file://$(CURDIR)/_build/html/index.html"

pdf: PDF = --pdf
pdf: book

# Interrupt it when you like: run again, and it goes on.
rerun: PROFILE ?= laptop
rerun: .venv/installed
	$(BIN)/python -m suite run --profile $(PROFILE) --fresh
	$(BIN)/python -m suite book
	@echo "Does this machine agree? Open file://$(CURDIR)/_build/html/executed/agreement.html"

# The newest Python that runs and can make an environment. Names alone do not tell: a shim may not run.
PYTHON ?= $(shell for python in $(foreach version,3.13 3.12 3.11,python$(version) \
    /usr/bin/python$(version) /usr/local/bin/python$(version)) python3; do \
    $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
    2>/dev/null && echo $$python && break; done)

# The file `installed` is written last. Without it an environment may hold half a package, and is made
# anew, from what was downloaded already. uv is used where it is there, pip otherwise. Most of what is
# downloaded is PyTorch and, on Linux, its CUDA libraries.
PIP := $(if $(shell command -v uv),uv pip install --python $(BIN)/python,$(BIN)/python -m pip install \
    --disable-pip-version-check --no-compile)

COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib

.venv/installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 with venv was found. On Debian or Ubuntu:"; \
	    echo "    apt install python3 python3-venv"; \
	    echo "or name one: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into .venv with $(PYTHON): several GB, once"
	@test -f $@ || $(PYTHON) -m venv --clear .venv
	@rm -f $@
	$(PIP) --requirement requirements.lock
	@# pip would compile on one core; templates among the packages are no valid Python
	@$(COMPILE) || true
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/tested: .venv/installed requirements-test.lock
	$(PIP) --requirement requirements-test.lock
	@$(COMPILE) || true
	@touch $@

# Usage: $(call step,NUMBER,WHAT,COMMAND)
step = @printf '\n[%s/7] %s\n' '$(1)' '$(2)'; start=$$(date +%s); \
    $(3) || { echo "[$(1)/7] $(2): FAILED"; exit 1; }; \
    echo "[$(1)/7] $(2): $$(($$(date +%s) - start)) s"

test: .venv/tested
	@rm -rf $(TRY)
	$(call step,1,style,$(BIN)/ruff check . && $(BIN)/ruff format --check .)
	$(call step,2,types,$(BIN)/mypy --num-workers auto)
	$(call step,3,unit tests$(COMMA) doctests$(COMMA) code and commands of the pages,OMP_NUM_THREADS=1 \
	    $(BIN)/pytest --numprocesses auto --dist worksteal -m "not browser" --doctest-modules reglib suite tests \
	    --ignore tests/references)
	$(call step,4,notebooks at profile smoke,$(TRYING) $(BIN)/python -m suite run --profile smoke --fresh)
	$(call step,5,notebooks against stored outputs,$(TRYING) $(BIN)/pytest --nbval-lax tests/references)
	$(call step,6,the book without a warning,$(TRYING) \
	    $(BIN)/python -m suite book --html $(TRY)/html)
	@$(MAKE) --no-print-directory chromium
	$(call step,7,the book in a browser,REGLIB_BOOK_HTML=$(TRY)/html $(BIN)/pytest -rs -m browser tests/test_book_browser.py)

# Where there is none and this is root on Debian, get one; elsewhere say so.
chromium:
	@for name in $(CHROMIUM); do command -v $$name >/dev/null && exit; done; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
	else echo "No Chromium: the tests in a browser will NOT run"; fi

bench: .venv/installed
	$(BIN)/python -m benchmarks

serve:
	@test -f _build/html/index.html || { echo "There is no book yet: run 'make book' first"; exit 1; }
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html

lock:
	rm -rf _build/lock
	$(PYTHON) -m venv _build/lock
	_build/lock/bin/python -m pip install --editable ".[suite,test]"
	_build/lock/bin/python .ci/lock.py

clean:
	rm -rf _build book/_build book/executed .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@echo "Kept: .reglib (results, data) and .venv (packages); remove them by hand if you want to"
