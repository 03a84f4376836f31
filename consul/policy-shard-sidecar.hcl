# The least that one sidecar of a shard needs, that is, with `consul.prefix = "PREFIX"` in its hermes.toml. Put the prefix in the place of
# PREFIX and your own family in that of `fraud-detection`:
#
#   sed 's/PREFIX/blue/g' consul/policy-shard-sidecar.hcl | consul acl policy create -name blue-sidecar-fraud -rules -
#   consul acl token create -policy-name blue-sidecar-fraud
#
# Two shards on one Consul, with such tokens alone, neither see nor change each other's services and contracts. Two things to mind:
# - no prefix may begin with another one and a hyphen: rules for "blue-" also cover the services of a shard "blue-green"
# - the services of the usual prefix `hermes` carry bare contract ids, and its policies read every service; where shards are to be
#   isolated from it too, give it a prefix of its own

# Registers, updates its check, leaves.
service_prefix "PREFIX-fraud-detection-v" {
  policy = "write"
}

# Finds other applications of the shard, and its collector. Both lines: without either, every health query is an empty list.
service_prefix "PREFIX-" {
  policy = "read"
}
node_prefix "" {
  policy = "read"
}

# Reads the shard's contracts and indexes.
key_prefix "PREFIX/" {
  policy = "read"
}

# Publishes its own contract and its index.
key_prefix "PREFIX/contracts/fraud-detection-v" {
  policy = "write"
}
key_prefix "PREFIX/index/fraud-detection-v" {
  policy = "write"
}
