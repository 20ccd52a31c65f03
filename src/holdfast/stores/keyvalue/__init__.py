"""The whole engine on a key-value store: rules on SQLite in memory, written through to a driver."""

from holdfast.stores.keyvalue.store import KeyValueStore

__all__ = ["KeyValueStore"]
