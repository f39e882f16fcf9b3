#!/usr/bin/env bash
# run.sh PROGRAMS FOLDER [SECONDS]: runs the programs that build.sh has made, and Warprow's caches, one after the other on one GPU. FOLDER gets the ids and
# results.json, a line for each measurement; a table is printed. What has not begun after SECONDS (80) is left out, and named.
# The Python package with kernels for the GPU must be importable (PYTHONPATH).
set -u
here=$(cd "$(dirname "$0")" && pwd)
programs=$(cd "$1" && pwd) && mkdir -p "$2" && folder=$(cd "$2" && pwd)
limit=${3:-80}
results=$folder/results.json && : >"$results"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
run() { # SECONDS COMMAND…: for so long at most. Its lines of JSON go to the results, what else it says to the output
  local most=$1 began=$SECONDS left=$((limit - SECONDS)) code && shift
  if [ "$left" -le 3 ]; then echo "left out: $*" && return; fi
  timeout -k 1 $((most < left ? most : left)) "$@" 2>&1 | tee >(grep '^{.*}$' >>"$results") | grep -v '^{' | tail -n 5
  code=${PIPESTATUS[0]}
  echo "exit $code, $((SECONDS - began)) s: $*"
}
[ -f "$folder/power.ids" ] || run 20 python3 "$here/caches.py" ids "$folder"
# HierarchicalKV gets so many rows before the resident ones: load factors of 0.75, about 1, about 0.5, and 0.06.
run 15 "$programs/hierarchical_kv" "$folder" 6291456
run 15 "$programs/nve" hits "$folder" 6291456
run 45 python3 "$here/caches.py" hits "$folder" --filled 0.06
run 15 "$programs/hierarchical_kv" "$folder" 12582912
run 15 "$programs/nve" shape 8388608 4
run 25 python3 "$here/caches.py" shape 8388608 2
for rows in 4194304 0; do run 15 "$programs/hierarchical_kv" "$folder" "$rows"; done
sleep 0.2
python3 "$here/caches.py" table "$results"
