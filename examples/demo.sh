#!/usr/bin/env bash
# From nothing to a served forecast, in minutes: a synthetic log, a model trained on it, its accuracy, one forecast,
# and the same over HTTP. Usage: demo.sh FOLDER (made if needed; what a former run left there is replaced).
set -euo pipefail
folder=${1:?which folder to write into}
log=$folder/log.parquet
bundle=$folder/bundle

step() { printf '\n== %s\n' "$1"; }
show() { printf '$ %s\n' "$*"; "$@"; }

mkdir -p "$folder"
rm -f "$log"

step "A log of 8,000 requests with prompts and known hazards"
show endcast trace synth --requests 8000 --seed 1 --out "$log"
show endcast trace describe "$log"

step "Train on its first 70 %, by time"
show endcast train "$log" --model lightgbm --out "$bundle" --force

step "How good is it on the rest? Kaplan-Meier, which knows lengths only, stands beside it"
show endcast evaluate "$bundle" "$log" --report "$folder/report.html"

step "One forecast: 64 tokens in, at most 512"
show endcast forecast "$bundle" --prompt-tokens 374 --generated-tokens 64 --max-tokens 512

step "The same over HTTP"
endcast serve "$bundle" --port 0 > "$folder/server.txt" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for _ in $(seq 300); do
  url=$(sed -n 's/^serving .* at //p' "$folder/server.txt")
  [ -n "$url" ] && break
  kill -0 "$server" || exit 1
  sleep 0.1
done
cat "$folder/server.txt"
python - "$url" <<'PYTHON'
import json, sys, urllib.request

request = {"prompt_tokens": 374, "generated_tokens": 64, "parameters": {"max_tokens": 512}}
body = json.dumps({"horizons": [16, 64], "requests": [request]}).encode()
with urllib.request.urlopen(f"{sys.argv[1]}/v1/forecasts", body, timeout=60) as answer:
    print(json.dumps(json.load(answer), indent=2))
PYTHON
kill "$server"
wait "$server"

step "Done: the trace, the bundle and report.html lie in $folder"
