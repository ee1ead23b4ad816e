"""Collectives and exchanges of every group of ranks on a fabric of two tiers.

What they run on:

* `topology`: sizes, bandwidths and latencies of the tiers, and the shapes of ideal fabrics
* `placement`: groups of ranks, where they lie on the tiers, and the algorithm that a study names for them

How long they take, by the label ``library`` of the fabric:

* `nccl`: as NCCL runs them, in the algorithm and protocol of its least estimate (library = "nccl")
* `ideal`: the fastest schedule that the links allow (library = "ideal"), from tables that `ideal_tables` lists
* `exchange`: all-to-alls of equal parts, and of tokens with experts, for both

What follows:

* `contention`: what a pass leaves of a tier to the traffic that runs beside it
* `workload`: the workload "collectives": one group, one message, bandwidths as nccl-tests prints them

`schedules` holds the equations of every algorithm on every kind of network, without units and without studies.
"""
