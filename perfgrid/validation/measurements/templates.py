"""Tables to fill in: few columns, with what each may hold in comments. `perfgrid validate` reads what is filled in."""

from __future__ import annotations

from perfgrid.engine.errors import PerfgridError, nearest

TEMPLATES = {
    "training": """\
# Training runs: a row for each. One measured column is enough; delete the others, or leave cells empty.
# Columns that are the same everywhere may be left out: --job run.sh, --on DEVICE and --set name=value state them.
# device, model      names of the catalog: perfgrid catalog list device, perfgrid catalog list model
# global_batch       sequences per step; microbatch: sequences per replica and pipeline slot
# tp, pp             ranks of tensor and pipeline parallelism; also cp, ep, dp, chunks, zero, recompute, precision
# measured           step_time_s (or _ms), tokens_per_second, tokens_per_second_per_device, samples_per_second, mfu,
#                    peak_memory_gib
device,devices,model,sequence_length,global_batch,microbatch,tp,pp,step_time_s,tokens_per_second
""",
    "serving": """\
# Serving runs: a row for each. One measured column is enough.
# concurrency        concurrent requests in a closed loop; or request_rate, requests per second
# precision          of matrix products; also weight_precision, kv_precision, requests, dp, ep, software
# measured           ttft_ms, tpot_ms, request_latency_s (means over requests), output_tokens_per_second
device,devices,model,tp,precision,prompt_tokens,output_tokens,concurrency,ttft_ms,tpot_ms,output_tokens_per_second
""",
    "kernel": """\
# Kernels on their own: a row for each.
# op                 gemm (m, n, k), attention (batch, heads, kv_heads, head_dim, sequence_length, causal)
# direction          forward, backward, forward_backward
device,op,precision,direction,m,n,k,kernel_time_us
""",
    "collective": """\
# Collectives on their own: a row for each. Output of nccl-tests is read as it is: perfgrid validate FILE.
# op                 all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send_recv
# size               bytes: buffer of a rank, gathered output, scattered input, sent message
# measured           time_us or busbw_gb_s
device,op,ranks,size,time_us
""",
}


def template(kind: str) -> str:
    """The table to fill in for a kind of measurements. PerfgridError for an unknown kind."""
    if kind not in TEMPLATES:
        raise PerfgridError(f"no template {kind!r}{nearest(kind, TEMPLATES)}")
    return TEMPLATES[kind]
