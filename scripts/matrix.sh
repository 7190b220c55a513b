#!/bin/sh
# matrix.sh PYTHON FOLDER [VERSION …]: the tests of tests/unit and tests/process that need no PyTorch, on each CPython of
# pyproject.toml that this machine has (pyenv's, else on PATH), with the newest versions of all dependencies; and with the
# lowest that pyproject.toml allows, on the oldest of them. PYTHON has uv (group `release`). A table is printed at the end;
# a version that is missing is said in it. MATRIX_ARGS goes to pytest in place of the folders' names.
set -u
python=$1 folder=$2
shift 2
[ $# -gt 0 ] || set -- 3.10 3.11 3.12 3.13 3.14
arguments=${MATRIX_ARGS:-tests/unit tests/process}
here=$(dirname "$0")/..
failed=0 oldest='' table=''
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$here" || exit 2

interpreter() { # VERSION: its path, pyenv's newest of it, else on PATH; nothing where there is none
  root=${PYENV_ROOT:-$HOME/.pyenv}
  found=$(find "$root/versions" -maxdepth 1 -name "$1.*" 2>/dev/null | sort -V | tail -n 1)
  if [ -n "$found" ] && [ -x "$found/bin/python" ]; then echo "$found/bin/python"; else command -v "python$1"; fi
}

row() { table="$table$1|$2|$3
"; }

attempt() { # NAME INTERPRETER RESOLUTION: install, run, and note the outcome
  printf '\n== CPython %s, %s dependencies\n' "$1" "$3"
  where=$folder/$1-$3
  if "$python" -m uv venv --quiet --clear --python "$2" "$where" &&
    "$python" -m uv pip install --quiet --python "$where/bin/python" --resolution "$3" --group matrix \
      --editable '.[influxdb,hardware,top,parquet]'; then
    # shellcheck disable=SC2086 # words
    "$where/bin/python" -m pytest -q -p no:cacheprovider --numprocesses "${WORKERS:-4}" --dist loadscope \
      -m 'not long and not timing and not torch' $arguments >"$where.log" 2>&1
    code=$?
    tail -n 15 "$where.log"
    outcome=$(tail -n 1 "$where.log" | tr -d '=')
  else
    code=1 outcome='cannot be installed'
  fi
  [ "$code" -eq 0 ] || failed=1
  row "$("$2" --version 2>&1)" "$3" "$outcome"
}

for version in "$@"; do
  with=$(interpreter "$version")
  if [ -z "$with" ]; then
    row "CPython $version" - 'NOT TESTED: not on this machine'
    continue
  fi
  : "${oldest:=$version}"
  attempt "$version" "$with" highest
done
[ -z "$oldest" ] || attempt "$oldest" "$(interpreter "$oldest")" lowest-direct

printf '\n%s' "$table" | awk -F'|' 'NF { printf "%-16s %-14s %s\n", $1, $2, $3 }'
exit "$failed"
