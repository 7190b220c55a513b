#!/bin/sh
# suite.sh PYTHON test|long [ARGUMENT …]: the tests, with pytest's further arguments. First those that run beside each
# other, then, at most two at a time, those that measure time: they wait for time-outs. A few that fail on a busy machine
# run once more, alone, and are named: what fails alone, too, or more than five, is a failure.
set -u
python=$1 part=$2
shift 2
# Without compiled files each of the thousand programs that the tests start would compile the package again.
unset PYTHONDONTWRITEBYTECODE

# The tests' files are in memory where there is room for them (1.3 GiB at most): on the disk they are 250,000 flushes, and
# a disk that is busy answers one later than a program may take to end. A test that passes leaves none.
room=$(df -k /dev/shm 2>/dev/null | awk 'END { print $4 + 0 }')
free=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null)
if [ -z "${TMPDIR:-}" ] && [ "${room:-0}" -gt 6000000 ] && [ "${free:-0}" -gt 12000000 ]; then # KiB
  TMPDIR=$(mktemp -d /dev/shm/tests.XXXXXX) && export TMPDIR && trap 'rm -rf "$TMPDIR"' EXIT && trap 'exit 130' INT TERM
  chmod 1777 "$TMPDIR" # as /tmp: some tests run a hub as another user
fi

tests() { # OPTIONS ARGUMENT …: a pass of pytest; few that failed once more, alone. No test at all is no failure
  options=$1
  shift
  # shellcheck disable=SC2086 # words
  "$python" -m pytest --cache-clear $options -o tmp_path_retention_policy=failed "$@"
  status=$?
  if [ "$status" -eq 1 ]; then
    count=$("$python" -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))')
    if [ "$count" -le 5 ]; then
      echo "suite.sh: $count failed, and run once more, alone:"
      "$python" -m pytest --last-failed --last-failed-no-failures=none "$@" --cov-append
      status=$?
    fi
  fi
  [ "$status" -eq 5 ] || [ "$status" -eq 0 ] || failed=$status
}

failed=0
# Most of them wait most of the time: more workers than processors. Longest first needs the tests' own order.
beside="--numprocesses=${WORKERS:-6} --dist=loadscope --no-loadscope-reorder"
case $part in
test)
  tests "$beside" -m 'not long and not timing' --cov --cov-report= "$@"
  tests '--numprocesses=2' -m 'timing and not long' --cov --cov-append --cov-report= "$@"
  "$python" scripts/merge_coverage.py .coverage || failed=$?
  # The total alone: the files' table would push what failed out of sight. `python -m coverage report` prints it.
  printf 'Coverage, in per cent (95 at least): '
  "$python" -m coverage report --ignore-errors --format=total --fail-under=95 || failed=$?
  ;;
long)
  export TACHOGRAPH_TEST_EXAMPLES=all # of which `make test` tries a part: tests/examples.py
  tests "$beside" -m 'long and not timing' "$@"
  tests '' -m 'timing and long' "$@"
  tests "$beside" -m 'hypothesis and not long and not timing' "$@"
  ;;
*)
  echo "suite.sh: test or long, not $part" >&2
  exit 2
  ;;
esac
exit "$failed"
