"""The rules of the store contract, written once for all databases."""
