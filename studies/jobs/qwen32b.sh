#!/bin/bash
# A server of Qwen3 32B on two devices
vllm serve --trust-remote-code Qwen/Qwen3-32B --tensor_parallel_size 2 --max-model-len 32768 \
  --gpu-memory-utilization=0.9 --port 8000
