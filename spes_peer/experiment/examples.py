"""Experiments that come with the program."""

EXAMPLE = """\
# What to compare, as `spes-peer experiment FILE.toml` reads it. Each arm is run with each seed; that is a cell.

[experiment]
name = "modes"
seeds = [1, 2, 3]            # of the initial weights and the order of the data: alike in all arms, so they pair
text = "standard-library"    # or files and folders of .txt, .py and .md, relative to this file; a list mixes them
text_bytes = 4_000_000       # at most; the corpus is read again when a run needs more
held_out_tokens = 32_768     # never trained; the same in all cells
evaluate_every = 5           # rounds, and at the end
baseline = "centralized"     # differences are paired with it by seed

[base]                       # what all arms have in common: these, and sections as in run.toml
mode = "spes"                # spes | diloco | fedavg | centralized
peers = 4

[base.model]
vocab_rows = 272
d_model = 64
num_layers = 2
num_heads = 2
num_kv_heads = 2
num_experts = 8
top_k = 2
expert_hidden = 128
sequence_length = 128

[base.training]
steps_per_round = 20         # H
total_steps = 800            # a multiple of it: all arms see equally many tokens
batch_sequences = 16         # per step, over all peers together
lr = 3e-3
warmup_steps = 40
# num_subsets = 4            # as many as peers, in mode spes; other modes have one

[base.sync]
block_elements = 65536
shared_offer_encoding = "fp32"
shared_update_encoding = "fp32"
expert_encoding = "fp32"

[[arms]]
name = "spes"

[[arms]]
name = "spes-int8"           # an arm changes single settings, dotted or nested
sync.shared_offer_encoding = "int8"
sync.shared_update_encoding = "int8"
sync.expert_encoding = "int8"

[[arms]]
name = "diloco"
mode = "diloco"

[[arms]]
name = "centralized"
mode = "centralized"

# Or lists that make arms, every combination one; with [[arms]] too, every arm in every combination:
# [sweep]
# "training.steps_per_round" = [10, 50, 100]
# peers = [2, 4]
"""

QUICK = """\
[experiment]
name = "quick"
seeds = [1, 2]
text_bytes = 200_000
held_out_tokens = 2048
baseline = "centralized"

[base]
peers = 2

[base.model]
vocab_rows = 272
d_model = 32
num_layers = 2
num_heads = 2
num_kv_heads = 2
num_experts = 4
top_k = 2
expert_hidden = 32
sequence_length = 32

[base.training]
steps_per_round = 10
total_steps = 40
batch_sequences = 8
lr = 1e-2
warmup_steps = 5

[base.sync]
block_elements = 8192
shared_offer_encoding = "bf16"
shared_update_encoding = "bf16"
expert_encoding = "bf16"

[[arms]]
name = "spes"

[[arms]]
name = "diloco"
mode = "diloco"

[[arms]]
name = "centralized"
mode = "centralized"
"""
