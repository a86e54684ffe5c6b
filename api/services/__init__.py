"""Decisions behind the endpoints: plain functions that take a session and values, and return plain documents.

They never commit, never see a request and never build a response; the endpoint that opened the transaction does that.
"""
