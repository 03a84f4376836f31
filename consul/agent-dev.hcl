# One Consul agent for development: a single server on loopback, ACLs on, deny by default.
#
#   consul/start.sh DIRECTORY [HTTP-PORT]      starts it; consul/stop.sh DIRECTORY stops it
#
# Written for Consul 1.8 and later. Ports, node name and data directory come from start.sh.
# In memory is not enough here: with state on disk a restart behaves as in production.

server           = true
bootstrap_expect = 1
datacenter       = "dc1"

bind_addr   = "127.0.0.1"
client_addr = "127.0.0.1"

ports {
  dns      = -1
  grpc     = -1
  serf_wan = -1
}

acl {
  enabled        = true
  default_policy = "deny"

  # The agent's own token, the one start.sh sets up, survives a restart.
  enable_token_persistence = true
}

limits {
  # For the whole host, all sidecars together; each blocking poll takes one.
  http_max_conns_per_client = 200
}

performance {
  raft_multiplier = 1
}

disable_update_check = true
log_level            = "warn"
