"""The contract between deciding and remembering: rows, turns, operations and what a store promises."""
