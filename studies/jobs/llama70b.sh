# Llama 3.1 70B by Megatron-LM on 512 H100, as in docs/jobs.md: perfgrid read-job studies/jobs/llama70b.sh --on h100-sxm-80gb --suggest
NODES=64
TP=8
PP=4
torchrun --nnodes $NODES --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear \
    --position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 128256 \
    --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 1024 \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-distributed-optimizer --bf16
