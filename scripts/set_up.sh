#!/bin/sh
# set_up.sh VENV [demo] [GROUP …]: this checkout, editable, in a virtual environment of its own, with PyTorch for the
# CPU and pyproject.toml's dependency groups. Says what it does before each step that takes long.
set -eu
venv=$1
shift
python=${PYTHON:-python3}
torch="torch==${TORCH:-2.13.0}"
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

step() { printf '\n== %s\n' "$*"; }
stop() { printf '\nset_up: %s\n' "$*" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  stop "$python is missing or older than 3.11; name another one: make PYTHON=python3.12 …"

step "1/4 a virtual environment in $venv ($("$python" --version))"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  stop "$python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
"$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

step "2/4 pip"
pip install --quiet --upgrade 'pip>=25.1'

reachable() {
  "$venv/bin/python" - "$index/torch/" <<'PYTHON'
import os, sys, threading, urllib.request

def ask():
    try:
        with urllib.request.urlopen(sys.argv[1], timeout=5):
            os._exit(0)
    except Exception as error:
        print(f"   {sys.argv[1]}: {error}")

asking = threading.Thread(target=ask, daemon=True)
asking.start()
asking.join(5)  # looking up a name has no time-out of its own
os._exit(1)
PYTHON
}

step "3/4 PyTorch for the CPU (about 200 MB)"
# Any tested version will do, unless TORCH names one.
if "$venv/bin/python" - "${TORCH:-}" 2>/dev/null <<'PYTHON'
import sys, torch

version = torch.__version__.partition("+")[0]
sys.exit(version != sys.argv[1] if sys.argv[1] else not version.startswith(("2.13.", "2.15.")))
PYTHON
then
  echo "   is there already"
elif reachable && pip install --index-url "$index" "$torch"; then
  :
else
  echo "   $index is out of reach: whatever pip finds elsewhere (on Linux that may be the CUDA build, several GB)"
  pip install "$torch"
fi
if ! "$venv/bin/python" -c 'import torch, sys; sys.exit(torch.version.cuda is not None)'; then
  [ -z "${CI:-}" ] || stop "this is a CUDA build of PyTorch; CI wants the CPU's: set TORCH_INDEX to an index that has it"
  echo "   warning: this is a CUDA build of PyTorch; it works, but takes several GB. TORCH_INDEX names another index."
fi

step "4/4 Tachograph and what it needs"
extras="hub,influxdb,hardware,top"
for name in "$@"; do
  shift
  if [ "$name" = demo ]; then extras="$extras,demo"; else set -- "$@" --group "$name"; fi
done
pip install --editable ".[$extras]" "$@"
case " $* " in *" test "*) # see the group in pyproject.toml
  pip install --quiet --upgrade --no-deps --target "$venv/bridges" --group bridges ;;
esac
printf '\n== ready\n\n'
