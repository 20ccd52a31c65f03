"""The engine: hands facts to replay, commits what replay asks for to the store, and then acts on it."""
