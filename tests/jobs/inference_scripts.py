"""Scripts in the manner of public benchmarks of inference engines, whose environment is stated beside them."""

ENVIRONMENT = r"""export MODEL=Qwen/Qwen3-32B TP=4 CONC=64 ISL=1024 OSL=1024 RANDOM_RANGE_RATIO=0.8
export RESULT_FILENAME=run PORT=8888
export EP_SIZE=1 DP_ATTENTION=false IMAGE="vllm/vllm-openai:v0.11.0"
"""

SCRIPTS = {  # name -> text, what it states
    "conditions_on_lengths": (
        r"""#!/usr/bin/env bash
# Serves a model, waits until it answers, and sends it requests.
source "$(dirname "$0")/../lib.sh"
check_env_vars MODEL TP CONC ISL OSL RANDOM_RANGE_RATIO RESULT_FILENAME

if [[ -n "$SLURM_JOB_ID" ]]; then
  echo "job $SLURM_JOB_ID on $SLURMD_NODENAME"
fi
nvidia-smi
hf download "$MODEL"
SERVER_LOG=/workspace/server.log
PORT=${PORT:-8888}

if [[ "$ISL" == "1024" && "$OSL" == "1024" ]]; then
  MAX_MODEL_LEN=$((ISL + OSL + 20))
elif [[ "$ISL" == "8192" || "$OSL" == "8192" ]]; then
  MAX_MODEL_LEN=$((ISL + OSL + 200))
else
  MAX_MODEL_LEN=${MAX_MODEL_LEN:-10240}
fi

cat > config.yaml <<EOF
kv-cache-dtype: fp8
max-num-batched-tokens: 8192
# the server's own defaults hold
EOF

export TORCH_CUDA_ARCH_LIST="9.0"
set -x
PYTHONNOUSERSITE=1 vllm serve "$MODEL" --host 0.0.0.0 --port "$PORT" \
  --gpu-memory-utilization 0.95 \
  --tensor-parallel-size "$TP" \
  --max-model-len $MAX_MODEL_LEN \
  --max-num-seqs $CONC \
  --disable-log-requests > "$SERVER_LOG" 2>&1 &
SERVER_PID=$!

wait_for_server_ready --port "$PORT" --server-log "$SERVER_LOG" --server-pid "$SERVER_PID"
run_benchmark_serving --model "$MODEL" --port "$PORT" --backend vllm --input-len "$ISL" --output-len "$OSL" \
  --random-range-ratio "$RANDOM_RANGE_RATIO" --num-prompts "$((CONC * 10))" --max-concurrency "$CONC" \
  --result-filename "$RESULT_FILENAME" --result-dir /workspace/
""",
        {"tp": 4, "batch_limit": 64},
    ),
    "options_in_a_list": (
        r"""#!/usr/bin/env bash
set -euo pipefail
export SGLANG_USE_AITER=1
PREFILL_SIZE=196608
if [[ "$ISL" -eq 8192 && "$OSL" -eq 1024 ]]; then
  if (( CONC > 32 )); then
    PREFILL_SIZE=32768
  fi
fi
EXTRA=()
if [ "${DP_ATTENTION}" = "true" ]; then
  EXTRA+=(--enable-dp-attention --dp-size "$TP")
fi
[[ $EP_SIZE -gt 1 ]] && EXTRA+=(--ep-size "$EP_SIZE")
python3 -m sglang.launch_server \
  --model-path "$MODEL" --host=0.0.0.0 --port "$PORT" \
  --tensor-parallel-size "$TP" --trust-remote-code \
  --chunked-prefill-size "$PREFILL_SIZE" \
  --mem-fraction-static 0.8 "${EXTRA[@]}" 2>&1 | tee server.log &
""",
        {"tp": 4, "prefill_chunk_tokens": 196608},
    ),
    "case_and_arithmetic": (
        r"""#!/usr/bin/env bash
MOE_BACKEND=CUTLASS
MAX_BATCH_SIZE=$(( CONC < 16 ? 16 : CONC ))
if [[ "$TP" == "8" && "$CONC" -ge 64 ]]; then MOE_BACKEND="TRTLLM"; fi
case "$ISL-$OSL" in
  1024-1024) MAX_NUM_TOKENS=$(( ((CONC + ISL + 64 + 63) / 64) * 64 )) ;;
  8192-*)    MAX_NUM_TOKENS=16384 ;;
  *)         MAX_NUM_TOKENS=8192 ;;
esac
FILE="dsr1-$(date +%s).yml"
cat > "$FILE" <<'EOF'
cuda_graph_config:
    enable_padding: true
EOF
if [[ "$DP_ATTENTION" == "true" ]]; then
  cat << EOF >> "$FILE"
attention_dp_config:
    batching_wait_iters: 0
EOF
fi
mpirun -n 1 --oversubscribe --allow-run-as-root \
  trtllm-serve serve "$MODEL" --port=$PORT --backend=pytorch \
  --max_seq_len=$((ISL + OSL + 256)) --max_num_tokens=$MAX_NUM_TOKENS --max_batch_size=$MAX_BATCH_SIZE \
  --tp_size=$TP --ep_size=$EP_SIZE > server.log 2>&1 &
""",
        {"tp": 4, "prefill_chunk_tokens": 1152, "batch_limit": 64},
    ),
    "function_around_a_container": (
        r"""#!/bin/bash
# The client waits beside a server in a container.
NAME="server-$RANDOM"
declare -A LENGTHS=([1024]=2248 [8192]=9416)
LENGTH=${LENGTHS[$ISL]:-10240}
FLAGS="--max-model-len $LENGTH --max-num-seqs $((CONC * 2))"
if [[ $MODEL == *fp8* || $MODEL == *FP8* ]]; then
  FLAGS="$FLAGS --kv-cache-dtype fp8"
fi
function start() {
  local gpus=$1; shift
  docker run --rm --name "$NAME" --gpus all --ipc host -v "$PWD:/workspace" -p $PORT:$PORT \
    $IMAGE --model "$MODEL" --tensor-parallel-size "$gpus" "$@"
}
start "$TP" $FLAGS &
until curl -s "http://localhost:$PORT/health"; do sleep 5; done
""",
        {"tp": 4, "batch_limit": 128},
    ),
    "command_string_of_srun": (
        r"""#!/usr/bin/env bash
export HF_HUB_CACHE_MOUNT="/raid/hub"
PARTITION=${PARTITION:-main}
FRAMEWORK_SUFFIX=$([[ "$FRAMEWORK" == "trt" ]] && printf '_trt' || printf '')
salloc --partition=$PARTITION --gres=gpu:$TP --exclusive --time=180 --no-shell
JOB_ID=$(squeue -u $USER -h -o %A | head -n1)
read -r BATCH WAIT <<< "$((CONC + 16)) 5"
let "SEQS = BATCH > 256 ? 256 : BATCH"
srun --jobid=$JOB_ID --container-image=$IMAGE --export=ALL,PORT=$PORT bash -c "
  cd /workspace
  vllm serve $MODEL --port $PORT --tensor-parallel-size $TP --max-num-seqs $SEQS --async-scheduling
"
scancel $JOB_ID
""",
        {"tp": 4, "batch_limit": 80},
    ),
    "list_filled_in_a_loop": (
        r"""#!/usr/bin/env bash
if [ $# -gt 0 ]; then
  MODEL=$1
fi
ulimit -n 65535 || true
if [ "$TP" -eq 8 ]; then
  UTIL=0.9
elif [ "$TP" -ge 4 ] && [ "${CONC:-1}" -le 64 ]; then
  UTIL=0.92
else
  UTIL=0.85
fi
CHUNK=$((1 << 13))
ARGS=(serve "${MODEL:?}" --tensor-parallel-size "$TP")
for pair in "max-num-batched-tokens=$CHUNK" "gpu-memory-utilization=$UTIL" "max-model-len=$((ISL + OSL))"; do
  ARGS+=("--${pair%%=*}" "${pair#*=}")
done
[[ ${DP_ATTENTION,,} == true ]] || ARGS+=(--enable-prefix-caching)
trap 'kill $PID' EXIT
vllm "${ARGS[@]}" &
PID=$!
""",
        {"tp": 4, "prefill_chunk_tokens": 8192},
    ),
}
