#!/usr/bin/env bash
# `make dashboards`: draws the dashboards of manifests/monitoring in a browser, with the recorded series, and writes the pictures of
# docs/monitoring.md. Fails if a query fails or a panel that should show something is empty. Needs Go, chromium and pngquant.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=target/monitoring
mkdir -p "$folder"
(cd tests/monitoring/tools && CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags remove_all_sd -o "../../../$folder/serve" ./serve)
profile=$(mktemp -d)
"$folder/serve" tests/monitoring/recordings/story.yaml tests/monitoring/page manifests/monitoring/dashboards > "$folder/address" &
server=$!
trap 'kill "$server"; rm -rf "$profile"' EXIT
for _ in $(seq 100); do [ -s "$folder/address" ] && break; sleep 0.1; done
address=$(cat "$folder/address")
scene() { curl -sf "http://$address/recording" | jq ".scenes[\"$1\"] * .interval"; }

browser() {
  timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --user-data-dir="$profile" --hide-scrollbars --virtual-time-budget=15000 "$@" 2> "$folder/chromium.log"
}
picture() { # FILE WIDTH,HEIGHT DASHBOARD SCENE-OF-THE-END QUERY [BLANK-PANEL...]: one moment before the scene
  local file=$1 size=$2 dashboard=$3 until=$4 query=$5 end page failed blank
  shift 5
  end=$(($(scene "$until") - 15))
  page="http://$address/?dashboard=$dashboard&from=$(scene healthy)&to=$end$query"
  browser --window-size="$size" --dump-dom "$page" > "$folder/$file.html"
  [ "$(grep -o '<title>done</title>' "$folder/$file.html")" ] || { echo "$file: the page did not end" >&2; exit 1; }
  failed=$(grep -o 'data-failed="[^"]*"' "$folder/$file.html" | sed 's/&quot;/"/g; s/^data-failed="//; s/"$//')
  [ "$failed" = "[]" ] || { echo "$file: $failed" >&2; exit 1; }
  blank=$(grep -o 'data-blank="[^"]*"' "$folder/$file.html" | sed 's/&quot;/"/g; s/^data-blank="//; s/"$//' | jq -r '.[]')
  if [ "$blank" != "$(printf '%s\n' "$@")" ]; then
    printf '%s: panels without data are\n%s\nand should be\n%s\n' "$file" "$blank" "$(printf '%s\n' "$@")" >&2
    exit 1
  fi
  browser --window-size="$size" --screenshot="$PWD/$folder/$file.png" "$page"
  # Flat colours: a palette loses nothing that one sees, and makes a third of the size.
  pngquant --force --strip --quality 60-95 --output "docs/pictures/$file.png" "$folder/$file.png"
  echo "docs/pictures/$file.png: $(($(stat -c %s "docs/pictures/$file.png") / 1024)) KiB"
}

mkdir -p docs/pictures
fleet=("Refused allocations by node" "Nodes that are not done, by policy")
picture dashboard-fleet 1400,1720 fleet recovered "&idle_after=60" "${fleet[@]}"
no_mig=("GPUs by phase" "MIG devices by profile" "Largest free instance" "Changes")
picture dashboard-node 1400,2700 node recovered "&node=gpu-v100" "${no_mig[@]}" "Foreign processes by GPU"
# Drivers tell no SM use of MIG devices.
picture dashboard-node-mig 1400,2700 node stopped-rollout "&node=gpu-a100" \
  Faults "Faults over time" XIDs "Failed driver calls" "Foreign processes by GPU" "SMs used of SMs given"
picture dashboard-node-use 1400,1040 node mig-stuck "&node=gpu-t4&row=Containers" "Foreign processes by GPU"
picture dashboard-operator 1400,1500 operator refused-writes ""
