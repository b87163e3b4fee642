#!/bin/sh
# Says whether this machine can do what Belljar needs; the same as `belljar doctor`.
set -eu
if command -v belljar >/dev/null 2>&1; then
    exec belljar doctor "$@"
fi
cd "$(dirname "$0")/.."
exec cargo run --release -q -- doctor "$@"
