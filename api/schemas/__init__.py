"""Pydantic models of every body and answer, so that the OpenAPI document says exactly what is sent.

Only shapes live here: no defaults that decide anything, no queries, no conversions beyond time formatting.
"""
