"""Authentication of a peer: Kafka's two SASL requests (KIP-43, KIP-152). Shapes and defaults.

Owns: SaslHandshake, SaslAuthenticate. Leaves to others: the mechanisms; their messages travel as opaque bytes
(`broker_authentication`). Import from `messages`.
"""
# ruff: noqa: RUF012 - msgspec gives every struct its own copy of a default list or map

from typing import Annotated

from msgspec import Meta

from minibroker.protocol.wire.message_types import Name, Request, Response

AUTH_BYTES_MAX = 1_024
"""Of one message of a mechanism: ours take a tenth. A peer that is not authenticated must not cost much."""
MECHANISMS_MAX = 16
AuthBytes = Annotated[bytes, Meta(max_length=AUTH_BYTES_MAX)]


class SaslHandshakeRequest(Request, frozen=True, kw_only=True):
    mechanism: Name


class SaslHandshakeResponse(Response, frozen=True, kw_only=True):
    mechanisms: Annotated[list[Name], Meta(max_length=MECHANISMS_MAX)] = []  # about: what this listener accepts


class SaslAuthenticateRequest(Request, frozen=True, kw_only=True):
    auth_bytes: AuthBytes


class SaslAuthenticateResponse(Response, frozen=True, kw_only=True):
    auth_bytes: AuthBytes = b""
