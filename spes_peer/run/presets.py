"""Run files that come with the program. `demo` learns visibly on two CPU cores within minutes; the others are the
models of the SPES paper, with its hyperparameters, and `spes-2b` stands in for one whose config was never published.

Between them the others differ in [run], [model] and [training] alone; what depends on size in the rest is filled in.
"""


def _sync(block_elements: str, merge_alpha: str) -> str:
    return f"""\
[sync]
block_elements = {block_elements}
expert_dtype = "bf16"          # the public state; owners keep fp32 masters, so that nothing is lost
shared_offer_encoding = "int4" # fp32, bf16, int8, int4 or topk: docs/RESULTS.md compares them
shared_update_encoding = "int4"
expert_encoding = "topk"       # 64 of each 4096 values a round; what waits is not lost, and owners train on with it
reducers_per_block = 2
merge_alpha = {merge_alpha}             # α0: between 0.01 and 0.1 in the paper's launch scripts
merge_interval_steps = 300     # T_i
merge_warmup_steps = 12500     # T_w
snapshot_rounds = 20
"""


def _timing(round_seconds: int, round_grace_seconds: int) -> str:
    """Deadlines for slow cards on slow lines: a round ends as soon as everybody is done, whatever the deadline."""
    return f"""\
[timing]
heartbeat_seconds = 5
round_seconds = {round_seconds:<14} # nobody waits so long unless somebody needs it
fetch_stall_seconds = 30
round_grace_seconds = {round_grace_seconds:<8} # one reduce over lines of some 100 Mb/s
coordinator_timeout_seconds = {round_grace_seconds + 300}
stall_timeout_seconds = {4 * round_grace_seconds}
dht_beat_seconds = 15
dht_ttl_seconds = 60
lease_seconds = {2 * round_seconds + 600}
"""


_TOKENIZER = """\
# The vocabulary has the rows that the paper's tokenizer needs: prepare its data with a tokenizer.json of at most so
# many ids (spes-peer data prepare --tokenizer).
"""

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
max_epochs = 100             # for a trial, a little text will do

[sync]
block_elements = 65536       # at least four shared blocks, so that several peers reduce
shared_offer_encoding = "int4" # fp32, bf16, int8, int4 or topk: docs/RESULTS.md compares them
shared_update_encoding = "int4"
expert_encoding = "int4"
expert_kept = 64             # of each 4096 values, were the encoding topk
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
    "spes-1b": f"""\
# The paper's 1B: 1.17 billion parameters, of which 0.26 are shared. Four peers, four experts each.
{_TOKENIZER}
[run]
name = "spes-1b"
seed = 1
min_peers = 4

[model]
vocab_rows = 151665
d_model = 768
num_layers = 12
num_heads = 12
num_kv_heads = 12
num_experts = 16
top_k = 2
expert_hidden = 2048
sequence_length = 2048
rope_theta = 500000.0
qk_norm = "width"
renormalize_top_k = false

[training]
num_subsets = 4                # four experts each
steps_per_round = 50           # H
total_steps = 50000
batch_sequences = 1024         # per step, over all peers together
lr = 5e-4
warmup_steps = 2000

{_sync(block_elements="4194304", merge_alpha="0.05")}
{_timing(round_seconds=7200, round_grace_seconds=300)}""",
    "spes-2b": f"""\
# A stand-in for the paper's 2B, whose config was never published: sixteen peers with one 48 GB card each, one expert
# each. It has about as many parameters, 0.62 billion shared and 1.51 billion in experts; widths and depth are ours.
{_TOKENIZER}
[run]
name = "spes-2b"
seed = 1
min_peers = 16

[model]
vocab_rows = 151665
d_model = 1536
num_layers = 16
num_heads = 12
num_kv_heads = 12
num_experts = 16
top_k = 2
expert_hidden = 1280
sequence_length = 2048
rope_theta = 500000.0
qk_norm = "width"
renormalize_top_k = false

[training]
num_subsets = 16               # one expert each
steps_per_round = 50           # H
total_steps = 250000
batch_sequences = 1024         # per step, over all peers together
lr = 5e-4
warmup_steps = 2000

{_sync(block_elements="4194304", merge_alpha="0.05")}
{_timing(round_seconds=7200, round_grace_seconds=600)}""",
    "spes-7b": f"""\
# The paper's 7B: 7.33 billion parameters, of which 0.89 are shared. Four peers, eight experts each.
{_TOKENIZER}
[run]
name = "spes-7b"
seed = 1
min_peers = 4

[model]
vocab_rows = 151665
d_model = 2048
num_layers = 16
num_heads = 16
num_kv_heads = 16
num_experts = 32
top_k = 4
expert_hidden = 2048
sequence_length = 2048
rope_theta = 32000.0
qk_norm = "width"
renormalize_top_k = false

[training]
num_subsets = 4                # eight experts each
steps_per_round = 50           # H
total_steps = 500000
batch_sequences = 1024         # per step, over all peers together
lr = 4e-4
warmup_steps = 2000

{_sync(block_elements="16777216", merge_alpha="0.05")}
{_timing(round_seconds=21600, round_grace_seconds=1200)}""",
    "spes-9b": f"""\
# The paper's 9B: 9.43 billion parameters, of which 0.98 are shared. Four peers, two experts each. The paper begins with
# a dense Qwen3 of 1.7 billion parameters, made into experts: spes-peer run sign FOLDER --upcycle QWEN3_FOLDER
{_TOKENIZER}
[run]
name = "spes-9b"
seed = 1
min_peers = 4

[model]
vocab_rows = 151936
d_model = 2048
num_layers = 28
num_heads = 16
num_kv_heads = 8
num_experts = 8
top_k = 2
expert_hidden = 6144
sequence_length = 4096
rope_theta = 1000000.0
qk_norm = "head"
renormalize_top_k = true

[training]
num_subsets = 4                # two experts each
steps_per_round = 50           # H
total_steps = 100000
batch_sequences = 1024         # per step, over all peers together
lr = 1e-4
warmup_steps = 1000

{_sync(block_elements="16777216", merge_alpha="0.01")}
{_timing(round_seconds=43200, round_grace_seconds=1200)}""",
}
