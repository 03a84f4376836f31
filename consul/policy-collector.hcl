# The least that a collector needs.
#
#   consul acl policy create -name hermes-collector -rules @consul/policy-collector.hcl
#   consul acl token create -policy-name hermes-collector
#
# With `consul.prefix = "P"` in hermes.toml the keys are below "P/".

# Registers itself, so that `spool.collector = "consul:hermes-collector"` finds it.
service "hermes-collector" {
  policy = "write"
}

# Shows who runs which contract.
service_prefix "" {
  policy = "read"
}
node_prefix "" {
  policy = "read"
}
key_prefix "hermes/" {
  policy = "read"
}

# Keeps the watched prefixes from being empty: a poll on an empty prefix wakes at unrelated writes.
key "hermes/canary/_keep" {
  policy = "write"
}
key "hermes/index/_keep" {
  policy = "write"
}
