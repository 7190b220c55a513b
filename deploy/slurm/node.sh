#!/usr/bin/env bash
# One node of train.sbatch, as srun starts it: an agent for telemetry, and this node's part of the job.
#   node.sh train.py …
#
# Trouble with the agent is said here at once, and the job runs all the same, with a hub of its own on this node.
# Its exit code is the job's. May be set:
#   GATEWAY                URL of the gateway (collector-config/gateway.yaml)
#   GATEWAY_TOKEN, or GATEWAY_TOKEN_FILE  the secret that it asks for
#   NPROC_PER_NODE         ranks a node; by default as many as GPUs, else 1
#   MAX_RESTARTS, RDZV_PORT  torchrun's --max-restarts (3), and where nodes meet on the first one (29400)
#   NODE_FOLDER            on a disk of this node: queue, log, and the store of a hub
#   DRAIN_SECONDS          how long, after the job, the agent may take to hand on what it has (30)
#   OTELCOL, COLLECTOR_CONFIG  the collector's program, and the folder of agent.yaml
#   OTEL_METRIC_EXPORT_INTERVAL  milliseconds between two exports of a process (5000); see docs/fleet.md
#   TACHOGRAPH_SYSTEM_METRICS  whether a rank observes the node's GPUs and each rank itself (true)
#   OTLP_HTTP, OTLP_GRPC, HEALTH, OWN_METRICS_PORT, …  as in agent.yaml: jobs that share a node need ports of their own
set -uo pipefail

name=${SLURMD_NODENAME:-$(hostname)}
say() { printf 'tachograph on %s: %s\n' "$name" "$*" >&2; }

for variable in SLURM_JOB_ID SLURM_NNODES HEAD_NODE; do
  if [[ -z ${!variable:-} ]]; then
    say "$variable is not set: node.sh is for train.sbatch"
    exit 2
  fi
done

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
config=${COLLECTOR_CONFIG:-$here/../../collector-config}/agent.yaml
otelcol=${OTELCOL:-otelcol-contrib}
folder=${NODE_FOLDER:-/var/tmp/tachograph-$(id -u)}/$SLURM_JOB_ID-$name
log=$folder/agent.log
export OTLP_HTTP=${OTLP_HTTP:-127.0.0.1:4318} OTLP_GRPC=${OTLP_GRPC:-127.0.0.1:4317}
export HEALTH=${HEALTH:-127.0.0.1:13133} OWN_METRICS_PORT=${OWN_METRICS_PORT:-8888}
export QUEUE=${QUEUE:-$folder/queue}
export OTEL_RESOURCE_ATTRIBUTES="host.name=$name${OTEL_RESOURCE_ATTRIBUTES:+,$OTEL_RESOURCE_ATTRIBUTES}"
export OTEL_METRIC_EXPORT_INTERVAL=${OTEL_METRIC_EXPORT_INTERVAL:-5000}
export TACHOGRAPH_SYSTEM_METRICS=${TACHOGRAPH_SYSTEM_METRICS:-true}
agent=

# Tells whether somebody listens on host:port.
# shellcheck disable=SC2016 # the inner shell expands it
listens() { timeout 2 bash -c 'exec 3<>"/dev/tcp/${0%:*}/${0##*:}"' "$1" 2>/dev/null; }

# Tells whether a collector is ready: it listens for the question before it has started all that it is to start.
# shellcheck disable=SC2016
is_ready() {
  timeout 2 bash -c '
    exec 3<>"/dev/tcp/${0%:*}/${0##*:}" && printf "GET / HTTP/1.0\r\n\r\n" >&3 && read -r line <&3 && [[ $line == *" 200 "* ]]
  ' "$HEALTH" 2>/dev/null
}

start_agent() {
  if is_ready; then
    say "uses the agent that this node has"
    return 0
  fi
  if [[ -z ${GATEWAY_TOKEN:-} && -n ${GATEWAY_TOKEN_FILE:-} ]]; then
    if ! GATEWAY_TOKEN=$(cat "$GATEWAY_TOKEN_FILE"); then
      say "no agent: GATEWAY_TOKEN_FILE=$GATEWAY_TOKEN_FILE cannot be read"
      return 1
    fi
  fi
  if [[ ! ${GATEWAY:-} =~ ^https?://([^/:]+|\[[0-9a-fA-F:]+\])(:([0-9]+))?(/|$) ]]; then
    say "no agent: GATEWAY must be a URL such as http://gateway:4318, not '${GATEWAY:-}'"
    return 1
  fi
  local port=80
  [[ $GATEWAY == https:* ]] && port=443
  local where=${BASH_REMATCH[1]}:${BASH_REMATCH[3]:-$port}
  if [[ -z ${GATEWAY_TOKEN:-} ]]; then
    say "no agent: GATEWAY_TOKEN is not set"
    return 1
  fi
  if ! command -v "$otelcol" >/dev/null; then
    say "no agent: there is no program $otelcol; set OTELCOL"
    return 1
  fi
  if [[ ! -r $config ]]; then
    say "no agent: there is no $config; set COLLECTOR_CONFIG"
    return 1
  fi
  if ! (umask 077 && mkdir -p "$QUEUE" "$folder") || [[ ! -w $QUEUE ]]; then
    say "no agent: its queue $QUEUE cannot be written; set NODE_FOLDER"
    return 1
  fi
  listens "$where" || say "the gateway $GATEWAY does not answer now: what it has not got yet is kept in $QUEUE"
  # The token is for the agent, not for the job's processes.
  GATEWAY=$GATEWAY GATEWAY_TOKEN=$GATEWAY_TOKEN "$otelcol" --config "$config" >"$log" 2>&1 &
  agent=$!
  local tries=0
  until is_ready; do
    if ! kill -0 "$agent" 2>/dev/null; then
      say "no agent: it ended: $(grep -i error "$log" | tail -n 1 || tail -n 1 "$log")"
      agent=
      return 1
    fi
    if ((++tries > 300)); then
      say "no agent: it does not begin within a minute; see $log"
      return 1
    fi
    sleep 0.2
  done
}

# Prints how much the gateway has not got yet, in bytes, by the agent's own metrics.
waiting() {
  python3 - "$OWN_METRICS_PORT" <<'PYTHON'
import sys
import urllib.request

with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=5) as page:
    lines = page.read().decode().splitlines()
print(sum(int(float(line.split()[-1])) for line in lines if line.startswith("otelcol_exporter_queue_size{")))
PYTHON
}

end_agent() {
  local left=unknown end=$((SECONDS + ${DRAIN_SECONDS:-30}))
  while kill -0 "$agent" 2>/dev/null; do
    left=$(waiting 2>/dev/null) || left=unknown
    if [[ $left == 0 ]] || ((SECONDS >= end)); then
      break
    fi
    sleep 0.5
  done
  kill -TERM "$agent" 2>/dev/null
  wait "$agent"
  if [[ $left == 0 ]]; then
    rm -rf "$folder"
  else
    say "not all is with the gateway ($left bytes); an agent with QUEUE=$QUEUE sends it; its log is $log"
  fi
}

options=(--run-id "$SLURM_JOB_ID")
if start_agent; then
  options+=(--no-hub --endpoint "http://$OTLP_HTTP")
else
  # Of this node: SQLite is not safe on a file system that nodes share.
  options+=(--store "$folder/store")
fi
job=(torchrun
  --nnodes="$SLURM_NNODES" --nproc-per-node="${NPROC_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}"
  --rdzv-backend=c10d --rdzv-endpoint="$HEAD_NODE:${RDZV_PORT:-29400}" --rdzv-id="$SLURM_JOB_ID"
  --local-addr="$name" --max-restarts="${MAX_RESTARTS:-3}" "$@")
if command -v tachograph >/dev/null; then
  job=(tachograph run "${options[@]}" -- "${job[@]}")
else
  say "there is no program tachograph: the job runs without telemetry"
fi

"${job[@]}" &
pid=$!
trap 'kill -TERM "$pid" 2>/dev/null' TERM INT
wait "$pid"
code=$?
while kill -0 "$pid" 2>/dev/null; do # a signal ended the wait, not the job
  wait "$pid"
  code=$?
done
if [[ -n $agent ]]; then
  end_agent
fi
exit "$code"
