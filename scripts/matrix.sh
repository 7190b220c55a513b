#!/bin/sh
# matrix.sh PYTHON FOLDER [ENTRY …]: tests/unit, then tests/process, on each CPython of pyproject.toml that this machine has
# (pyenv's, else on PATH). An entry is a version, such as 3.13, with the newest of all dependencies, or 3.11-lowest, with the
# lowest that pyproject.toml allows. PYTHON has uv (group `release`). MATRIX_TESTS has other folders, and MATRIX_MARKS marks
# beside ours, such as 'not process'. A table at the end has the counts of each; an entry without its CPython is in it, and
# no failure. PyTorch is never installed: from the index of packages it would be several gigabytes for CUDA. Tests that
# need it are run by `make test`.
set -u
unset CI # a package or a server that is missing here is a failure of `make test`
python=$1 folder=$2
shift 2
[ $# -gt 0 ] || set -- 3.11-lowest 3.11 3.12 3.13 3.14
here=$(dirname "$0")/..
failed=0 table=''
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$here" || exit 2

interpreter() { # VERSION: its path, pyenv's newest of it, else on PATH; nothing where there is none
  root=${PYENV_ROOT:-$HOME/.pyenv}
  found=$(find "$root/versions" -maxdepth 1 -name "$1.*" 2>/dev/null | sort -V | tail -n 1)
  if [ -n "$found" ] && [ -x "$found/bin/python" ]; then
    echo "$found/bin/python"
  else # a shim of pyenv may lead nowhere
    command -v "python$1" >/dev/null && "python$1" -c '' 2>/dev/null && command -v "python$1"
  fi
}

row() { table="$table$1|$2|$3|$4
"; }

prepare() { # INTERPRETER RESOLUTION WHERE
  "$python" -m uv venv --quiet --clear --python "$1" "$3" &&
    "$python" -m uv pip install --quiet --python "$3/bin/python" --resolution "$2" --group matrix \
      --editable '.[influxdb,hardware,top,parquet,tensorboard]'
}

tested() { # ENTRY TESTS: run them, those that fail once more, alone; say how it went, and count
  log=$folder/$1-$(basename "$2").log
  suite() { "$folder/$entry/bin/python" -m pytest -q -o "cache_dir=$folder/$entry-cache" "$@"; }
  suite --cache-clear --numprocesses "${WORKERS:-6}" --dist loadscope \
    -m "not long and not timing and not torch${MATRIX_MARKS:+ and $MATRIX_MARKS}" "$2" >"$log" 2>&1
  code=$?
  counts=$(tail -n 1 "$log" | tr -d '=')
  sed -n '/^=* short test summary/,$p' "$log"
  if [ "$code" -eq 1 ]; then # on a busy machine, say: as suite.sh does it
    suite --last-failed --last-failed-no-failures=none "$2" >"$log" 2>&1
    code=$?
    counts="$counts; alone: $(tail -n 1 "$log" | tr -d '=')"
    sed -n '/^=* short test summary/,$p' "$log"
  fi
  [ "$code" -eq 0 ] || failed=1
  row "$said" "$resolution" "$2" "$counts"
}

for entry in "$@"; do
  version=${entry%-lowest} resolution=highest
  [ "$version" = "$entry" ] || resolution=lowest-direct
  with=$(interpreter "$version")
  printf '\n== CPython %s, %s dependencies\n' "$version" "$resolution"
  if [ -z "$with" ]; then
    row "CPython $version" "$resolution" - 'NOT TESTED: not on this machine'
    continue
  fi
  said=$("$with" --version 2>&1)
  if prepare "$with" "$resolution" "$folder/$entry"; then
    for tests in ${MATRIX_TESTS:-tests/unit tests/process}; do
      tested "$entry" "$tests"
    done
  else
    failed=1
    row "$said" "$resolution" - 'FAILED: cannot be installed'
  fi
done

printf '\n%s' "$table" | awk -F'|' 'NF { printf "%-15s %-14s %-14s %s\n", $1, $2, $3, $4 }'
echo 'NOT TESTED here: the tests marked torch'
exit "$failed"
