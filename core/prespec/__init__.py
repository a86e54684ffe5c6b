"""Prespecification: what was claimed before the first result existed, and how to check that.

Here live canonical bytes, the frozen document, its hash and draw key, Merkle roots and the hash chain of the log, as pure
functions. Nothing here talks to a database, a clock or a timestamp authority.
"""
