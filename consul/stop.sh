#!/bin/sh
# Stops the agent that start.sh started in DIRECTORY, by its pid; state and tokens stay.
#
#   consul/stop.sh DIRECTORY
set -eu

[ $# -eq 1 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
cd "$1"
[ -f pid ] || { echo "stop.sh: nothing runs in $1" >&2; exit 1; }
pid=$(cat pid)
# The pid may be another process's by now: only an agent with our configuration is ours.
if tr '\0' ' ' < "/proc/$pid/cmdline" 2>/dev/null | grep -q 'agent-dev.hcl'; then
  kill "$pid"
  tries=0
  while kill -0 "$pid" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "stop.sh: pid $pid does not end" >&2; exit 1; }
    sleep 0.1
  done
fi
rm -f pid
