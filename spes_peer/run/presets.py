"""Run files that come with the program. `demo` learns visibly on two CPU cores within minutes."""

PRESETS: dict[str, str] = {
    "demo": """\
# A community run in miniature: byte-level, a few million parameters, for two CPU cores.

[run]
name = "demo"
seed = 1
min_peers = 4                # round 1 opens when so many volunteers are admitted

[model]
vocab_rows = 272             # 256 bytes, end of text, padding to a multiple of 16
d_model = 128
num_layers = 4
num_heads = 4
num_kv_heads = 4
num_experts = 8
top_k = 2
expert_hidden = 256
sequence_length = 128

[training]
num_subsets = 4              # two experts each
steps_per_round = 20         # H
total_steps = 2000
batch_sequences = 32         # per step, over all peers together
lr = 3e-3
warmup_steps = 40
final_phase_fraction = 0     # the last 30 % of tokens in smaller batches is for long runs

[sync]
block_elements = 65536       # at least four shared blocks, so that several peers reduce
shared_encoding = "bf16"
expert_encoding = "bf16"
reducers_per_block = 2
merge_alpha = 0.05           # expert merging in the warm-up
merge_interval_steps = 40
merge_warmup_steps = 200
snapshot_rounds = 5

[timing]
heartbeat_seconds = 1
round_seconds = 120
fetch_stall_seconds = 10
round_grace_seconds = 20
coordinator_timeout_seconds = 30
stall_timeout_seconds = 120
dht_beat_seconds = 8
dht_ttl_seconds = 30
lease_seconds = 300
""",
}
