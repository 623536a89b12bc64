"""The run that chaos happens to: the demo's in small, with rounds of seconds and time-outs to match."""

RUN_FILE = """\
[run]
name = "chaos"
seed = 1
min_peers = 2

[model]
vocab_rows = 272
d_model = 48
num_layers = 2
num_heads = 4
num_kv_heads = 4
num_experts = 6
top_k = 2
expert_hidden = 64
sequence_length = 32

[training]
num_subsets = 6
steps_per_round = 40
total_steps = 1000000
batch_sequences = 72
lr = 3e-3
warmup_steps = 40
final_phase_fraction = 0

[sync]
block_elements = 16384
shared_offer_encoding = "int4"
shared_update_encoding = "int4"
expert_encoding = "int4"
reducers_per_block = 2
merge_alpha = 0.05
merge_interval_steps = 40
merge_warmup_steps = 400
snapshot_rounds = 5

[timing]
heartbeat_seconds = 1
round_seconds = 20
fetch_stall_seconds = 4
round_grace_seconds = 6
coordinator_timeout_seconds = 9
stall_timeout_seconds = 60
dht_beat_seconds = 4
dht_ttl_seconds = 25
lease_seconds = 60
"""
