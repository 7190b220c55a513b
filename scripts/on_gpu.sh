#!/bin/sh
# on_gpu.sh [FOLDER]: everything about the anatomy of steps that only a CUDA device can show, in four minutes at most.
# PYTHON has torch and what Tachograph needs; PYTHONPATH may name its source. FOLDER gets on_gpu.json, which is also
# printed; the exit code is 0 where all is right, 1 where something is wrong, 2 where there is no device.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-.}
mkdir -p "$folder"
# cuBLAS computes the same bits twice with this alone.
CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONPATH="${PYTHONPATH:-$here/src}" \
  exec timeout 235 "${PYTHON:-python3}" "$here/bench/anatomy_gpu.py" "$folder/on_gpu.json"
