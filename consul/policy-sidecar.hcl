# The least that one sidecar needs. Here it serves the family `fraud-detection`; put your own in its place.
#
#   consul acl policy create -name sidecar-fraud -rules @consul/policy-sidecar.hcl
#   consul acl token create -policy-name sidecar-fraud
#
# A prefix covers more than it seems to: "fraud-detection" would also match "fraud-detection2-v1.0",
# so each ends in "-v". An exact rule (`service "fraud-detection-v1.0"`, and for keys
# "hermes/contracts/fraud-detection-v1.0/" with its slash) binds the sidecar to one version line.
# With `consul.prefix = "P"` in hermes.toml: services are "P-fraud-detection-v...", keys are below "P/".

# Registers, updates its check, leaves.
service_prefix "fraud-detection-v" {
  policy = "write"
}

# Finds other applications. Both lines: without either, every health query is an empty list, not an error.
service_prefix "" {
  policy = "read"
}
node_prefix "" {
  policy = "read"
}

# Reads every contract, the indexes and the ratios of canaries (hermes/canary/<id>), which operators write.
key_prefix "hermes/" {
  policy = "read"
}

# Publishes its own contract (KV: hermes/contracts/<id>/<version> and .../version) and its index.
key_prefix "hermes/contracts/fraud-detection-v" {
  policy = "write"
}
key_prefix "hermes/index/fraud-detection-v" {
  policy = "write"
}

# Optional, so that an empty `inbound.advertise` needs one call less and `check` can tell the version:
# agent_prefix "" {
#   policy = "read"
# }
