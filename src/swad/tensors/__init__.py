"""The tensors of a model: by name, as shards, and with other values for a while; which are of its batch norms."""
