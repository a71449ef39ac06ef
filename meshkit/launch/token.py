"""The token of a store that several jobs share: who knows it finds the keys of a job.

``python -m meshkit store --token`` and all ranks read it from MESHKIT_STORE_TOKEN, so it stands on
no command line and in no address. The store keeps a digest of it, with which a rank compares its
own in constant time. The keys of a job are below a digest of the token and of the job's name, so
jobs with other tokens do not meet. It keeps no attacker out: torch's own client can list and delete
all keys, and nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets

import torch.distributed as dist

from ..errors import LaunchError

VARIABLE = "MESHKIT_STORE_TOKEN"
KEY = "token"  # in the store: a random text, and the digest of the token with it


def read_token() -> str:
    """Return the token of this process; "" if it has none."""
    return os.environ.get(VARIABLE, "")


def require_token() -> str:
    """Return the token of this process.

    Raises:
        LaunchError: if it has none.
    """
    if token := read_token():
        return token
    line = f"{VARIABLE} is not set, so there is no token."
    fix = f"export {VARIABLE}=<a long random text>, here and on all ranks."
    raise LaunchError(line, fix=fix, variables={VARIABLE: None})


def digest(token: str, text: str) -> str:
    """Return the digest of a text with a token."""
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def protect(store: dist.Store, token: str) -> None:
    """Let a store require a token. One operation of the store."""
    salt = secrets.token_hex(16)
    store.set(KEY, f"{salt} {digest(token, salt)}")


def find_prefix(store: dist.Store, name: str) -> str:
    """Return the prefix of a job's keys. Two operations of the store.

    Raises:
        LaunchError: if the store requires a token that this process does not have.
    """
    token = read_token()
    if store.check([KEY]):
        salt, _, expected = bytes(store.get(KEY)).decode(errors="replace").partition(" ")
        if not hmac.compare_digest(digest(token, salt).encode(), expected.encode()):
            reason = f"{VARIABLE} is another one here" if token else f"{VARIABLE} is not set here"
            line = f"the store requires a token, and {reason}."
            fix = f"export {VARIABLE}=<the token of the store>, on all ranks."
            raise LaunchError(line, fix=fix, variables={VARIABLE: None})
    return f"{name}/{digest(token, name)}" if token else name
