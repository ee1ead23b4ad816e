# Mixtral 8x7B by Megatron-LM on 16 H100 (docs/tutorials/calibrate.md), whose steps are in mixtral_16.log. Not stated by
# its author and assumed: experts over 4 ranks, one sequence at a time, overlapped gradients and parameters.
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear \
    --position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 32000 \
    --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 \
    --seq-length 2048 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 128 \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --bf16
