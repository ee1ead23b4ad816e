"""The kinds of sequence mixers, as the label ``mixer`` of a study names them.

Recurrent mixers keep a state of fixed size for each head; they run over a prompt chunk by chunk. ``LINEAR`` ones add
each key and value to a decaying state, ``DELTA`` ones first take away what the state holds at that key. Softmax
attention keeps keys and values and differs in the pairs of tokens that it computes.
"""

LINEAR = ("mamba2", "lightning")
DELTA = ("gated_delta_net", "kimi_delta_attention")
RECURRENT = (*LINEAR, *DELTA)
NONE = "none"  # of a model without a mixer; beside others it is computed like lightning attention, for no layer
KEEPING = (*RECURRENT, NONE)  # a state
DENSE = ("full_attention", "window_attention", "chunked_attention")
SPARSE = "sparse_attention"
SOFTMAX = (*DENSE, SPARSE)

ALL, CHOSEN = "none", "top_k"  # labels of ``indexer``: attention to all tokens, or to those that are chosen
