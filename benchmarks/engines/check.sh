#!/usr/bin/env bash
# What vLLM must pass, on a CPU or a GPU: the contract suite and the tests on vLLM itself, the text of 50 prompts beside
# transformers', rollouts beside vLLM's own generate. Raw output is kept in the folder that is named, or in results/vllm-cpu.
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
"$python" benchmarks/engines/rollouts.py --json | tee "$out/rollouts.txt"
