#!/bin/sh
# bridges_newest.sh VENV [ARGUMENT …]: the tests of the bridges and of the classes that trainers take, with the newest
# versions of their libraries, in a virtual environment that is made anew. Arguments are handed on to pytest. Says what
# is installed: a version that a test fails with is not yet in the table of src/tachograph/instrumentation/bridges. Ends
# with the table of docs/bridges-conformance.md for these versions.
set -eu
venv=$1
shift

step() { printf '\n== %s\n' "$*"; }

step "1/3 this checkout with its tests, and PyTorch as they have it"
rm -rf "$venv"
mkdir -p "$venv"
sh "$(dirname "$0")/set_up.sh" "$venv" test >"$venv/set_up.log" || { cat "$venv/set_up.log"; exit 1; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
# A newer PyTorch would be the CUDA build where the CPU's index is out of reach: it stays, whatever a library asks for.
"$venv/bin/python" -c 'import torch; print(f"torch=={torch.__version__}")' >"$venv/torch.txt"

step "2/3 the newest libraries"
# Beyond the versions that the tests' groups allow.
packages=$("$venv/bin/python" - <<'PYTHON'
from tachograph.instrumentation.bridges._libraries import LIBRARIES

print(*({library.package for library in LIBRARIES.values()} - {"torch", "Python"}), "pytorch-lightning", "tensorboard")
PYTHON
)
# shellcheck disable=SC2086 # words
pip install --upgrade --constraint "$venv/torch.txt" $packages 'ray[train]'
pip install --upgrade --no-deps torchtitan || echo "bridges_newest: no torchtitan for this Python" # its logger alone
# shellcheck disable=SC2086 # words
"$venv/bin/python" -m pip list 2>/dev/null | grep -iE "^($(echo torch torchtitan ray $packages | tr ' ' '|')) "

step "3/3 the tests"
code=0
TACHOGRAPH_TEST_ROWS="$venv/rows" "$venv/bin/python" -m pytest -m 'long or not long' "$@" tests/unit/test_bridges*.py tests/unit/test_logging_bridge.py \
  tests/unit/test_integration*.py tests/process/test_bridges*.py tests/system/test_bridges*.py \
  tests/system/test_integrations.py || code=$?
[ ! -e "$venv/rows" ] || "$venv/bin/python" scripts/conformance.py --rows "$venv/rows"
exit "$code"
