"""How every gRPC channel and server of ours is set, in one place and with reasons.

The defaults are made for data centres: a frozen peer goes unnoticed for a minute, two servers share a port in silence,
and a proxy variable in somebody's shell breaks dialling by IP.
"""

from spes_peer.exchange.limits import HANDSHAKE_SECONDS, MAX_CALLS, MAX_MESSAGE_BYTES, max_connections
from spes_peer.identity import TLS_SERVER_NAME

Options = list[tuple[str, str | int]]

_BOTH: Options = [
    ("grpc.enable_http_proxy", 0),  # peers are dialled by IP; proxy variables would break that
    # a frozen peer is noticed in 20 s instead of 60, and not sooner: an answer waits behind seconds of bulk data in the
    # buffers of a slow line
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),  # a quiet stream is kept alive as well
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: who unpacks messages works for whoever sends them
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]

SERVER: Options = [
    *_BOTH,
    ("grpc.so_reuseport", 0),  # else a second server takes half the calls of the first
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # below keepalive_time_ms, or pings count as abuse
    ("grpc.max_concurrent_streams", MAX_CALLS),  # per connection
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1_000),
    ("grpc.max_allowed_incoming_connections", max_connections()),
]

CHANNEL: Options = [
    *_BOTH,
    ("grpc.ssl_target_name_override", TLS_SERVER_NAME),  # the pin is the certificate; its name means nothing
    # a connection on which nobody calls any more is closed, and made again when somebody does: home routers have room
    # for few, and one that was replaced is not kept
    ("grpc.client_idle_timeout_ms", 60_000),
    ("grpc.use_local_subchannel_pool", 1),  # dialling again is a fresh attempt, not an old one's back-off
]
