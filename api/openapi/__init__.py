"""The OpenAPI document: generated from the routes, the structs that read and write JSON, and the problem table."""
