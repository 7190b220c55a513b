#!/bin/sh
# suite.sh PYTHON test|long [ARGUMENT …]: the tests, with pytest's further arguments. First those that run beside each
# other, then, with nothing beside them, those that measure time.
set -u
python=$1 part=$2
shift 2
# Without compiled files each of the thousand programs that the tests start would compile the package again.
unset PYTHONDONTWRITEBYTECODE

tests() { # what a selection by name or folder leaves empty is no failure
  "$python" -m pytest "$@"
  status=$?
  [ "$status" -eq 5 ] || [ "$status" -eq 0 ] || failed=$status
}

failed=0
# Most of them wait most of the time: more workers than processors. Longest first needs the tests' own order.
beside="--numprocesses=${WORKERS:-4} --dist=loadscope --no-loadscope-reorder"
case $part in
test)
  # shellcheck disable=SC2086 # words
  tests -m 'not long and not timing' $beside --cov --cov-report= "$@"
  tests -m 'timing and not long' --cov --cov-append --cov-report= "$@"
  # The total alone: the files' table would push what failed out of sight. `python -m coverage report` prints it.
  printf 'Coverage, in per cent (95 at least): '
  "$python" -m coverage report --format=total --fail-under=95 || failed=$?
  ;;
long)
  # shellcheck disable=SC2086 # words
  tests -m 'long and not timing' $beside "$@"
  tests -m 'long and timing' "$@"
  ;;
*)
  echo "suite.sh: test or long, not $part" >&2
  exit 2
  ;;
esac
exit "$failed"
