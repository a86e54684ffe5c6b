"""Secrets of bearer tokens: how they are made and what is kept of them. No table is read here, and nothing keeps a secret.

A secret is 32 random bytes, so a fast hash is right: there is nothing to guess, and a slow one would cost every request.
"""

import hashlib
import secrets

SCOPES = ("read", "submit", "admin")
"""What a token may do; each includes the ones before it."""


def new_secret() -> str:
    """A fresh secret; its beginning tells a reader of a leaked one what it opens."""
    return f"driftline_{secrets.token_urlsafe(32)}"


def token_hash(secret: str) -> str:
    """What is stored of a token: the SHA-256 of its secret in hexadecimal."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
