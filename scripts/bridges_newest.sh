#!/bin/sh
# bridges_newest.sh VENV [ARGUMENT …]: the tests of the bridges and of the classes that trainers take, with the newest
# versions of their libraries, in a virtual environment that is made anew. Arguments are handed on to pytest. Says what
# is installed: a version that a test fails with is not yet in the table of src/tachograph/instrumentation/bridges.
set -eu
venv=$1
shift
python=${PYTHON:-python3}
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

step() { printf '\n== %s\n' "$*"; }

step "1/3 PyTorch, in $venv"
rm -rf "$venv"
"$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --upgrade 'pip>=25.1'
pip install --index-url "$index" torch || pip install torch
step "2/3 Tachograph, and the newest libraries"
pip install --editable '.[hub,influxdb,hardware,top]' --group test
# Beyond the versions that the tests' group allows; torch, which `tensorboard` stands for, is the newest already.
packages=$("$venv/bin/python" - <<'PYTHON'
from tachograph.instrumentation.bridges._libraries import LIBRARIES

print(*({library.package for library in LIBRARIES.values()} - {"torch"}), "pytorch-lightning", "tensorboard")
PYTHON
)
# shellcheck disable=SC2086 # words
pip install --upgrade $packages 'ray[train]'
pip install --upgrade --no-deps torchtitan || echo "bridges_newest: no torchtitan for this Python" # its logger alone
# shellcheck disable=SC2086 # words
"$venv/bin/python" -m pip list 2>/dev/null | grep -iE "^($(echo torch torchtitan ray $packages | tr ' ' '|')) "
step "3/3 the tests"
exec "$venv/bin/python" -m pytest -m 'long or not long' "$@" tests/unit/test_bridges*.py tests/unit/test_integration*.py \
  tests/process/test_bridges*.py tests/system/test_bridges*.py tests/system/test_integrations.py
