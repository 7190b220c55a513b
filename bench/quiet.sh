#!/bin/sh
# Run the benches on a machine that is otherwise idle, in nine minutes on sixteen cores: bench/quiet.sh FOLDER [SOURCES]
#
# FOLDER gets a JSON file and the text of each. SOURCES is the `src` of another version, which is measured beside this
# one. A bench that fails, for a library that is not installed, say, leaves its text and ends no other.
set -u
cd "$(dirname "$0")/.."
mkdir -p "$1"
folder=$(cd "$1" && pwd)
before=${2:+$(cd "$2" && pwd)}
export BENCH_RESULTS="$folder" PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
command -v "$python" > /dev/null || python=.venv/bin/python
cores=$(nproc)

on() { # cores, name of its text, bench and options
  where=$1 text=$2
  shift 2
  # shellcheck disable=SC2015 # without taskset it runs anywhere
  command -v taskset > /dev/null && [ "$cores" -ge 16 ] && set -- taskset -c "$where" "$python" "$@" \
    || set -- "$python" "$@"
  began=$(date +%s)
  timeout -k 5 400 "$@" > "$folder/$text.txt" 2>&1
  echo "$text: exit $? after $(($(date +%s) - began)) s" | tee -a "$folder/summary.txt"
}

"$python" -c 'import os, platform, torch; print(platform.processor() or platform.machine(), os.cpu_count(), "cores,",
  "Python", platform.python_version(), "torch", torch.__version__)' > "$folder/machine.txt" 2>&1
on 0-15 overhead bench/overhead.py --pairs "${PAIRS:-40}" # alone: it tells of tenths of a percent
{
  on 0 recording bench/recording.py
  on 0 logger bench/logger.py
} &
{
  on 1 metric bench/metric.py
  on 1 monitor bench/monitor.py
  on 1 profiling bench/profiling.py
  on 1 importing bench/importing.py
  on 1 rendering bench/rendering.py
} &
on 2-3 hub bench/hub.py --short &
{
  if [ -n "$before" ]; then
    mkdir -p "$folder/beside" # the other table of the same bench has the same titles
    (
      export BENCH_RESULTS="$folder/beside"
      on 4-15 beside bench/background.py --kinds gauges,mixed --series 1,600 --ways hub --seconds 2.5 --at-once 3 \
        --beside "$before"
    )
  fi
  on 4-15 background bench/background.py --seconds "${SECONDS_EACH:-3}" --at-once 4
} &
wait
cat "$folder/summary.txt"
