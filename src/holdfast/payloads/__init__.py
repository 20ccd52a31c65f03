"""Payloads: values and errors as the bytes that are stored."""
