#!/bin/sh
# Starts a development agent on loopback, with ACLs on, and waits until it leads.
#
#   consul/start.sh DIRECTORY [HTTP-PORT]     default port 8500; the next two are taken as well
#
# DIRECTORY keeps its state, log, pid and tokens:
#   management.token   may do everything; for creating policies
# CONSUL names another program than `consul` on PATH. Prints the address when ready.
set -eu

[ $# -ge 1 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
consul=${CONSUL:-consul}
port=${2:-8500}
address=http://127.0.0.1:$port
umask 077
mkdir -p "$1"
cd "$1"

if [ -f pid ] && kill -0 "$(cat pid)" 2>/dev/null; then
  echo "start.sh: already running, pid $(cat pid)" >&2
  exit 1
fi

cat > ports.json <<PORTS
{"node_name": "hermes-dev-$port", "data_dir": "$(pwd)/data",
 "ports": {"http": $port, "server": $((port + 1)), "serf_lan": $((port + 2))}}
PORTS
"$consul" agent -config-file="$here/agent-dev.hcl" -config-file=ports.json > log 2>&1 < /dev/null &
pid=$!
echo "$pid" > pid

fail() {
  echo "start.sh: $1; the log's end:" >&2
  tail -n 5 log >&2
  kill "$pid" 2>/dev/null || true
  rm -f pid
  exit 3
}

# A cluster's first token can be asked for once, as soon as there is a leader.
tries=0
while [ ! -s management.token ]; do
  kill -0 "$pid" 2>/dev/null || fail "the agent ended"
  if "$consul" acl bootstrap -http-addr="$address" > bootstrap 2>> log; then
    awk '$1 == "SecretID:" { print $2 }' bootstrap > management.token
    rm bootstrap
  else
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "no leader within 30 s"
    sleep 0.5
  fi
done

# Without a token of its own the agent cannot enter its node, and nothing has an address.
export CONSUL_HTTP_ADDR="$address" CONSUL_HTTP_TOKEN_FILE="$PWD/management.token"
if [ ! -s agent.token ]; then
  rules='node_prefix "" { policy = "write" } service_prefix "" { policy = "read" }'
  "$consul" acl policy create -name agent -rules "$rules" > /dev/null 2>> log || fail "no agent policy"
  "$consul" acl token create -policy-name agent > created 2>> log || fail "no agent token"
  awk '$1 == "SecretID:" { print $2 }' created > agent.token
  rm created
fi
tries=0
until "$consul" acl set-agent-token agent "$(cat agent.token)" > /dev/null 2>> log; do
  kill -0 "$pid" 2>/dev/null || fail "the agent ended"
  tries=$((tries + 1))
  [ "$tries" -lt 60 ] || fail "the agent takes no token"
  sleep 0.5
done
echo "$address"
