# The least that the collector of a shard needs, that is, with `consul.prefix = "PREFIX"` in its hermes.toml; see policy-shard-sidecar.hcl.
#
#   sed 's/PREFIX/blue/g' consul/policy-shard-collector.hcl | consul acl policy create -name blue-collector -rules -
#   consul acl token create -policy-name blue-collector

# Registers itself, so that `spool.collector = "consul:hermes-collector"` finds it within the shard.
service "PREFIX-hermes-collector" {
  policy = "write"
}

# Shows who of the shard runs which contract.
service_prefix "PREFIX-" {
  policy = "read"
}
node_prefix "" {
  policy = "read"
}
key_prefix "PREFIX/" {
  policy = "read"
}

# Keeps the watched prefixes from being empty: a poll on an empty prefix wakes at unrelated writes.
key "PREFIX/canary/_keep" {
  policy = "write"
}
key "PREFIX/index/_keep" {
  policy = "write"
}
