# The least that `contract publish` needs, in CI or at an operator's desk. Here for the family `fraud-detection`; put your own in its
# place.
#
#   consul acl policy create -name publish-fraud -rules @consul/policy-publisher.hcl
#   consul acl token create -policy-name publish-fraud
#
# With `consul.prefix = "P"` in hermes.toml the keys are below "P/".

# Bodies, to write and to compare with, and the version pointer.
key_prefix "hermes/contracts/fraud-detection-v" {
  policy = "write"
}

# Moves with the version.
key_prefix "hermes/index/fraud-detection-v" {
  policy = "write"
}

# Optional, for `contract list` and `contract get` of every family:
# key_prefix "hermes/" {
#   policy = "read"
# }
