#!/usr/bin/env bash
# Runs on each node of train.sbatch, started by srun: starts a telemetry agent, then this node's part of the job.
#   node.sh train.py …
#
# If the agent cannot start, node.sh prints the reason and runs the job with its own hub on this node. The exit code is
# the job's. Optional variables, with defaults in parentheses:
#   GATEWAY                URL of the gateway (collector-config/gateway.yaml)
#   GATEWAY_TOKEN, or GATEWAY_TOKEN_FILE  the bearer token that the gateway requires, or a file that contains it
#   NPROC_PER_NODE         ranks per node (the number of GPUs, or 1 without GPUs)
#   MAX_RESTARTS, RDZV_PORT  torchrun's --max-restarts (3), and the rendezvous port on the first node (29400)
#   NODE_FOLDER            folder on a local disk of this node, for the queue, the agent's log, and a hub's store
#   DRAIN_SECONDS          how long the agent may keep sending after the job has ended (30)
#   OTELCOL, COLLECTOR_CONFIG  the collector's executable, and the folder that contains agent.yaml
#   OTEL_METRIC_EXPORT_INTERVAL  export interval of each process in milliseconds (5000); see docs/fleet.md
#   TACHOGRAPH_SYSTEM_METRICS  whether local rank 0 observes the node's GPUs, and each rank itself (true)
#   OTLP_HTTP, OTLP_GRPC, HEALTH, OWN_METRICS_PORT, …  as in agent.yaml; jobs that share a node need different ports
set -uo pipefail

name=${SLURMD_NODENAME:-$(hostname)}
say() { printf 'tachograph on %s: %s\n' "$name" "$*" >&2; }

for variable in SLURM_JOB_ID SLURM_NNODES HEAD_NODE; do
  if [[ -z ${!variable:-} ]]; then
    say "$variable is not set; start node.sh through train.sbatch"
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

# Returns 0 if a server listens on host:port.
# shellcheck disable=SC2016 # the inner shell expands it
listens() { timeout 2 bash -c 'exec 3<>"/dev/tcp/${0%:*}/${0##*:}"' "$1" 2>/dev/null; }

# Returns 0 if a collector reports that it is ready. Its health port opens before all of its components have started.
# shellcheck disable=SC2016
is_ready() {
  timeout 2 bash -c '
    exec 3<>"/dev/tcp/${0%:*}/${0##*:}" && printf "GET / HTTP/1.0\r\n\r\n" >&3 && read -r line <&3 && [[ $line == *" 200 "* ]]
  ' "$HEALTH" 2>/dev/null
}

start_agent() {
  if is_ready; then
    say "using the agent that already runs on this node"
    return 0
  fi
  if [[ -z ${GATEWAY_TOKEN:-} && -n ${GATEWAY_TOKEN_FILE:-} ]]; then
    if ! GATEWAY_TOKEN=$(cat "$GATEWAY_TOKEN_FILE"); then
      say "no agent: cannot read GATEWAY_TOKEN_FILE=$GATEWAY_TOKEN_FILE"
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
    say "no agent: $otelcol not found on PATH; set OTELCOL"
    return 1
  fi
  if [[ ! -r $config ]]; then
    say "no agent: cannot read $config; set COLLECTOR_CONFIG"
    return 1
  fi
  if ! (umask 077 && mkdir -p "$QUEUE" "$folder") || [[ ! -w $QUEUE ]]; then
    say "no agent: cannot write to the queue folder $QUEUE; set NODE_FOLDER"
    return 1
  fi
  listens "$where" || say "the gateway $GATEWAY does not respond; telemetry is queued in $QUEUE until it does"
  # Only the agent gets the token, not the job's processes.
  GATEWAY=$GATEWAY GATEWAY_TOKEN=$GATEWAY_TOKEN "$otelcol" --config "$config" >"$log" 2>&1 &
  agent=$!
  local tries=0
  until is_ready; do
    if ! kill -0 "$agent" 2>/dev/null; then
      say "no agent: the collector exited: $(grep -i error "$log" | tail -n 1 || tail -n 1 "$log")"
      agent=
      return 1
    fi
    if ((++tries > 300)); then
      say "no agent: the collector was not ready after one minute; see $log"
      return 1
    fi
    sleep 0.2
  done
}

# Prints the size of the agent's queue in bytes, from the agent's own metrics.
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
    say "the gateway has not received all telemetry ($left bytes left)"
    say "to send the rest, start an agent with QUEUE=$QUEUE; the log of this one is $log"
  fi
}

options=(--run-id "$SLURM_JOB_ID")
if start_agent; then
  options+=(--no-hub --endpoint "http://$OTLP_HTTP")
else
  # On a local disk: SQLite is not safe on a network file system.
  options+=(--store "$folder/store")
fi
job=(torchrun
  --nnodes="$SLURM_NNODES" --nproc-per-node="${NPROC_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}"
  --rdzv-backend=c10d --rdzv-endpoint="$HEAD_NODE:${RDZV_PORT:-29400}" --rdzv-id="$SLURM_JOB_ID"
  --local-addr="$name" --max-restarts="${MAX_RESTARTS:-3}" "$@")
if command -v tachograph >/dev/null; then
  job=(tachograph run "${options[@]}" -- "${job[@]}")
else
  say "tachograph not found on PATH; the job runs without telemetry"
fi

"${job[@]}" &
pid=$!
trap 'kill -TERM "$pid" 2>/dev/null' TERM INT
wait "$pid"
code=$?
while kill -0 "$pid" 2>/dev/null; do # a signal interrupted the wait while the job is still running
  wait "$pid"
  code=$?
done
if [[ -n $agent ]]; then
  end_agent
fi
exit "$code"
