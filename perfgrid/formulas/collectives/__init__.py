"""Collectives and all-to-alls of every group of ranks on a network of two tiers.

The network:

* `topology`: sizes, bandwidths and latencies of the tiers, and the shapes of ideal fabrics
* `placement`: groups of ranks, their place on the tiers, and the algorithm that a study names for them

Times, by the label ``library`` of the topology:

* `nccl`: with the algorithm and protocol that NCCL estimates to be the fastest (library = "nccl")
* `ideal`: the fastest schedule that the links allow (library = "ideal"), from tables that `ideal_tables` lists
* `exchange`: all-to-alls of equal parts, and of tokens among experts, for both libraries

Derived quantities:

* `contention`: the share of a tier that is left to concurrent traffic
* `workload`: the workload "collectives": one group, one message, bandwidths as nccl-tests reports them

`schedules` has the equations of every algorithm on every kind of network, independent of units and studies.
"""
