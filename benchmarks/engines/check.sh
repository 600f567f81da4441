#!/usr/bin/env bash
# What vLLM must pass, on a CPU or a GPU: the contract suite and the tests on vLLM itself, the text of 50 prompts beside
# transformers' (in float32; in bfloat16; and a wrong model, which must be found wrong), rollouts beside vLLM's own generate.
# Raw output is kept in the folder that is named, or in results/vllm-cpu.
#
#   PYTHON=.venv-vllm/bin/python benchmarks/engines/check.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${1:-benchmarks/results/vllm-cpu}
mkdir -p "$out"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1

"$python" -m antiphon models fetch smollm2-135m-instruct
"$python" -m pytest -m vllm tests/core -v --no-header --disable-warnings | tee "$out/tests.txt"
"$python" benchmarks/engines/agreement.py --json | tee "$out/agreement.txt"
"$python" benchmarks/engines/agreement.py --json --dtype bfloat16 | tee "$out/agreement-bfloat16.txt"
if "$python" benchmarks/engines/agreement.py --json --control | tee "$out/agreement-control.txt"; then
  echo "a wrong model was not found wrong" >&2
  exit 1
fi
"$python" benchmarks/engines/rollouts.py --json | tee "$out/rollouts.txt"
